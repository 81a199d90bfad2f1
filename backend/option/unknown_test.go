package option

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNearest(t *testing.T) {
	for name, want := range map[string]string{
		"device": "devices", "Devices": "devices", "device_list": "devices", "max_rail": "max_rails", "xfer_timout": "xfer_timeout",
		"railmax": "", "num_threads": "copy_threads", "stats": "", "stats_fil": "stats_file", "statsfile": "stats_file", "oob_interface": "control_devices",
		"timeout": "", "made_up": "", "libfabric": "libfabric_path", "qps_per_rial": "qps_per_rail", "": "", "lgo": "log",
	} {
		assert.Equal(t, want, Unknowns([]string{name})[0].Near, name)
	}
	for _, r := range table {
		assert.Equal(t, r.Name, nearest(r.Name))
	}
	assert.Equal(t, "device (did you mean devices?)", Unknowns([]string{"device"})[0].String())
	assert.Equal(t, "made_up", Unknowns([]string{"made_up"})[0].String())
}

// An option of an earlier version says so, as a parameter and as a variable.
func TestGone(t *testing.T) {
	for name, why := range gone {
		assert.False(t, Known(name), name)
		assert.Equal(t, name+" (is gone: "+why+")", Unknowns([]string{name})[0].String())
		assert.Equal(t, []Unknown{{Name: env(name), Gone: why}}, UnknownVariables([]string{env(name) + "=x"}))
	}
}

func TestUnknownVariables(t *testing.T) {
	got := UnknownVariables([]string{"PATH=/bin", "GORAIL_DEVICES=lo", "GORAIL_DEVICE=lo", "GORAIL_ZZZ=1", "GORAIL_EMPTY=", "gorail_log=info",
		"GORAIL_TEST_CUDA=1", "GORAIL_PLUGIN_DIR=/x", "GORAIL_FABRIC=kind=cxi", "GORAIL_FABRIC_CUDA=x", "GORAIL_FABRICS=x", "GORAIL_=1", "GORAIL"})
	assert.Equal(t, []Unknown{{Name: "GORAIL_"}, {Name: "GORAIL_DEVICE", Near: "GORAIL_DEVICES"}, {Name: "GORAIL_FABRICS"}, {Name: "GORAIL_ZZZ"}}, got)
}

// The variables of this module's own tests and tools are known, so that running them logs no warning.
func TestToolsVariablesAreKnown(t *testing.T) {
	named := regexp.MustCompile(`\bGORAIL_[A-Z][A-Z0-9_]*[A-Z0-9]\b`)
	notVariables := regexp.MustCompile(`_H$|^GORAIL_VERSION$|^GORAIL_DEVICE$`) // C macros; a misspelling in tests
	files := 0
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && (name == "build" || name == "docs" || strings.HasPrefix(name, ".") && name != "..") {
			return filepath.SkipDir
		}
		switch filepath.Ext(path) {
		case ".go", ".py", ".sh", ".c", ".h", ".cpp":
		default:
			return nil
		}
		if filepath.Base(path) == "unknown_test.go" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		for line := range strings.Lines(string(text)) {
			if !strings.Contains(line, "GORAIL_") { // the race detector makes the expression slow
				continue
			}
			for _, name := range named.FindAllString(line, -1) {
				if !notVariables.MatchString(name) {
					assert.Empty(t, UnknownVariables([]string{name + "=1"}), path)
				}
			}
		}
		return nil
	}))
	assert.Greater(t, files, 100)
}
