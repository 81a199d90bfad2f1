package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"gorail/backend/provider"
	"gorail/backend/provider/shm"
	"gorail/backend/stats"
	"gorail/backend/topo"
)

// processes tries shared memory with a second process. A child may be read by its parent even under Yama, so the child
// reads us.
func (s *checker) processes() {
	if s.Try.Reach != nil {
		s.shared()
	}
	if s.Try.Socket != nil {
		s.statsSocket() // after local-dir: it makes a folder, as the first engine does
	}
}

func (s *checker) shared() {
	if !slices.Contains(s.opt.Provider, provider.Auto) && !slices.Contains(s.opt.Provider, provider.SharedMemory) {
		for _, id := range []string{"yama", "seccomp", "process-vm", "local-dir"} {
			s.Pass(id, "not needed: option provider has no sm")
		}
		return
	}
	way, err := s.Try.Reach(s.opt)
	s.access(way, err)
	s.localDir()
}

// access says what keeps us from direct copies.
func (s *checker) access(way string, err error) {
	scope, filter := topo.Word(s.Proc, "sys/kernel/yama/ptrace_scope"), s.status("Seccomp")
	if err == nil && way == "" {
		s.Pass("yama", "ptrace_scope %s", map[bool]string{true: "is not there: a kernel without Yama", false: scope}[scope == ""])
		s.Pass("seccomp", "mode %s", orUnknown(filter))
		s.Pass("process-vm", "a second process of this user can read this one's memory")
		return
	}
	text, lost, judge := way, "direct copies between processes of this host: peers take the ring, which copies twice", s.Warn
	if err != nil {
		text, lost, judge = err.Error(), "shared memory between processes of this host", s.Fail
	}
	switch {
	case strings.Contains(text, "Yama"):
		remedy, commands := "set option ptracer (GORAIL_PTRACER=on) for all processes, or kernel.yama.ptrace_scope=0", []string{"export GORAIL_PTRACER=on", "sysctl kernel.yama.ptrace_scope=0"}
		if scope != "1" {
			remedy, commands = "set kernel.yama.ptrace_scope=0, or grant CAP_SYS_PTRACE; ptrace_scope 3 stays until the next boot", commands[1:]
		}
		judge("yama", fmt.Sprintf("Yama's ptrace_scope %s forbids %s: %s", scope, lost, text), remedy, commands...)
	case filter == "2" && (strings.Contains(text, "seccomp") || strings.Contains(text, "not permitted") || strings.Contains(text, "not implemented")):
		judge("seccomp", fmt.Sprintf("a seccomp filter forbids %s: %s", lost, text), "use a profile that allows process_vm_readv, process_vm_writev, pidfd_open and prctl, or set option provider without sm",
			"docker run --security-opt seccomp=unconfined ...", "docker run --cap-add SYS_PTRACE ...")
	default:
		judge("process-vm", fmt.Sprintf("something forbids %s: %s", lost, text), "do what the text says, or set option provider without sm: tcp, for example")
	}
}

// localDir tries the folder where peers of other network namespaces meet us.
func (s *checker) localDir() {
	path, err := s.Try.LocalDir(s.opt)
	const use = "peers in other network namespaces of this host "
	switch {
	case path == "":
		s.Pass("local-dir", "local_dir=off: "+use+"use the network")
		return
	case err == nil:
		s.Pass("local-dir", use+"meet us in %s", path)
		return
	}
	text := use + "use the network: " + err.Error()
	remedy := "mount a folder of the host at " + path + " in all containers of the host, for root with mode 755, for other users with mode 1777 (docs/kubernetes.md)"
	switch missing := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EACCES); {
	case s.opt.LocalDir != shm.AutoDir:
		s.Fail("local-dir", text, remedy, "mkdir -m 1777 "+path)
	case missing && !s.contained():
		s.Pass("local-dir", "%s (not needed outside of containers)", text)
	default:
		s.Warn("local-dir", text, remedy, "mkdir -m 1777 "+path)
	}
}

// statsSocket tries the folders where an engine puts the socket that readers look for.
func (s *checker) statsSocket() {
	const readers = "gorail top, stats and metrics "
	folders := stats.FoldersOf(s.opt.StatsSocket, func(name string) string { value, _ := s.getenv(name); return value })
	var why, commands []string
	for _, folder := range folders {
		err := s.Try.Socket(folder)
		if err == nil {
			s.Pass("stats-socket", readers+"find engines of this user in %s", folder)
			return
		}
		why = append(why, err.Error())
		if e, ok := errors.AsType[*stats.FolderError](err); ok && e.Do != "" {
			commands = []string{e.Do} // of the last folder, /run/gorail: it is not one user's
		}
	}
	if len(folders) == 0 {
		s.Pass("stats-socket", "stats_socket=off: "+readers+"see no engine")
		return
	}
	s.Warn("stats-socket", readers+"see no engine of this user: "+strings.Join(why, "; "), "make a folder that this user may write to, of mode 1777 for several users; containers mount one of the host there (docs/stats.md)", commands...)
}

// contained says that this process is in another pid namespace than the kernel's first, such as a container's.
func (s *checker) contained() bool {
	const first = "pid:[4026531836]" // PROC_PID_INIT_INO
	to, err := fs.ReadLink(s.Proc, "self/ns/pid")
	return err == nil && to != first
}
