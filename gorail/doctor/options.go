package doctor

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	"gorail/backend/option"
	"gorail/backend/stats"
)

// options parses the options as the plugin does, and reports whether all are right. Wrong ones are left out: the other checks go on.
func (s *checker) options() (right bool) {
	before := len(s.Checks)
	for {
		opt, unknown, err := option.Parse(s.Params, s.getenv)
		if err != nil {
			s.Fail("options", err.Error(), "write a value that the text names; docs/options.md has all options")
			s.leaveOut(err)
			continue
		}
		s.opt, s.Params = opt, maps.Clone(s.Params)
		for _, u := range option.Unknowns(unknown) {
			s.Fail("options", "no option is called "+u.String(), "write a name of docs/options.md")
			delete(s.Params, u.Name)
		}
		break
	}
	right = len(s.Checks) == before
	if right {
		s.Pass("options", "provider=%s devices=%s max_rails=%d", strings.Join(s.opt.Provider, ","), orAll(s.opt.Devices), s.opt.MaxRails)
	}
	if unknown := option.UnknownVariables(s.Env); len(unknown) > 0 {
		for _, u := range unknown {
			remedy, do := "unset it; docs/options.md has all names", "unset "+u.Name
			if u.Near != "" {
				remedy = "did you mean " + u.Near + "?"
			} else if u.Gone != "" {
				remedy = "unset it: " + u.Gone
			}
			s.Warn("variables", u.Name+" is no option of GORAIL: the plugin ignores it", remedy, do)
		}
	} else {
		s.Pass("variables", "every GORAIL_* variable is known")
	}
	s.disk()
	return right
}

// leaveOut takes the parameter or variable away that err is about: without it there is no error, or another one.
func (s *checker) leaveOut(err error) {
	params, env := s.Params, s.Env
	gone := func() bool {
		_, _, now := option.Parse(s.Params, s.getenv)
		return now == nil || now.Error() != err.Error()
	}
	for _, name := range slices.Sorted(maps.Keys(params)) {
		s.Params = maps.Clone(params)
		if delete(s.Params, name); gone() {
			return
		}
	}
	s.Params = params
	for i, v := range env {
		s.Env = slices.Delete(slices.Clone(env), i, i+1)
		if strings.HasPrefix(v, "GORAIL_") && gone() {
			return
		}
	}
	s.Params, s.Env = map[string]string{}, nil // no single one: the defaults are right
}

func (s *checker) getenv(name string) (string, bool) {
	for _, v := range s.Env {
		if n, value, _ := strings.Cut(v, "="); n == name {
			return value, true
		}
	}
	return "", false
}

func (s *checker) env(name string) string {
	v, _ := s.getenv(name)
	return v
}

func orAll(list []string) string {
	if len(list) == 0 {
		return "all"
	}
	return strings.Join(list, ",")
}

// disk tries the folders that GORAIL and its tool write to. A full one is a fault; a read-only one may be intended, unless
// stats_file or log_file is there.
func (s *checker) disk() {
	if s.Try.Write == nil {
		return
	}
	type folder struct {
		what, dir, other string
		file             string // if it is there, it may be writable in a folder that is not
		needed           bool
	}
	tmp := s.env("TMPDIR")
	if tmp == "" {
		tmp = "/tmp"
	}
	folders := []folder{{what: "temporary files", dir: tmp, other: "TMPDIR"}}
	for _, o := range [][2]string{{"stats_file", s.opt.StatsFile}, {"log_file", s.opt.LogFile}} {
		name, f := "option "+o[0], o[1]
		if f == "" || strings.HasPrefix(f, "/dev/") || strings.HasPrefix(f, "/proc/self/") || strings.Contains(path.Dir(f), "%a") { // no agent's name is known
			continue
		}
		f = stats.Expand(f, "")
		one := folder{what: name, dir: path.Dir(f), other: name, needed: true}
		if o[0] == "log_file" { // stats_file is replaced by a new file
			one.file = f
		}
		folders = append(folders, one)
	}
	var good []string
	for _, f := range folders {
		err := s.Try.Write(f.dir)
		if err != nil && f.file != "" && s.Try.Write(f.file) == nil {
			err = nil
		}
		if err == nil {
			good = append(good, f.dir)
			continue
		}
		report, remedy := s.Warn, "give access to that folder, or name another one in "+f.other
		full := errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
		if full {
			remedy = "free space there, or name another folder in " + f.other
		}
		if full || f.needed {
			report = s.Fail
		}
		report("disk", fmt.Sprintf("cannot write to %s (%s): %v", f.dir, f.what, err), remedy, "df -h "+f.dir)
	}
	if len(good) == len(folders) {
		s.Pass("disk", "can write to %s", strings.Join(good, ", "))
	}
}
