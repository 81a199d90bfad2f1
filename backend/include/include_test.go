package include_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/include"
)

// The hashes in the packages' flags are those of the headers.
func TestGenerated(t *testing.T) {
	for _, user := range include.Users {
		text, err := os.ReadFile(filepath.Join("../..", user, include.File))
		require.NoError(t, err)
		require.Equal(t, include.Source(user), string(text), "run: go generate ./backend/include")
	}
}
