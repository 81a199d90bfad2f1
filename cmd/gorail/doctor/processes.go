package doctor

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"gorail/backend/provider/auto"
	"gorail/backend/topo"
)

// processes tries shared memory with a second process. A child may be read by its parent even under Yama, so the child
// reads us.
func (s *checker) processes() {
	s.namespaces()
	wanted := slices.Contains(s.opt.Provider, auto.Word) || slices.Contains(s.opt.Provider, auto.SharedMemory)
	if s.Try.ReadMe == nil {
		return
	}
	scope, filter := topo.Word(s.Proc, "sys/kernel/yama/ptrace_scope"), s.status("Seccomp")
	err := s.Try.ReadMe(s.opt)
	if err == nil || !wanted {
		s.Pass("yama", "ptrace_scope %s", map[bool]string{true: "is not there: a kernel without Yama", false: scope}[scope == ""])
		s.Pass("seccomp", "mode %s", orUnknown(filter))
		if err != nil {
			s.Pass("process-vm", "%v (not needed: option provider has no sm)", err)
		} else {
			s.Pass("process-vm", "a second process of this user can read this one's memory")
		}
		return
	}
	switch text := err.Error(); {
	case strings.Contains(text, "Yama"):
		remedy, commands := "set option ptracer (GORAIL_PTRACER=on) for all processes, or kernel.yama.ptrace_scope=0", []string{"export GORAIL_PTRACER=on", "sysctl kernel.yama.ptrace_scope=0"}
		if scope != "1" {
			remedy, commands = "set kernel.yama.ptrace_scope=0, or grant CAP_SYS_PTRACE; ptrace_scope 3 stays until the next boot", commands[1:]
		}
		// Transfers go over sockets then: the much slower way is a FAIL.
		s.Fail("yama", fmt.Sprintf("Yama's ptrace_scope %s forbids shared memory between processes of this host: %s", scope, text), remedy, commands...)
	case filter == "2" && (strings.Contains(text, "seccomp") || strings.Contains(text, "not permitted") || strings.Contains(text, "not implemented")):
		s.Fail("seccomp", "a seccomp filter forbids shared memory between processes of this host: "+text, "use a profile that allows process_vm_readv, process_vm_writev, pidfd_open and prctl, or set option provider without sm",
			"docker run --security-opt seccomp=unconfined ...", "docker run --cap-add SYS_PTRACE ...")
	default:
		s.Fail("process-vm", "processes of this host cannot share memory: "+text, "do what the text says, or set option provider without sm: tcp, for example")
	}
}

func (s *checker) namespaces() {
	var parts []string
	for _, name := range []string{"user", "pid", "net"} {
		if to, err := fs.ReadLink(s.Proc, "self/ns/"+name); err == nil {
			parts = append(parts, to)
		}
	}
	text := fmt.Sprintf("user %d, %s", s.UID, orUnknown(strings.Join(parts, " ")))
	if m := strings.Fields(topo.Word(s.Proc, "self/uid_map")); len(m) >= 3 && m[2] != "4294967295" {
		text += "; a user namespace of its own"
	}
	s.Pass("namespaces", "%s", text)
}
