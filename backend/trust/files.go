package trust

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"time"
)

const (
	mostBytes = 1 << 20 // of a file; the CAs of a whole distribution take 250 KB
	// settles is how old a change must be for a stamp to tell it from the next: file systems count in steps of up to 2 s.
	settles = 2 * time.Second
	// tries bounds the reads of files that change while they are read.
	tries = 3
)

// file is a file that an option names.
type file struct{ option, path string }

// stamp tells one state of a file from another. It is of the file at the end of all symbolic links: Kubernetes renews a
// secret by a swap of a link above it.
type stamp struct {
	dev, inode        uint64
	size              int64
	modified, changed int64 // ns: of the contents, of the inode (rsync keeps the first)
}

// stamp returns the zero stamp for a file that is not there.
func (f file) stamp() stamp {
	info, err := os.Stat(f.path)
	if err != nil {
		return stamp{}
	}
	s := stamp{size: info.Size(), modified: info.ModTime().UnixNano()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.dev, s.inode, s.changed = sys.Dev, sys.Ino, sys.Ctim.Nano()
	}
	return s
}

// wide reports whether others than the owner may access the file.
func (f file) wide() (os.FileMode, bool) {
	info, err := os.Stat(f.path) // not given: no such file
	if err != nil {
		return 0, false
	}
	mode := info.Mode().Perm()
	return mode, mode&^0o600 != 0
}

func (f file) read() ([]byte, error) {
	info, err := os.Stat(f.path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.option, err)
	}
	if !info.Mode().IsRegular() { // opening a pipe would wait for its writer
		return nil, fmt.Errorf("%s=%s: not a regular file", f.option, f.path)
	}
	r, err := os.Open(f.path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.option, err)
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, mostBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.option, err)
	}
	if len(text) > mostBytes {
		return nil, fmt.Errorf("%s=%s: more than %d bytes; is it the right file?", f.option, f.path, mostBytes)
	}
	return text, nil
}

// source is files that are read together, and the value that they hold.
type source[T any] struct {
	files []file
	parse func(files []file, texts [][]byte) (T, error)

	held T
	good [sha256.Size]byte // digest of what held was made of
	seen [sha256.Size]byte // digest of the last read

	stamps []stamp // of the last read
	stable bool    // a later change gives other stamps
}

// look reads the files if they may have changed. changed: held is new. err: the contents are new and unusable, and held
// stays; the same contents give an error only once.
func (s *source[T]) look(now time.Time) (changed bool, err error) {
	if len(s.files) == 0 || s.stable && slices.Equal(s.stamps, s.stampAll()) {
		return false, nil
	}
	texts, err := s.readAll()
	s.stable = !slices.ContainsFunc(s.stamps, func(st stamp) bool { return now.Sub(time.Unix(0, st.modified)) < settles })
	sum := digest(texts, err)
	if sum == s.seen {
		return false, nil
	}
	s.seen = sum
	if sum == s.good {
		return false, nil // as before a bad change
	}
	if err != nil {
		return false, err
	}
	value, err := s.parse(s.files, texts)
	if err != nil {
		return false, err
	}
	s.held, s.good = value, sum
	return true, nil
}

func (s *source[T]) stampAll() []stamp {
	stamps := make([]stamp, len(s.files))
	for i, f := range s.files {
		stamps[i] = f.stamp()
	}
	return stamps
}

// readAll reads again what changes meanwhile, so that a link swapped between two files is no error.
func (s *source[T]) readAll() (texts [][]byte, err error) {
	for range tries {
		s.stamps = s.stampAll()
		texts, err = make([][]byte, len(s.files)), nil
		for i, f := range s.files {
			if texts[i], err = f.read(); err != nil {
				break
			}
		}
		if slices.Equal(s.stamps, s.stampAll()) {
			break
		}
	}
	return texts, err
}

// digest tells contents and errors of reading apart.
func digest(texts [][]byte, err error) [sha256.Size]byte {
	if err != nil {
		texts = [][]byte{[]byte(err.Error())}
	}
	var all []byte
	for _, t := range texts {
		all = append(binary.BigEndian.AppendUint64(all, uint64(len(t))), t...)
	}
	return sha256.Sum256(all)
}
