package topo

import (
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// tree reads sysfs. Files are opened through links by the file system itself; where a link leads is found here.
type tree struct{ fs.FS }

// word is a file's content without the line's end, "" where it cannot be read.
func (t tree) word(name string) string { return Word(t.FS, name) }

// Word is what a file of sysfs says, without the line's end; "" where it can't be read.
func Word(sys fs.FS, name string) string {
	b, err := fs.ReadFile(sys, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (t tree) number(name string, unknown int) int {
	n, err := strconv.Atoi(t.word(name))
	if err != nil {
		return unknown
	}
	return n
}

func (t tree) has(name string) bool {
	_, err := fs.Stat(t.FS, name)
	return err == nil
}

func (t tree) isDir(name string) bool {
	info, err := fs.Stat(t.FS, name)
	return err == nil && info.IsDir()
}

// names lists a folder in natural order; nothing where there is none.
func (t tree) names(dir string) []string {
	list, err := fs.ReadDir(t.FS, dir)
	if err != nil {
		return nil
	}
	names := make([]string, len(list))
	for i, e := range list {
		names[i] = e.Name()
	}
	slices.SortFunc(names, Natural)
	return names
}

// uevent finds a value in the file of that name.
func (t tree) uevent(dir, key string) string {
	for line := range strings.Lines(t.word(dir + "/uevent")) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
			return v
		}
	}
	return ""
}

// link is the last part of where a link leads: the name of a driver, a bus, a bridge.
func (t tree) link(name string) string {
	at, ok := t.follow(name)
	if !ok {
		return ""
	}
	return path.Base(at)
}

// resolve is the path without links of a file that is there.
func (t tree) resolve(name string) (string, bool) {
	at, ok := t.follow(name)
	return at, ok && t.has(at)
}

// follow replaces every link on a path by what it stands for; what it leads to need not be there. ok is false where the
// name isn't there, or leads out of the tree or in circles. A file system that knows no links has none.
func (t tree) follow(name string) (at string, ok bool) {
	if _, err := fs.Lstat(t.FS, name); err != nil {
		return "", false
	}
	const most = 40 // links, the kernel's own limit
	var done []string
	todo := strings.Split(name, "/")
	for links := 0; len(todo) > 0; {
		part := todo[0]
		todo = todo[1:]
		if part == "" || part == "." {
			continue
		}
		if part == ".." {
			if len(done) == 0 {
				return "", false
			}
			done = done[:len(done)-1]
			continue
		}
		target, err := fs.ReadLink(t.FS, path.Join(strings.Join(done, "/"), part))
		if err != nil {
			done = append(done, part)
			continue
		}
		if links++; links > most || path.IsAbs(target) {
			return "", false
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return strings.Join(done, "/"), len(done) > 0
}

// pci is the path of the PCI function that a device is or hangs on. Where no links are to be had, its address alone.
func (t tree) pci(device string) PCIPath {
	if p := parsePCIPath(device); p != nil {
		return p
	}
	if slot := t.uevent(device, "PCI_SLOT_NAME"); slot != "" {
		return PCIPath{slot}
	}
	return nil
}

// numa is told by the device or the nearest one above it that knows.
func (t tree) numa(device string) int {
	for dir := device; dir != "." && dir != "devices"; dir = path.Dir(dir) {
		if w := t.word(dir + "/numa_node"); w != "" {
			return max(-1, t.number(dir+"/numa_node", -1))
		}
	}
	return -1
}
