package doctor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

func (s *checker) software() {
	s.plugin()
	s.wheel()
	s.folder()
}

func (s *checker) plugin() {
	p := s.Software.Plugin
	if p.Err != "" {
		s.Fail("plugin", p.Path+": "+p.Err, "install GORAIL for this machine, or name its folder in GORAIL_PLUGIN_DIR", "pip install nixl_gorail-*.whl")
		return
	}
	s.Pass("plugin", "%s", p.Path)
	switch tool := s.Software.Tool; {
	case p.Version == "" || tool == "unknown":
		s.Pass("version", "tool %s; the plugin does not say its version", tool)
	case p.Version != tool:
		s.Fail("version", fmt.Sprintf("the plugin %s is version %s, and this tool is %s", p.Path, p.Version, tool), "install plugin and tool of one release, or name the right plugin in GORAIL_PLUGIN_DIR")
	default:
		s.Pass("version", "plugin and tool are version %s", tool)
	}
	switch have := s.Software.GLIBC; {
	case have == "" || p.GLIBC == "":
		s.Pass("glibc", "not found: no check")
	case olderThan(have, p.GLIBC):
		s.Fail("glibc", fmt.Sprintf("glibc is %s, and the plugin needs %s", have, p.GLIBC), "install the wheel nixl-gorail, which needs glibc 2.28, or build GORAIL on this system", "pip install nixl_gorail-*.whl")
	default:
		s.Pass("glibc", "%s; the plugin needs %s", have, p.GLIBC)
	}
}

// olderThan compares versions such as 2.9 and 2.36.
func olderThan(a, b string) bool {
	numbers := func(v string) (n []int) {
		for part := range strings.SplitSeq(v, ".") {
			i, _ := strconv.Atoi(part)
			n = append(n, i)
		}
		return n
	}
	return slices.Compare(numbers(a), numbers(b)) < 0
}

func (s *checker) wheel() {
	w := s.Software.Wheels
	switch {
	case w.Err != nil:
		s.Fail("wheel", w.Err.Error(), "install the wheel for torch's CUDA, or remove the other", "pip list | grep -i nixl")
	case len(w.Have) == 0:
		s.Warn("wheel", "no NIXL wheel found: neither the python3 beside this tool nor that of PATH has one", "install one, unless NIXL comes from another place, or set NIXL_WHEEL_DIR", "pip install nixl")
	case w.Own != "":
		s.Warn("wheel", fmt.Sprintf("this tool's own environment (%s) has no NIXL; shown is that of python3 in PATH: nixl-%s in %s", w.Own, w.Takes, w.Where), "install NIXL there, or take the tool of the environment that has it, or set NIXL_WHEEL_DIR", filepath.Join(w.Own, "bin", "pip")+" install nixl")
	case len(w.Have) > 1:
		s.Pass("wheel", "nixl-%s in %s; package nixl takes nixl-%s (%s)", strings.Join(w.Have, " and nixl-"), w.Where, w.Takes, w.Why)
	default:
		s.Pass("wheel", "nixl-%s in %s", w.Takes, w.Where)
	}
}

// folder looks at NIXL_PLUGIN_DIR, which replaces NIXL's own folder.
func (s *checker) folder() {
	f := s.Software.Folder
	const remake = "make the folder again with gorail plugins"
	make := "eval $(gorail plugins --dir ~/nixl-plugins)"
	switch {
	case f.Path == "" && f.Enabled:
		s.Pass("plugin-dir", "NIXL_PLUGIN_DIR is not set; nixl_gorail.enable() sets it in Python, and eval $(gorail-env) in a shell")
		return
	case f.Path == "":
		s.Warn("plugin-dir", "NIXL_PLUGIN_DIR is not set: NIXL looks in its own folder only, which has no GORAIL",
			"make a plugin folder and export NIXL_PLUGIN_DIR, or install the wheel nixl-gorail beside NIXL and call nixl_gorail.enable()", make)
		return
	}
	if f.Err != "" {
		s.Fail("plugin-dir", "NIXL_PLUGIN_DIR="+f.Path+": "+f.Err, remake, make)
		return
	}
	var stock, ours, broken []string
	for _, file := range f.Files {
		switch {
		case file.Err != nil:
			broken = append(broken, fmt.Sprintf("%s (%v)", file.Name, file.Err))
		case file.Ours:
			ours = append(ours, file.Name)
		default:
			stock = append(stock, file.Name)
		}
	}
	takes := s.Software.Wheels.Takes
	switch {
	case len(broken) > 0:
		s.Fail("plugin-dir", fmt.Sprintf("NIXL_PLUGIN_DIR=%s: broken plugins: %s", f.Path, strings.Join(broken, ", ")), remake, make)
	case len(ours) == 0 && slices.Contains(stock, "GORAIL"):
		s.Fail("plugin-dir", fmt.Sprintf("NIXL_PLUGIN_DIR=%s: its libplugin_GORAIL.so is not the plugin of GORAIL", f.Path), remake, make)
	case len(ours) == 0:
		s.Fail("plugin-dir", fmt.Sprintf("NIXL_PLUGIN_DIR=%s has no GORAIL; it has %s", f.Path, orNone(stock)), remake, make)
	case f.Variant != "" && takes != "" && f.Variant != takes:
		s.Fail("plugin-dir", fmt.Sprintf("NIXL_PLUGIN_DIR=%s was made from nixl-%s, and package nixl takes nixl-%s", f.Path, f.Variant, takes), "make the folder again for the wheel that is used, or remove the other wheel",
			fmt.Sprintf("eval $(gorail plugins --dir ~/nixl-plugins --cuda %s)", strings.TrimPrefix(takes, "cu")))
	default:
		s.Pass("plugin-dir", "%s: GORAIL is %s; beside it %s", f.Path, strings.Join(ours, ", "), orNone(stock))
	}
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
