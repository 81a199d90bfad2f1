package plugindir

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"gorail/backend/host"
)

var errNoWheel = errors.New("no NIXL wheel found: say where one is installed with --wheel (its site-packages folder)")

var libsRule = regexp.MustCompile(`^\.nixl_(\w+)\.mesonpy\.libs$`)

// variants returns NIXL's wheels in a site-packages folder: cu12, cu13, and others of the same layout.
func variants(site string) []string {
	entries, err := os.ReadDir(site)
	if site == "" || err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		if m := libsRule.FindStringSubmatch(e.Name()); m != nil {
			if _, err := os.Stat(filepath.Join(site, "nixl_"+m[1]+".libs")); err == nil {
				out = append(out, m[1])
			}
		}
	}
	return out
}

// readWheel reads a site-packages folder. Of several wheels it takes the one of cuda, or the one that NIXL's package
// nixl takes.
func readWheel(site, cuda string) (source, error) {
	if site == "" {
		return source{}, errNoWheel
	}
	site, err := filepath.Abs(site)
	if err != nil {
		return source{}, err
	}
	have := variants(site)
	if len(have) == 0 {
		return source{}, fmt.Errorf("no NIXL wheel in %s: --wheel takes the site-packages folder that has nixl-cu12 or nixl-cu13", site)
	}
	variant, why, err := choose(have, cuda, func() string { return torchCUDA(site) })
	if err != nil {
		return source{}, fmt.Errorf("--wheel %s: %w", site, err)
	}
	src, err := readVariant(site, variant)
	src.why = why
	return src, err
}

func readVariant(site, variant string) (source, error) {
	nixl, bundle := filepath.Join(site, ".nixl_"+variant+".mesonpy.libs"), filepath.Join(site, "nixl_"+variant+".libs")
	src := source{origin: origin{wheel: site, variant: variant}, folders: []string{nixl, bundle},
		plugins: map[string]string{}, libs: map[string]string{}}
	err := list(filepath.Join(bundle, "nixl"), src.plugins, func(e os.DirEntry) bool { return strings.Contains(e.Name(), ".so") })
	if err != nil {
		return source{}, fmt.Errorf("--wheel %s: no stock plugins: %w", site, err)
	}
	for _, folder := range src.folders {
		err := list(folder, src.libs, func(e os.DirEntry) bool {
			if e.IsDir() {
				return e.Name() != "nixl" && e.Name() != "plugins" // the stock plugins: linked one by one
			}
			return strings.Contains(e.Name(), ".so")
		})
		if err != nil {
			return source{}, err
		}
	}
	return src, nil
}

// ofWheel finds the wheel that a plugin folder belongs to. A wheel has two plugin folders.
func ofWheel(dir string) (site, variant string, ok bool) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", "", false
	}
	above := filepath.Dir(real)
	site = filepath.Dir(above)
	for _, v := range variants(site) {
		if real == filepath.Join(site, "nixl_"+v+".libs", "nixl") || real == filepath.Join(site, ".nixl_"+v+".mesonpy.libs", "plugins") {
			return site, v, true
		}
	}
	return "", "", false
}

// choose chooses as NIXL's package nixl does: the CUDA that torch was built for, else the first in its order. cuda is
// the operator's choice.
func choose(have []string, cuda string, torch func() string) (variant, why string, err error) {
	names := "nixl-" + strings.Join(have, " and nixl-")
	if cuda != "" {
		if !slices.Contains(have, "cu"+cuda) {
			return "", "", fmt.Errorf("--cuda %s: there is only %s", cuda, names)
		}
		return "cu" + cuda, "--cuda " + cuda, nil
	}
	if len(have) == 1 {
		return have[0], "", nil
	}
	if version := torch(); version != "" {
		if !slices.Contains(have, "cu"+version) {
			return "", "", fmt.Errorf("torch is built for CUDA %s, and there are %s: install nixl-cu%s, or choose with --cuda", version, names, version)
		}
		return "cu" + version, "torch is built for CUDA " + version, nil
	}
	for _, v := range append([]string{"cu13", "cu12"}, have...) {
		if slices.Contains(have, v) {
			return v, "of " + names + ": without a torch for CUDA, NIXL's package nixl takes it, too", nil
		}
	}
	return "", "", errors.New("no wheel")
}

var torchRule = regexp.MustCompile(`(?m)^cuda\s*(?::[^=\n]*)?=\s*['"](\d+)`)

// torchCUDA returns the major CUDA version that torch was built for, or "". It reads torch's file, as NIXL does: an
// import of torch takes seconds.
func torchCUDA(site string) string {
	text, err := os.ReadFile(filepath.Join(site, "torch", "version.py"))
	if err != nil {
		python := filepath.Join(site, "..", "..", "..", "bin", "python3") // the folder's own, in a venv
		if _, err := os.Stat(python); err != nil {
			python = "python3"
		}
		if text, err = os.ReadFile(filepath.Join(find(python)["torch"], "version.py")); err != nil {
			return ""
		}
	}
	if m := torchRule.FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return ""
}

