package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestImports: the tool needs nothing below test/, and the plugin nothing of the tool's.
func TestImports(t *testing.T) {
	for pkg, barred := range map[string][]string{
		"gorail/cmd/...": {"gorail/test/"},
		"gorail/plugin":  {"gorail/test/", "gorail/nixlapi", "gorail/internal/", "gorail/cmd/"},
	} {
		out, err := exec.Command("go", "list", "-deps", pkg).Output()
		require.NoError(t, err)
		deps := strings.Fields(string(out))
		require.Contains(t, deps, "gorail/backend/option", "%s has other packages of the module", pkg)
		for _, dep := range deps {
			for _, prefix := range barred {
				require.False(t, strings.HasPrefix(dep, prefix), "%s imports %s", pkg, dep)
			}
		}
	}
}
