package topo

import (
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// tree reads sysfs. The file system itself opens files through links. follow resolves the target of a link.
type tree struct{ fs.FS }

// word returns a file's content without the end of line; "" if the file cannot be read.
func (t tree) word(name string) string { return Word(t.FS, name) }

// bytes returns a file's content; "" if the file cannot be read.
func (t tree) bytes(name string) string {
	b, err := fs.ReadFile(t.FS, name)
	if err != nil {
		return ""
	}
	return string(b)
}

// Word returns the content of a sysfs file without the end of line; "" if the file cannot be read.
func Word(sys fs.FS, name string) string {
	b, err := fs.ReadFile(sys, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Number reads a number of sysfs; unknown if there is none.
func Number(sys fs.FS, name string, unknown int) int { return tree{sys}.number(name, unknown) }

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

// names lists a folder in natural order. It returns nil if there is no folder.
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

// uevent finds the value of a key in a device's uevent file.
func (t tree) uevent(dir, key string) string {
	for line := range strings.Lines(t.word(dir + "/uevent")) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
			return v
		}
	}
	return ""
}

// link returns the last part of a link's target: the name of a driver, a bus, a bridge.
func (t tree) link(name string) string {
	at, ok := t.follow(name)
	if !ok {
		return ""
	}
	return path.Base(at)
}

// resolve returns the path of an existing file with all links resolved.
func (t tree) resolve(name string) (string, bool) {
	at, ok := t.follow(name)
	return at, ok && t.has(at)
}

// follow replaces every link on a path with its target. The final target need not exist. ok is false if the name does
// not exist, leads out of the tree or runs in circles. A file system without link support has no links.
func (t tree) follow(name string) (at string, ok bool) {
	if _, err := fs.Lstat(t.FS, name); err != nil {
		return "", false
	}
	const most = 40 // links; the kernel's own limit
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

// pci returns the path of a device's PCI function. Without resolvable links the path is only the function's address.
func (t tree) pci(device string) PCIPath {
	if p := parsePCIPath(device); p != nil {
		return p
	}
	if slot := t.uevent(device, "PCI_SLOT_NAME"); slot != "" {
		return PCIPath{slot}
	}
	return nil
}

// numa returns the NUMA node of the device, or of the nearest parent device with a numa_node file.
func (t tree) numa(device string) int {
	for dir := device; dir != "." && dir != "devices"; dir = path.Dir(dir) {
		if w := t.word(dir + "/numa_node"); w != "" {
			return max(-1, t.number(dir+"/numa_node", -1))
		}
	}
	return -1
}