// find asks an interpreter for the folders of NIXL's packages and torch, without importing them.
func find(python string) map[string]string {
	const ask = `import sys
sys.path = [p for p in sys.path if p]
import importlib.util as u
for n in ("nixl_cu13", "nixl_cu12", "nixl_rocm", "torch"):
    s = u.find_spec(n)
    if s and s.submodule_search_locations: print(n, s.submodule_search_locations[0])`
	found := map[string]string{}
	out, err := exec.Command(python, "-c", ask).Output()
	if err != nil {
		return found
	}
	for line := range strings.Lines(string(out)) {
		name, dir, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		found[strings.TrimPrefix(name, "nixl_")] = dir
	}
	return found
}

// pathPython is looked up in PATH.
const pathPython = "python3"

// pythons are the interpreters to ask, in this order: that of the environment that the program is installed in, that of PATH, the one beside the
// program, and that of the source tree whose build folder has it.
func pythons(program string) []string {
	const name = pathPython
	bin := filepath.Dir(program)
	beside, tree := filepath.Join(bin, name), filepath.Join(bin, "..", ".venv", "bin", name)
	if pkg := filepath.Dir(bin); filepath.Base(pkg) == "nixl_gorail" { // venv/lib/python3.N/site-packages/nixl_gorail
		return []string{filepath.Join(pkg, "..", "..", "..", "..", "bin", name), name, tree}
	}
	if _, err := os.Stat(filepath.Join(bin, "..", "pyvenv.cfg")); err == nil {
		return []string{beside, name, tree}
	}
	return []string{name, beside, tree} // an activated environment comes before /usr/bin
}

// runnable reports whether root, this user or an owner of the program has put an interpreter where it is: it is run.
func runnable(python, program string) bool {
	ours := append(host.Owners(program), 0, uint32(os.Geteuid()))
	link, isLink := owned(os.Lstat(python))
	file, isFile := owned(os.Stat(python))
	return isLink && isFile && slices.Contains(ours, link) && slices.Contains(ours, file) && trusted(filepath.Dir(python), ours) == nil
}

func owned(i os.FileInfo, err error) (uid uint32, ok bool) {
	if err != nil {
		return 0, false
	}
	s, ok := i.Sys().(*syscall.Stat_t)
	return s.Uid, ok
}

// findFirst is what the first interpreter that has a wheel finds. by is that interpreter; "": none has one.
func findFirst(pythons []string) (found map[string]string, by string) {
	for _, p := range pythons {
		if found = find(p); len(found) > 1 || len(found) == 1 && found["torch"] == "" {
			return found, p
		}
	}
	return found, ""
}

// FindWheel finds the site-packages folder of a wheel: NIXL_WHEEL_DIR, then the wheel that one of pythons imports. It returns
// "" if there is none. If it has several wheels in several folders, the choice is that of choose.
func FindWheel(cuda string) string {
	if dir := os.Getenv("NIXL_WHEEL_DIR"); dir != "" {
		return dir
	}
	return findWheels(cuda).Where
}

// OneWheel names one wheel of a site-packages folder ("": that of FindWheel), as package nixlapi takes it: the folder itself, or with several wheels
// the package that choose chooses.
func OneWheel(site, cuda string) (string, error) {
	if site = cmp.Or(site, FindWheel(cuda)); site == "" {
		return "", errNoWheel
	}
	have := variants(site)
	if len(have) < 2 && cuda == "" {
		return site, nil
	}
	variant, _, err := choose(have, cuda, func() string { return torchCUDA(site) })
	if err != nil {
		return "", fmt.Errorf("--wheel %s: %w", site, err)
	}
	return filepath.Join(site, "nixl_"+variant), nil
}

// installed is the folder where meson install puts the plugin, relative to the prefix or absolute. The build sets it.
var installed = ""

// FindPlugin finds libplugin_GORAIL.so: in GORAIL_PLUGIN_DIR, beside the program, in the installed folder, in ../lib
// from the program, in ./build unless another user could replace that. It returns the last path that it tried if there is none.
func FindPlugin() string {
	var dirs []string
	if dir := os.Getenv("GORAIL_PLUGIN_DIR"); dir != "" {
		dirs = append(dirs, dir)
	}
	if exe, err := os.Executable(); err == nil {
		bin := filepath.Dir(exe)
		dirs = append(dirs, bin)
		if filepath.IsAbs(installed) {
			dirs = append(dirs, installed)
		} else if installed != "" {
			dirs = append(dirs, filepath.Join(filepath.Dir(bin), installed))
		}
		dirs = append(dirs, filepath.Join(filepath.Dir(bin), "lib")) // the Python package
	}
	if build, err := filepath.Abs("build"); err == nil { // somebody else's folder may be the current one
		if w, err := host.TrustedFolder(build); err == nil {
			w.Close()
			dirs = append(dirs, "build")
		}
	}
	path := ""
	for _, dir := range dirs {
		path = filepath.Join(dir, prefix+own+".so")
		if _, err := os.Stat(path); err == nil {
			break
		}
	}
	return path
}
