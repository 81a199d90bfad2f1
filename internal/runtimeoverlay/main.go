// Runtimeoverlay writes the overlay (go build -overlay) with which the plugin's copy of Go's runtime is built, and prints the command
// that builds with it. The overlay is made from the sources of the toolchain that builds:
//
//   - As a library, the runtime knows SIGBUS, SIGFPE, SIGSEGV and glibc's own two signals, and no others. It installs handlers for the
//     first three only, and unblocks these five on its threads. The rest of the mask is that of the thread which loads the plugin, and
//     the shim has blocked all there (cshim/host_signals.cpp).
//   - As a library, it preempts no goroutine by SIGURG.
//
// A program is built with the same sources and keeps its signals, so that the tool shares compiled packages with the plugin.
//
// If a source is not as expected, it writes nothing and exits with an error: that version of Go has to be looked at first.
//
// Usage: go run ./internal/runtimeoverlay -go GO -out FOLDER. FOLDER must last until go build has ended.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	tool, out := flag.String("go", "go", "the go command that builds"), flag.String("out", "", "folder of the overlay")
	flag.Parse()
	if err := write(*tool, *out); err != nil {
		fmt.Fprintln(os.Stderr, "runtimeoverlay:", err)
		os.Exit(1)
	}
}

// write writes the overlay for a go command to a folder, and prints the lines of a command: env, its settings, go, build, and the flag.
func write(tool, out string) error {
	b, err := exec.Command(tool, "env", "GOROOT", "GOMODCACHE", "GOVERSION").Output()
	if err != nil {
		return fmt.Errorf("%s env: %w", tool, err)
	}
	env := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(env) != 3 {
		return fmt.Errorf("%s env printed %q", tool, b)
	}
	version := env[2]
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o777); err != nil {
		return err
	}
	root, err := outside(env[0], env[1], out)
	if err != nil {
		return err
	}
	replace := map[string]string{}
	for name, change := range changes {
		from, to := filepath.Join(root, "src/runtime", name), filepath.Join(out, name)
		src, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if src, err = change(src); err != nil {
			return fmt.Errorf("%s of %s: %w. This version of Go may need other changes (internal/runtimeoverlay); build with another one",
				from, version, err)
		}
		if err := os.WriteFile(to, src, 0o666); err != nil {
			return err
		}
		replace[from] = to
	}
	b, err = json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	list := filepath.Join(out, "overlay.json")
	if root != env[0] { // the go command of another folder would go back to the cache
		tool = filepath.Join(root, "bin/go")
	}
	fmt.Printf("env\nGOROOT=%s\nGOTOOLCHAIN=local\n%s\nbuild\n-overlay=%s\n", root, tool, list)
	return os.WriteFile(list, b, 0o666)
}

// outside returns a path of the toolchain's root that is not below the module cache: go build refuses to replace files there. A toolchain
// that the go command has downloaded is there; it gets a symbolic link.
func outside(root, cache, out string) (string, error) {
	if !strings.HasPrefix(root, cache+string(filepath.Separator)) {
		return root, nil
	}
	link := filepath.Join(out, "goroot")
	_ = os.Remove(link)
	return link, os.Symlink(root, link)
}

// What signal_unix.go has, and what it gets instead.
const (
	preempts   = "\nconst preemptMSupported = true\n"
	mayPreempt = "\nvar preemptMSupported = true\n"
	earlier    = "\tif (isarchive || islibrary) && !preinit {\n\t\treturn\n\t}\n\n"
	installs   = "\tfor i := uint32(0); i < _NSIG; i++ {\n"
)

// changes are the files of package runtime that the overlay replaces, or only looks at: then the change returns what it got.
var changes = map[string]func([]byte) ([]byte, error){
	"sigtab_linux_generic.go": func(src []byte) ([]byte, error) { return src, table(src) },
	"signal_unix.go": func(src []byte) ([]byte, error) {
		for _, part := range []string{preempts, earlier + installs} {
			if n := bytes.Count(src, []byte(part)); n != 1 {
				return nil, fmt.Errorf("%d parts are %q, not one", n, strings.TrimSpace(part))
			}
		}
		src = bytes.Replace(src, []byte(preempts), []byte(mayPreempt), 1)
		return bytes.Replace(src, []byte(earlier+installs), []byte(earlier+forget()+installs), 1), nil
	},
}
