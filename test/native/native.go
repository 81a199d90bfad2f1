// Package native builds the C parts of tests: imitated libraries, and programs that run under sanitizers. The folder also
// has the C that the imitated libraries share: board.h, names.h and dmabuf.h. Package board drives a loaded library.
//
// Go builds them instead of meson, so that `go test` of one package works in a bare checkout. What was built is kept in
// build/native under a hash of its sources, flags and compiler, so that each change is compiled once on a machine.
package native

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"gorail/test/skip"
)

// Part is a shared library or a program in C. Paths are relative to the root of the module.
type Part struct {
	Name    string // of its file
	Program bool   // not a library
	Sources []string
	Dirs    []string // all *.c of each are sources, too
	Include []string // folders for headers
	Exports string   // of a library: its version script
	SOName  string   // of a library
	Flags   []string // further ones
	Libs    []string // -ldl
}

// Missing is the error of what this machine lacks.
type Missing struct{ What string }

func (m *Missing) Error() string { return m.What }

// Build compiles the part if need be, and gives a copy of the test's own: a process that loads two copies has two
// libraries. The test is skipped where the machine lacks a compiler, a header or a sanitizer.
func (p Part) Build(t testing.TB) string {
	t.Helper()
	made, err := p.Make()
	if missing, ok := errors.AsType[*Missing](err); ok {
		skip.OrFail(t, missing)
	}
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), p.Name)
	if err := Copy(made, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// Copy copies a file that Make has made.
func Copy(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o755)
}

const compiler = "gcc"

// Make compiles the part if need be, and gives its path in the cache. The error is a Missing for what the machine lacks.
func (p Part) Make() (string, error) {
	version, err := exec.Command(compiler, "--version").Output()
	if err != nil {
		return "", &Missing{"no " + compiler + " here"}
	}
	args, inputs, err := p.command()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n%q\n", version, args)
	for _, f := range inputs {
		text, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n%s", f, len(text), text)
	}
	dir, err := cache()
	if err != nil {
		return "", err
	}
	made := filepath.Join(dir, p.Name+"-"+hex.EncodeToString(sum.Sum(nil))[:16])
	if _, err := os.Stat(made); err == nil {
		return made, nil
	}
	// Packages are tested side by side: the first one that is ready wins.
	own, err := os.MkdirTemp(dir, p.Name)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(own)
	out := filepath.Join(own, p.Name)
	if text, err := exec.Command(compiler, append(args, "-o", out)...).CombinedOutput(); err != nil {
		return "", p.why(fmt.Errorf("%s: %s: %w\n%s", p.Name, compiler, err, text))
	}
	return made, os.Rename(out, made)
}

// command is what the compiler is called with, and the files that the result depends on.
func (p Part) command() (args, inputs []string, err error) {
	args = []string{"-std=gnu17", "-O1", "-g", "-Wall", "-Wextra", "-Werror"}
	if !p.Program {
		args = append(args, "-shared", "-fPIC")
	}
	if p.SOName != "" {
		args = append(args, "-Wl,-soname,"+p.SOName)
	}
	if p.Exports != "" {
		inputs = append(inputs, At(p.Exports))
		args = append(args, "-Wl,--version-script="+At(p.Exports))
	}
	for _, dir := range p.Include {
		args = append(args, "-I"+At(dir))
	}
	sources := slices.Clone(p.Sources)
	for _, dir := range p.Dirs {
		found, err := filepath.Glob(At(dir, "*.c"))
		if err != nil || len(found) == 0 {
			return nil, nil, fmt.Errorf("%s: no sources in %s (%w)", p.Name, dir, err)
		}
		for _, f := range found {
			sources = append(sources, filepath.Join(dir, filepath.Base(f)))
		}
	}
	args = append(args, p.Flags...)
	folders := slices.Clone(p.Include)
	for _, f := range sources {
		args, inputs = append(args, At(f)), append(inputs, At(f))
		folders = append(folders, filepath.Dir(f))
	}
	slices.Sort(folders)
	for _, dir := range slices.Compact(folders) {
		headers, _ := filepath.Glob(At(dir, "*.h"))
		inputs = append(inputs, headers...)
	}
	return append(append(args, p.Libs...), "-pthread"), inputs, nil
}

// absent finds a header of a system library that is not installed.
var absent = regexp.MustCompile(`fatal error: ((?:infiniband|rdma)/\S+): No such file`)

// why turns the compiler's error into a Missing where the machine is the reason.
func (p Part) why(err error) error {
	if m := absent.FindStringSubmatch(err.Error()); m != nil {
		return &Missing{"no header " + m[1] + " here"}
	}
	for _, f := range p.Flags {
		if strings.HasPrefix(f, "-fsanitize=") && !links(f) {
			return &Missing{"the " + compiler + " here has no " + f}
		}
	}
	return err
}

// links says whether a program can be linked with a flag.
func links(flag string) bool {
	c := exec.Command(compiler, flag, "-x", "c", "-", "-o", "/dev/null")
	c.Stdin = strings.NewReader("int main(void) { return 0; }\n")
	return c.Run() == nil
}

// At is a path below the root of the module.
func At(elem ...string) string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(append([]string{filepath.Dir(file), "..", ".."}, elem...)...)
}

// cache is a folder for what was built: a new one for this process where the checkout cannot be written.
var cache = sync.OnceValues(func() (string, error) {
	dir := At("build", "native")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return os.MkdirTemp("", "gorail-native")
	}
	probe, err := os.MkdirTemp(dir, "probe")
	if err != nil {
		return os.MkdirTemp("", "gorail-native")
	}
	return dir, os.Remove(probe)
})
