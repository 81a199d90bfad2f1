package include_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/internal/include"
)

// TestGenerated: the generated flags hold the hashes of the current headers.
func TestGenerated(t *testing.T) {
	for _, user := range include.Users {
		text, err := os.ReadFile(filepath.Join("../..", user.Dir, include.File))
		require.NoError(t, err)
		want, err := user.Source(os.DirFS("../.."))
		require.NoError(t, err)
		require.Equal(t, want, string(text), "run: go generate ./internal/include")
	}
}
