package engine

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider/fake"
	"gorail/backend/status"
)

// A stats_file that could not be written at the end is refused at the beginning; nothing is left behind either way.
func TestStatsFileChecked(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	require.NoError(t, os.WriteFile(plain, []byte("old"), 0o644))
	for name, c := range map[string]struct {
		file string
		says string // "": it is good
	}{
		"no folder":         {filepath.Join(dir, "none", "s.json"), "no such file or directory"},
		"a folder":          {dir, "it is a folder"},
		"a file for folder": {filepath.Join(plain, "s.json"), "not a directory"},
		"new":               {filepath.Join(dir, "new.json"), ""},
		"there":             {plain, ""},
		"none":              {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			opt, _, err := option.Parse(map[string]string{"stats_file": c.file}, nil)
			require.NoError(t, err)
			f := fake.NewFabric(1)
			e, err := New(Config{Agent: "a", Options: opt, Provider: f.Provider(), Log: slog.New(slog.DiscardHandler)})
			defer func() { require.NoError(t, f.Close()) }()
			if c.says != "" {
				require.ErrorContains(t, err, c.says)
				require.ErrorContains(t, err, "option stats_file=")
				require.Equal(t, status.ErrInvalidParam, status.Of(err))
				return
			}
			require.NoError(t, err)
			if name == "new" {
				_, err := os.Stat(c.file)
				require.ErrorIs(t, err, fs.ErrNotExist, "nothing is created before the end")
			}
			require.NoError(t, e.Close())
		})
	}
}
