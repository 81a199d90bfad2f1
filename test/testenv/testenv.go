// Package testenv tells tests which NIXL wheel, plugin and interpreter to use. It skips a test (or fails it under CI)
// if one is missing.
package testenv

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"gorail/nixlapi"
	"gorail/test/skip"
)

// Variables that select what is tested.
const (
	EnvBackend = "GORAIL_TEST_BACKEND" // plugin name, default GORAIL
	EnvPlugins = "GORAIL_PLUGIN_DIR"   // folder of libplugin_<backend>.so
	EnvWheel   = "NIXL_WHEEL_DIR"      // site-packages with nixl-cu12
	EnvPython  = "GORAIL_PYTHON"       // interpreter that imports nixl_cu12
	EnvPatient = "GORAIL_TEST_PATIENT" // a whole number: multiplies the time limits of Patient
)

// Patient returns a time limit of a test, longer on a slow machine.
func Patient(d time.Duration) time.Duration {
	if n, err := strconv.Atoi(os.Getenv(EnvPatient)); err == nil && n > 0 {
		return d * time.Duration(n)
	}
	return d
}

// TB is the used part of testing.TB, so that a program which imports worker does not import testing.
type TB interface {
	Helper()
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
	Cleanup(func())
}

// Env has the values of the variables.
type Env struct {
	Backend   string
	PluginDir string
	WheelDir  string
	Python    string
}

func or(key, fallback string) string {
	if v := os.Getenv(key); v != "" {
		return v
	}
	return fallback
}

// Tool is the path of the built tool.
func Tool() string { return filepath.Join(Root(), "build", "gorail") }

// Root returns the repository: the nearest parent folder with a go.work.
func Root() string {
	dir, err := os.Getwd()
	if err != nil {
		return "."
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.work")); err == nil {
			return d
		}
		if d == filepath.Dir(d) {
			return dir
		}
	}
}

// Load resolves the variables without checking that files exist.
func Load() Env {
	root := Root()
	e := Env{
		Backend:  or(EnvBackend, "GORAIL"),
		WheelDir: os.Getenv(EnvWheel),
		Python:   or(EnvPython, filepath.Join(root, ".venv", "bin", "python")),
	}
	if e.WheelDir == "" {
		found, _ := filepath.Glob(filepath.Join(root, ".venv", "lib", "python3*", "site-packages"))
		if len(found) > 0 {
			e.WheelDir = found[0]
		}
	}
	e.PluginDir = e.PluginDirOf(e.Backend)
	return e
}

// PluginDirOf returns the folder of a backend's plugin: the folder under test if it has the plugin, else the wheel's
// own.
func (e Env) PluginDirOf(backend string) string {
	dir := or(EnvPlugins, filepath.Join(Root(), "build"))
	if _, err := os.Stat(filepath.Join(dir, PluginFile(backend))); err == nil {
		return dir
	}
	if stock := nixlapi.PluginDir(e.WheelDir); e.WheelDir != "" {
		if _, err := os.Stat(filepath.Join(stock, PluginFile(backend))); err == nil {
			return stock
		}
	}
	return dir
}

// PluginFile returns the file name that NIXL looks for.
func PluginFile(backend string) string { return "libplugin_" + backend + ".so" }

// Check returns an error if a needed file is missing.
func (e Env) Check() error {
	if e.WheelDir == "" {
		return fmt.Errorf("no NIXL wheel: pip install --no-deps nixl-cu12 numpy into .venv, or set %s", EnvWheel)
	}
	if _, err := nixlapi.LibDir(e.WheelDir); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(e.PluginDir, PluginFile(e.Backend))); err != nil {
		return fmt.Errorf("no plugin %s: build it, or set %s (%w)", e.Backend, EnvPlugins, err)
	}
	return nil
}

// PluginFolder makes dir a folder with GORAIL, the wheel's plugins and GORAIL under other names, by the built tool. It returns the folder
// for NIXL_PLUGIN_DIR.
func (e Env) PluginFolder(dir string, as ...string) (string, error) {
	args := []string{"plugins", "--json", "--dir", dir, "--wheel", e.WheelDir, "--plugin", filepath.Join(e.PluginDirOf("GORAIL"), PluginFile("GORAIL"))}
	for _, name := range as {
		args = append(args, "--as", name)
	}
	c := exec.Command(Tool(), args...)
	var says bytes.Buffer
	c.Stderr = &says
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("gorail plugins: %w: %s", err, &says)
	}
	var made struct{ Plugins string }
	err = json.Unmarshal(out, &made)
	return made.Plugins, err
}

// CheckPython returns an error if the interpreter is missing.
func (e Env) CheckPython() error {
	if _, err := os.Stat(e.Python); err != nil {
		return fmt.Errorf("no interpreter with NIXL: set %s (%w)", EnvPython, err)
	}
	return nil
}

// Need loads the environment, or skips the test.
func Need(t TB) Env {
	t.Helper()
	e := Load()
	skip.OrFail(t, e.Check())
	return e
}
