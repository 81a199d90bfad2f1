// Package native builds the C parts of tests: imitated libraries, and programs with sanitizers. The folder also has the
// C code that the imitated libraries share: board.h, names.h and dmabuf.h. Package board controls a loaded library.
//
// Go builds them instead of meson, so that `go test` of one package works in a bare checkout. Results are kept in
// build/native under a hash of their sources, flags and compiler. Each version is thus compiled once per machine.
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
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"gorail/test/skip"
	"gorail/test/testenv"
)

// Part is a shared library or a program in C or C++. Paths are relative to the module's root.
type Part struct {
	Name      string // file name
	Program   bool   // a program instead of a library
	CPlusPlus bool   // in C++; Dirs has C alone
	Sources   []string
	Dirs      []string // all *.c of each are sources too
	Include   []string // folders for headers
	Exports   string   // version script of a library
	SOName    string   // of a library
	Flags     []string // further flags
	Libs      []string // -ldl
}

// Missing is the error for a capability that this machine lacks.
type Missing struct{ What string }

func (m *Missing) Error() string { return m.What }

// Build compiles the part if needed, and returns a copy for this test: a process that loads two copies has two
// libraries. The test is skipped if the machine lacks a compiler, a header or a sanitizer.
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

// Copy copies a file made by Make. No process is forked meanwhile: it would inherit the descriptor, and to run the copy would fail with
// ETXTBSY until that process calls exec.
func Copy(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(to, text, 0o755)
}

func (p Part) compiler() string {
	if p.CPlusPlus {
		return "g++"
	}
	return "gcc"
}

var versions sync.Map // by compiler, of this process

// version returns what a compiler says about itself.
func version(compiler string) (string, error) {
	if v, ok := versions.Load(compiler); ok {
		return v.(string), nil
	}
	out, err := exec.Command(compiler, "--version").Output()
	if err == nil {
		versions.Store(compiler, string(out))
	}
	return string(out), err
}

// Make compiles the part if needed, and returns its path in the cache. The error is a Missing if the machine lacks
// something.
func (p Part) Make() (string, error) {
	version, err := version(p.compiler())
	if err != nil {
		return "", &Missing{"no " + p.compiler() + " here"}
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
	// Tests and packages run in parallel: one of them compiles, and the others wait.
	unlock, err := lock(made + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(made); err == nil {
		return made, nil
	}
	own, err := os.MkdirTemp(dir, p.Name)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(own)
	out := filepath.Join(own, p.Name)
	if text, err := exec.Command(p.compiler(), append(args, "-o", out)...).CombinedOutput(); err != nil {
		return "", p.why(fmt.Errorf("%s: %s: %w\n%s", p.Name, p.compiler(), err, text))
	}
	return made, os.Rename(out, made)
}

// lock waits until no other test, of any process, holds the lock of this file. The lock ends with its process.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// command returns the compiler's arguments and the files that the result depends on.
func (p Part) command() (args, inputs []string, err error) {
	std := "-std=gnu17"
	if p.CPlusPlus {
		std = "-std=c++20"
	}
	args = []string{std, "-O1", "-g1", "-Wall", "-Wextra", "-Werror"} // -g1: lines of backtraces
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

// absent matches the error for a missing header of a system library.
var absent = regexp.MustCompile(`fatal error: ((?:infiniband|rdma)/\S+): No such file`)

// why converts the compiler's error to a Missing if the machine is the reason.
func (p Part) why(err error) error {
	if m := absent.FindStringSubmatch(err.Error()); m != nil {
		return &Missing{"no header " + m[1] + " here"}
	}
	for _, f := range p.Flags {
		if strings.HasPrefix(f, "-fsanitize=") && !links(p.compiler(), f) {
			return &Missing{"the " + p.compiler() + " here has no " + f}
		}
	}
	return err
}

// links reports whether a program can be linked with a flag.
func links(compiler, flag string) bool {
	c := exec.Command(compiler, flag, "-x", "c", "-", "-o", "/dev/null")
	c.Stdin = strings.NewReader("int main(void) { return 0; }\n")
	return c.Run() == nil
}

// At returns a path below the repository's root.
func At(elem ...string) string { return filepath.Join(append([]string{testenv.Root()}, elem...)...) }

// cache returns a folder for build results: a new one for this process if the checkout is read-only.
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
