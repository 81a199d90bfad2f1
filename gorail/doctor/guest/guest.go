// Package guest looks at a process that has loaded the plugin: what docs/host.md promises, as /proc shows it.
package guest

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"gorail/gorail/doctor"
)

// open are the signals that threads of the plugin leave open: a blocked fault ends the process without the host's handler. 32 and 33 are
// glibc's own.
var open = []unix.Signal{unix.SIGKILL, unix.SIGSTOP, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, 32, 33}

// process is a folder of /proc.
type process struct {
	*doctor.Report
	dir string
}

// Look adds the checks of a process. proc is /proc, or a folder like it. What the caller may not read is a FAIL that says so.
func Look(r *doctor.Report, proc string, pid int) {
	p := process{r, filepath.Join(proc, strconv.Itoa(pid))}
	if p.plugin() {
		p.threads()
		p.handlers()
		p.descriptors()
		p.room()
	}
}

// plugin looks for the plugin among the process's files.
func (p process) plugin() bool {
	f, err := os.Open(filepath.Join(p.dir, "maps"))
	if err != nil {
		p.Fail("guest-plugin", fmt.Sprintf("cannot look at the process: %v", err), "run gorail doctor as the process's user, or as root")
		return false
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) >= 6 && strings.HasPrefix(filepath.Base(fields[5]), "libplugin_GORAIL") {
			p.Pass("guest-plugin", "the process has loaded %s", fields[5])
			return true
		}
	}
	p.Fail("guest-plugin", "the process has not loaded libplugin_GORAIL.so", "name the process that makes the agent: its line in gorail ps")
	return false
}

// status reads a status file: of the process, or of a thread.
func status(dir string) map[string]string {
	b, _ := os.ReadFile(filepath.Join(dir, "status"))
	out := map[string]string{}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		out[key] = strings.TrimSpace(value)
	}
	return out
}

// mask is a field of status that is a set of signals.
func mask(fields map[string]string, key string) uint64 {
	m, _ := strconv.ParseUint(fields[key], 16, 64)
	return m
}

// names lists the signals of a set.
func names(set uint64) string {
	var out []string
	for sig := unix.Signal(1); sig <= 64; sig++ {
		if set&(1<<(sig-1)) == 0 {
			continue
		}
		name := unix.SignalName(sig)
		if name == "" {
			name = strconv.Itoa(int(sig))
		}
		out = append(out, name)
	}
	return strings.Join(out, ", ")
}

// threads counts the plugin's threads, and compares their masks.
func (p process) threads() {
	dirs, _ := filepath.Glob(filepath.Join(p.dir, "task", "*"))
	count, takes := map[string]int{}, map[string]uint64{}
	want := ^uint64(0)
	for _, sig := range open {
		want &^= 1 << (sig - 1)
	}
	for _, dir := range dirs {
		s := status(dir)
		name := s["Name"]
		if !strings.HasPrefix(name, "gorail") {
			continue
		}
		count[name]++
		if missing := want &^ mask(s, "SigBlk"); missing != 0 {
			takes[name] |= missing
		}
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(count)) {
		list = append(list, fmt.Sprintf("%d %s", count[name], name))
	}
	p.Pass("guest-threads", "%d threads: %s", len(dirs), strings.Join(list, ", "))
	if len(takes) == 0 {
		p.Pass("guest-masks", "the plugin's threads take no signal of the host")
	}
	for _, name := range slices.Sorted(maps.Keys(takes)) {
		p.Fail("guest-masks", fmt.Sprintf("a thread %s takes signals of the host: %s", name, names(takes[name])), "report it as a bug, with this line")
	}
}

func (p process) handlers() {
	s := status(p.dir)
	p.Pass("guest-handlers", "handled: %s; ignored: %s. The plugin's own are SIGBUS, SIGFPE and SIGSEGV, until the host installs others",
		names(mask(s, "SigCgt")), names(mask(s, "SigIgn")))
}

// limit is a soft limit of the process, or -1.
func (p process) limit(name string) int64 {
	b, _ := os.ReadFile(filepath.Join(p.dir, "limits"))
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			if n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64); err == nil {
				return n
			}
		}
	}
	return -1
}

// descriptors counts descriptors by what they are.
func (p process) descriptors() {
	links, _ := filepath.Glob(filepath.Join(p.dir, "fd", "*"))
	count := map[string]int{}
	for _, link := range links {
		to, err := os.Readlink(link)
		kind, _, _ := strings.Cut(to, ":")
		switch {
		case err != nil:
			continue
		case strings.HasPrefix(to, "/memfd:"):
			kind = "memfd"
		case strings.HasPrefix(to, "/"):
			kind = "file"
		case strings.HasPrefix(to, "anon_inode:"):
			kind = strings.Trim(strings.TrimPrefix(to, "anon_inode:"), "[]")
		}
		count[kind]++
	}
	var list []string
	for _, kind := range slices.Sorted(maps.Keys(count)) {
		list = append(list, fmt.Sprintf("%d %s", count[kind], kind))
	}
	text := fmt.Sprintf("%d descriptors: %s", len(links), strings.Join(list, ", "))
	if most := p.limit("Max open files"); most >= 0 && int64(len(links))*10 > most*9 {
		p.Warn("guest-descriptors", fmt.Sprintf("%s; the limit is %d", text, most), "raise the limit before the process starts (ulimit -n)")
		return
	}
	p.Pass("guest-descriptors", "%s", text)
}

// room compares addresses and threads with the process's limits.
func (p process) room() {
	s := status(p.dir)
	kib, _, _ := strings.Cut(s["VmSize"], " ")
	size, _ := strconv.ParseInt(kib, 10, 64)
	text := fmt.Sprintf("%d MiB of addresses, %s resident", size>>10, s["VmRSS"])
	if most := p.limit("Max address space"); most >= 0 && size<<10 > most/10*9 {
		p.Warn("guest-room", fmt.Sprintf("%s; the limit is %d MiB", text, most>>20), "raise the limit before the process starts (ulimit -v)")
		return
	}
	p.Pass("guest-room", "%s", text)
}
