package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"gorail/backend/status"
)

// checkStatsFile finds out before the engine is made whether its counters can be written when it closes: nobody reads a warning then.
// Nothing is created or opened.
func checkStatsFile(file string) error {
	if file == "" {
		return nil
	}
	bad := func(what string, err error) error {
		return status.Errorf(status.ErrInvalidParam, "option stats_file=%q: %s: %w; give a file in a folder that exists and that this process may write to", file, what, err)
	}
	dir := filepath.Dir(file)
	switch at, err := os.Stat(file); {
	case err == nil && at.IsDir():
		return bad("it is a folder", unix.EISDIR)
	case err == nil:
		if err := unix.Access(file, unix.W_OK); err != nil {
			return bad("the file that is there", err)
		}
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR):
		return bad("look at the file", err)
	default:
		if err := unix.Access(dir, unix.F_OK); err != nil {
			return bad("folder "+dir, err)
		}
		if at, err := os.Stat(dir); err != nil || !at.IsDir() {
			return bad("folder "+dir, errors.Join(err, unix.ENOTDIR))
		}
		if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
			return bad("folder "+dir, err)
		}
	}
	return nil
}
