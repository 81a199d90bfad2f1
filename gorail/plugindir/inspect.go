package plugindir

import (
	"cmp"
	"debug/buildinfo"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Entry is a plugin in a folder.
type Entry struct {
	Name string // "UCX" of libplugin_UCX.so
	Ours bool   // GORAIL answers to the name
	Err  error  // the file cannot be read: a broken link
}

// Look lists the plugins of a folder. variant is the wheel that gorail plugins made it from, or whose own it is; "": not known.
func Look(dir string) (entries []Entry, variant string, err error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, "", err
	}
	for _, e := range list {
		name, ok := strings.CutPrefix(strings.TrimSuffix(e.Name(), ".so"), prefix)
		if !ok || !strings.HasSuffix(e.Name(), ".so") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		_, err := os.Stat(path)
		entries = append(entries, Entry{name, err == nil && Ours(path), err})
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		if from, ours := madeFrom(filepath.Dir(real)); ours && from.from == "" {
			return entries, from.variant, nil
		}
	}
	_, variant, _ = ofWheel(dir)
	return entries, variant, nil
}

// Ours says that a file is GORAIL's plugin, under any name.
func Ours(path string) bool {
	info, err := buildinfo.ReadFile(path)
	return err == nil && (info.Path == "gorail/plugin/so" || info.Path == "gorail/plugin") // the second: older ones
}

// Wheels describes the wheels that an interpreter finds, and the one that NIXL's package nixl takes.
type Wheels struct {
	Have  []string // "cu12", "cu13"
	Takes string   // "" if there is none
	Where string   // the site-packages folder of that one
	Own   string   // the tool's own environment if it has no NIXL, and python3 of PATH has the wheel; else ""
	Why   string   // why this one, "" if there was no choice
	Err   error    // none fits torch
}

// Enables reports whether the Python package nixl_gorail is installed beside the wheel.
func (w Wheels) Enables() bool {
	_, err := os.Stat(filepath.Join(w.Where, "nixl_gorail", "__init__.py"))
	return w.Where != "" && err == nil
}

// FindWheels finds NIXL's wheels: in NIXL_WHEEL_DIR, then where pythons look.
func FindWheels() Wheels { return findWheels("") }

// beside is what the first interpreter that has a wheel finds, of those that belong to a program. own is Wheels.Own.
func beside(program string) (found map[string]string, own string) {
	tried := slices.DeleteFunc(pythons(program), func(python string) bool { return filepath.IsAbs(python) && !runnable(python, program) })
	found, by := findFirst(tried)
	if by == pathPython && tried[0] != by {
		own = filepath.Join(tried[0], "..", "..")
	}
	return found, own
}

func findWheels(cuda string) (w Wheels) {
	where := map[string]string{}
	torch := os.Getenv("NIXL_WHEEL_DIR")
	if torch != "" {
		for _, v := range variants(torch) {
			where[v] = torch
		}
	} else {
		exe, _ := os.Executable()
		var found map[string]string
		found, w.Own = beside(exe)
		torch = filepath.Dir(cmp.Or(found["torch"], "/nowhere/torch"))
		delete(found, "torch")
		for v, dir := range found {
			where[v] = filepath.Dir(dir)
		}
	}
	if w.Have = slices.Sorted(maps.Keys(where)); len(w.Have) > 0 {
		w.Takes, w.Why, w.Err = choose(w.Have, cuda, func() string { return torchCUDA(torch) })
		w.Where = where[cmp.Or(w.Takes, w.Have[0])] // without a choice: readWheel says what is wrong
	}
	return w
}
