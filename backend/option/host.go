package option

import (
	"errors"
	"path/filepath"
)

// Host sets how peers of one host share memory.
type Host struct {
	CopyThreads  int // -1: by the number of processors
	CopyForPeers bool
	Ptracer      bool
	LocalDir     string // "auto", "off" or a folder
	LocalPeers   string // SameUser or AnyWithToken
}

// Values of LocalPeers.
const (
	SameUser     = "same-user"
	AnyWithToken = "any-with-token"
)

// setFolder takes `auto`, `off` or the path of a folder.
func setFolder(field *string, v string) error {
	if *field = v; v != "auto" && v != "off" && !filepath.IsAbs(v) {
		return errors.New("not an absolute path")
	}
	return nil
}
