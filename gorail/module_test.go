package main

import (
	"archive/zip"
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestImports: the tool imports nothing below test/. The plugin imports nothing of the tool, and only these modules, in the versions that the
// tool is built with.
func TestImports(t *testing.T) {
	for pkg, barred := range map[string][]string{
		"gorail/gorail/...": {"gorail/test/"},
		"gorail/plugin":     {"gorail/test/", "gorail/nixlapi", "gorail/internal/", "gorail/gorail"},
	} {
		deps := list(t, "auto", "{{.ImportPath}}", pkg)
		require.Contains(t, deps, "gorail/backend/option", "%s has other packages of the module", pkg)
		for _, dep := range deps {
			for _, prefix := range barred {
				require.False(t, strings.HasPrefix(dep, prefix), "%s imports %s", pkg, dep)
			}
		}
	}
	const module = "{{with .Module}}{{if .Version}}{{.Path}}@{{.Version}}{{end}}{{end}}"
	alone, with := list(t, "off", module, "gorail/plugin"), list(t, "auto", module, "gorail/gorail")
	var names []string
	for _, m := range alone {
		require.Contains(t, with, m)
		names = append(names, strings.Split(m, "@")[0])
	}
	require.Equal(t, []string{"github.com/fxamacker/cbor/v2", "github.com/maruel/natural", "github.com/vishvananda/netlink", "github.com/vishvananda/netns",
		"github.com/x448/float16", "golang.org/x/sys", "golang.org/x/time"}, names)
}

// list returns what a package and its imports are, sorted. work is GOWORK.
func list(t *testing.T, work, format, pkg string) []string {
	t.Helper()
	c := exec.Command("go", "list", "-deps", "-f", format, pkg)
	c.Dir = ".."
	c.Env = append(os.Environ(), "GOWORK="+work)
	out, err := c.Output()
	require.NoError(t, err)
	return slices.Compact(slices.Sorted(strings.FieldsSeq(string(out))))
}

// Go downloads only modules whose first path element has a dot. The archives therefore have this path in place of gorail.
const (
	published     = "gorail.test/gorail"
	moduleVersion = "v0.0.1"
	toolFolder    = "gorail" // a module of its own
)

// TestGoInstall: `go install` builds the tool from the archives of both modules, with only regular files.
func TestGoInstall(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles everything anew: 20 s")
	}
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	dir := t.TempDir()
	proxy := filepath.Join(dir, "proxy")
	archive(t, root, published, filepath.Join(proxy, published, "@v"))
	archive(t, filepath.Join(root, toolFolder), published+"/"+toolFolder, filepath.Join(proxy, published, toolFolder, "@v"))

	env, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	require.NoError(t, err)
	cache, upstream, _ := strings.Cut(strings.TrimSpace(string(env)), "\n")
	bin := filepath.Join(dir, "bin")
	install := exec.Command("go", "install", published+"/"+toolFolder+"@"+moduleVersion)
	install.Dir = dir
	// Dependencies come from this machine's cache if present. -trimpath makes build results reusable.
	install.Env = append(os.Environ(), "GOBIN="+bin, "GOMODCACHE="+filepath.Join(dir, "cache"), "GOSUMDB=off", "GOWORK=off",
		"GOFLAGS=-mod=mod -modcacherw -trimpath", "GOPROXY=file://"+proxy+",file://"+cache+"/cache/download,"+upstream)
	out, err := install.CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(filepath.Join(bin, "gorail"), "plugins", "--help").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "gorail plugins --dir")
}

// archive packs a module into the folder @v, as a proxy does: without modules below it.
func archive(t *testing.T, root, module, to string) {
	require.NoError(t, os.MkdirAll(to, 0o755))
	var packed bytes.Buffer
	z := zip.NewWriter(&packed)
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		_, err = os.Stat(filepath.Join(path, "go.mod"))
		if ignored(rel) || d.IsDir() && err == nil {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			return nil
		}
		require.True(t, d.Type().IsRegular(), "%s is no regular file: module archives drop it", rel)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text = publish(rel, text)
		if rel == "go.mod" {
			require.NoError(t, os.WriteFile(filepath.Join(to, moduleVersion+".mod"), text, 0o644))
		}
		w, err := z.Create(module + "@" + moduleVersion + "/" + rel)
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	}))
	require.NoError(t, z.Close())
	for name, text := range map[string]string{moduleVersion + ".zip": packed.String(), "list": moduleVersion + "\n",
		moduleVersion + ".info": `{"Version":"` + moduleVersion + `","Time":"2026-01-01T00:00:00Z"}`} {
		require.NoError(t, os.WriteFile(filepath.Join(to, name), []byte(text), 0o644))
	}
}

// ignored reports whether git ignores a path (see .gitignore).
func ignored(rel string) bool {
	first, _, _ := strings.Cut(rel, "/")
	for _, pattern := range []string{".git", ".venv", ".cache", "build*"} {
		if ok, _ := filepath.Match(pattern, first); ok {
			return true
		}
	}
	base := filepath.Base(rel)
	return base == "__pycache__" || strings.HasSuffix(base, ".test") || strings.HasSuffix(base, ".prof") || strings.HasSuffix(base, ".btr")
}

// publish replaces the modules' paths in a file with the archives', and the version of the plugin's that the tool's requires.
func publish(rel string, text []byte) []byte {
	switch {
	case rel == "go.mod":
		text = bytes.Replace(text, []byte("module gorail"), []byte("module "+published), 1)
		return regexp.MustCompile(`\tgorail v\S+\n`).ReplaceAll(text, []byte("\t"+published+" "+moduleVersion+"\n"))
	case strings.HasSuffix(rel, ".go"):
		return bytes.ReplaceAll(text, []byte(`"gorail/`), []byte(`"`+published+`/`))
	}
	return text
}
