package native

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMake: a part is compiled once for each state of its sources, headers and flags.
func TestMake(t *testing.T) {
	dir, err := filepath.Rel(At(), t.TempDir())
	require.NoError(t, err)
	write := func(name, text string) { require.NoError(t, os.WriteFile(At(dir, name), []byte(text), 0o644)) }
	write("main.c", "#include \"value.h\"\nint main(void) { return VALUE; }\n")
	write("value.h", "#define VALUE 3\n")
	p := Part{Name: "native-test", Program: true, Dirs: []string{dir}}
	ends := func(p Part) int {
		path := p.Build(t)
		c := exec.Command(path)
		_ = c.Run()
		return c.ProcessState.ExitCode()
	}
	require.Equal(t, 3, ends(p))
	first, err := p.Make()
	require.NoError(t, err)
	again, err := p.Make()
	require.NoError(t, err)
	require.Equal(t, first, again)

	write("value.h", "#ifndef VALUE\n#define VALUE 4\n#endif\n")
	require.Equal(t, 4, ends(p))
	flag := p
	flag.Flags = []string{"-DVALUE=5"}
	require.Equal(t, 5, ends(flag))
	for _, p := range []Part{p, flag, {}} {
		if made, err := p.Make(); err == nil {
			remove(t, made)
		}
	}
	remove(t, first)
}

func remove(t *testing.T, made string) {
	require.NoError(t, os.Remove(made))
	require.NoError(t, os.Remove(made+".lock"))
}

// TestMakeAtOnce: tests that want the same part at the same time wait for one compiler.
func TestMakeAtOnce(t *testing.T) {
	real, err := exec.LookPath(Part{}.compiler())
	if err != nil {
		t.Skip(err)
	}
	tmp := t.TempDir()
	count := filepath.Join(tmp, "count")
	script := "#!/bin/sh\n[ \"$1\" = --version ] || echo >>" + count + "\nexec " + real + " \"$@\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(tmp, Part{}.compiler()), []byte(script), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(tmp, "main.c"), []byte("int main(void) { return 0; }\n"), 0o644))
	t.Setenv("PATH", tmp+":"+os.Getenv("PATH"))
	dir, err := filepath.Rel(At(), tmp)
	require.NoError(t, err)
	p := Part{Name: "native-test", Program: true, Dirs: []string{dir}}

	made := make(chan string, 4)
	for range cap(made) {
		go func() {
			path, err := p.Make()
			if err != nil {
				path = err.Error()
			}
			made <- path
		}()
	}
	first := <-made
	for range cap(made) - 1 {
		require.Equal(t, first, <-made)
	}
	compiled, err := os.ReadFile(count)
	require.NoError(t, err)
	require.Equal(t, "\n", string(compiled))
	remove(t, first)
}

// TestMissing: missing headers and sanitizers are distinguished from mistakes.
func TestMissing(t *testing.T) {
	dir, err := filepath.Rel(At(), t.TempDir())
	require.NoError(t, err)
	p := Part{Name: "native-test", Program: true, Dirs: []string{dir}}
	for text, missing := range map[string]bool{
		"#include <infiniband/nosuch.h>\n": true,
		"#include <nosuch.h>\n":            false,
		"int main(void) { return 0 }\n":    false,
	} {
		require.NoError(t, os.WriteFile(At(dir, "main.c"), []byte(text), 0o644))
		_, err := p.Make()
		require.Error(t, err)
		var m *Missing
		if missing {
			require.ErrorAs(t, err, &m)
		} else {
			require.NotErrorAs(t, err, &m)
		}
	}
	require.NoError(t, os.WriteFile(At(dir, "main.c"), []byte("int main(void) { return 0; }\n"), 0o644))
	p.Flags = []string{"-fsanitize=nosuch"}
	_, err = p.Make()
	var m *Missing
	require.ErrorAs(t, err, &m)
}
