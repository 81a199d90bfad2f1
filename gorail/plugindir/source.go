package plugindir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// source is where stock plugins are from: a wheel, or a folder in another layout.
type source struct {
	origin  origin
	why     string            // why this one of several, "" if there was no choice
	folders []string          // NIXL's own, not to be changed
	plugins map[string]string // file name -> path
	libs    map[string]string // libraries, and folders with modules of libraries
}

// origin names a source. It is written into marks.
type origin struct{ wheel, variant, from string }

func (o origin) String() string {
	if o.from != "" {
		return "from " + strconv.Quote(o.from) + "\n"
	}
	return "wheel " + strconv.Quote(o.wheel) + " " + o.variant + "\n"
}

var originRule = regexp.MustCompile(`^(wheel|from) ("(?:[^"\\]|\\.)*") ?(\w*)\n$`)

func parseOrigin(text string) origin {
	m := originRule.FindStringSubmatch(text)
	if m == nil {
		return origin{}
	}
	path, err := strconv.Unquote(m[2])
	if err != nil {
		return origin{}
	}
	if m[1] == "from" {
		return origin{from: path}
	}
	return origin{wheel: path, variant: m[3]}
}

// says describes the source for people.
func (s source) says() string {
	if s.origin.from != "" {
		return "the plugins in " + s.origin.from
	}
	return "nixl-" + s.origin.variant + " in " + s.origin.wheel
}

// open reads the source that a spec names.
func open(s Spec) (source, error) {
	if s.From == "" {
		return readWheel(s.Wheel, s.CUDA)
	}
	if s.Wheel != "" || s.CUDA != "" {
		return source{}, errors.New("--from names a folder with stock plugins: leave out --wheel and --cuda")
	}
	dir, wheel, err := resolve(s.From)
	if err != nil {
		return source{}, fmt.Errorf("--from: %w", err)
	}
	if dir == "" {
		if wheel == "" {
			return source{}, fmt.Errorf("--from %s was made by an older gorail plugins, which did not write down from what: use --wheel", s.From)
		}
		return readWheel(wheel, "")
	}
	return readFolder(dir)
}

// originLimit bounds the folders of ours that were made from folders of ours.
const originLimit = 8

// resolve returns the plugin folder itself, or if gorail plugins made it, what it was made from: a folder, or else
// a wheel. An older gorail plugins did not write that down: then both are "".
func resolve(plugins string) (dir, wheel string, err error) {
	if plugins, err = filepath.Abs(plugins); err != nil {
		return "", "", err
	}
	for range originLimit {
		real, err := filepath.EvalSymlinks(plugins)
		if err != nil {
			return "", "", err
		}
		from, ours := madeFrom(filepath.Dir(real))
		if filepath.Base(real) != "plugins" || !ours {
			return plugins, "", nil
		}
		if from.from == "" {
			return "", from.wheel, nil
		}
		plugins = from.from
	}
	return "", "", fmt.Errorf("%s: made from a folder that was made from a folder, and so on: name NIXL's own folder", plugins)
}

// Default names a source for a spec without one: NIXL_PLUGIN_DIR if that has stock plugins, else a wheel. The notes say
// what it did not use, and why.
func Default(s Spec) (Spec, []string) {
	if s.From != "" || s.Wheel != "" {
		return s, nil
	}
	var notes []string
	if at := os.Getenv("NIXL_PLUGIN_DIR"); at != "" {
		dir, wheel, err := resolve(at)
		stock := map[string]string{}
		if dir != "" {
			err = list(dir, stock, isLibrary(dir))
		}
		switch {
		case err != nil:
			notes = append(notes, fmt.Sprintf("NIXL_PLUGIN_DIR=%s is not used: %v", at, err))
		case hasStock(stock):
			if s.CUDA != "" {
				notes = append(notes, "--cuda is not used: NIXL_PLUGIN_DIR names the stock plugins, unless --wheel is given")
			}
			s.From, s.CUDA = dir, ""
			return s, notes
		case dir != "":
			notes = append(notes, fmt.Sprintf("NIXL_PLUGIN_DIR=%s is not used: it has no plugin of NIXL's", at))
		case os.Getenv("NIXL_WHEEL_DIR") == "" && len(variants(wheel)) > 0:
			s.Wheel = wheel
			return s, notes
		}
	}
	s.Wheel = FindWheel(s.CUDA)
	return s, notes
}

// readFolder reads a folder with stock plugins. Their libraries are where $ORIGIN/.. leads from there.
func readFolder(dir string) (source, error) {
	if site, variant, ok := ofWheel(dir); ok {
		return readVariant(site, variant)
	}
	src := source{origin: origin{from: dir}, folders: []string{dir}, plugins: map[string]string{}, libs: map[string]string{}}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return source{}, fmt.Errorf("--from %s: %w", dir, err)
	}
	if err := list(dir, src.plugins, isLibrary(dir)); err != nil {
		return source{}, fmt.Errorf("--from %s: %w", dir, err)
	}
	if !hasStock(src.plugins) {
		return source{}, fmt.Errorf("--from %s: no plugin of NIXL's there (libplugin_*.so): name the folder that has libplugin_UCX.so", dir)
	}
	above := filepath.Dir(real)
	modules := func(e os.DirEntry) bool {
		path := filepath.Join(above, e.Name())
		return path != real && e.Name() != "plugins" && holdsLibraries(path) // D has a plugins of its own
	}
	return src, errors.Join(list(above, src.libs, isLibrary(above)), list(above, src.libs, modules))
}

func hasStock(plugins map[string]string) bool {
	for file := range plugins {
		if strings.HasPrefix(file, prefix) && file != prefix+own+".so" {
			return true
		}
	}
	return false
}

// isLibrary takes the libraries of a folder, also behind links.
func isLibrary(dir string) func(os.DirEntry) bool {
	return func(e os.DirEntry) bool {
		info, err := os.Stat(filepath.Join(dir, e.Name()))
		return err == nil && info.Mode().IsRegular() && strings.Contains(e.Name(), ".so")
	}
}

// holdsLibraries reports whether dir is a folder with libraries that gorail plugins did not make.
func holdsLibraries(dir string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	if _, err := os.Lstat(filepath.Join(dir, mark)); err == nil {
		return false
	}
	for _, e := range entries {
		if isLibrary(dir)(e) {
			return true
		}
	}
	return false
}

func list(dir string, into map[string]string, take func(os.DirEntry) bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if take(e) {
			into[e.Name()] = filepath.Join(dir, e.Name())
		}
	}
	return nil
}
