// Package held tells how many bytes of a file's memory a process holds: what it maps, and what its descriptors keep. The memory of the
// imitated GPUs (test/cuda) is such files, and so is shared memory of the host. The account is the kernel's, so it is right for
// processes that are stopped, in other namespaces, or killed.
package held

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// By returns the bytes that a process holds of each of some files, given by their inodes. A process that has ended holds none.
func By(pid int, inodes ...uint64) (uint64, error) {
	files, err := All(pid)
	var sum uint64
	for _, inode := range inodes {
		sum += files[inode]
	}
	return sum, err
}

// All returns what a process holds of all files without a name, by inode.
func All(pid int) (map[uint64]uint64, error) {
	files := map[uint64]uint64{}
	err := errors.Join(mapped(pid, files), opened(pid, files))
	if unix.Kill(pid, 0) == unix.ESRCH || zombie(pid) {
		return nil, nil
	}
	return files, err
}

// zombie reports whether a process has ended and was not waited for.
func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, ok := bytes.Cut(b, []byte(") "))
	return err != nil || ok && state[0] == 'Z'
}

// nameless: memfds, files of O_TMPFILE, removed files, and the imitation's files in a node's folder.
func nameless(path string) bool {
	return strings.HasPrefix(path, "/memfd:") || strings.HasSuffix(path, " (deleted)") || strings.HasPrefix(filepath.Base(path), "gpu-")
}

// mapped adds the mappings of a process. The lengths of one file's are added up, at most to its largest end.
func mapped(pid int, files map[uint64]uint64) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		var from, to, offset, inode uint64
		var flags, dev string
		n, _ := fmt.Sscanf(in.Text(), "%x-%x %s %x %s %d", &from, &to, &flags, &offset, &dev, &inode)
		i := strings.IndexByte(in.Text(), '/')
		if n == 6 && inode != 0 && i > 0 && nameless(in.Text()[i:]) {
			files[inode] = max(files[inode], offset+to-from)
		}
	}
	return nil
}

// opened adds what the descriptors of a process keep: the whole file.
func opened(pid int, files map[uint64]uint64) error {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, fd := range list {
		if _, e := strconv.Atoi(fd.Name()); e != nil {
			continue
		}
		var st unix.Stat_t
		path := filepath.Join(dir, fd.Name())
		if what, e := os.Readlink(path); e == nil && nameless(what) && unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			files[st.Ino] = max(files[st.Ino], uint64(st.Size))
		}
	}
	return err
}
