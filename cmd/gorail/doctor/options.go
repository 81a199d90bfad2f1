package doctor

import (
	"fmt"
	"path"
	"strings"

	"gorail/backend/option"
)

// options parses the options as the plugin does. Without valid options no further check has a meaning.
func (s *scene) options() bool {
	opt, unknown, err := option.Parse(s.Params, s.getenv)
	if err == nil && len(unknown) > 0 {
		err = fmt.Errorf("no option is called %s", option.Unknowns(unknown))
	}
	if err != nil {
		s.Fail("options", err.Error(), "write a value that the text names; docs/options.md has all options")
		return false
	}
	s.opt = opt
	s.Pass("options", "provider=%s devices=%s max_rails=%d", strings.Join(opt.Provider, ","), orAll(opt.Devices), opt.MaxRails)
	if unknown := option.UnknownVariables(s.Env); len(unknown) > 0 {
		for _, u := range unknown {
			remedy, do := "unset it; docs/options.md has all names", "unset "+u.Name
			if u.Near != "" {
				remedy = "write " + u.Near
			}
			s.Warn("variables", u.Name+" is no option of GORAIL: the plugin ignores it", remedy, do)
		}
	} else {
		s.Pass("variables", "every GORAIL_* variable is known")
	}
	s.disk()
	return true
}

func (s *scene) getenv(name string) (string, bool) {
	for _, v := range s.Env {
		if n, value, _ := strings.Cut(v, "="); n == name {
			return value, true
		}
	}
	return "", false
}

func (s *scene) env(name string) string {
	v, _ := s.getenv(name)
	return v
}

func orAll(list []string) string {
	if len(list) == 0 {
		return "all"
	}
	return strings.Join(list, ",")
}

// disk tries the folders that GORAIL writes to. Only stats_file is needed to create a backend.
func (s *scene) disk() {
	if s.Try.Write == nil {
		return
	}
	type folder struct{ what, dir, other string }
	tmp := s.env("TMPDIR")
	if tmp == "" {
		tmp = "/tmp"
	}
	folders := []folder{{"temporary files", tmp, "TMPDIR"}}
	if f := s.opt.StatsFile; f != "" && !strings.HasPrefix(f, "/dev/") && !strings.HasPrefix(f, "/proc/") {
		folders = append(folders, folder{"option stats_file", path.Dir(f), "option stats_file"})
	}
	var bad, good []string
	for _, f := range folders {
		if err := s.Try.Write(f.dir); err != nil {
			bad = append(bad, fmt.Sprintf("%s (%s): %v", f.dir, f.what, err))
			s.Fail("disk", fmt.Sprintf("cannot write to %s (%s): %v", f.dir, f.what, err), "free space there, or name another folder in "+f.other, "df -h "+f.dir)
			continue
		}
		good = append(good, f.dir)
	}
	if len(bad) == 0 {
		s.Pass("disk", "can write to %s", strings.Join(good, ", "))
	}
}
