package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/backend/provider"
	"gorail/backend/provider/shm/ipc"
)

// proofLen is the size of a proof: place of our sockets, address of the secret bytes, and the bytes.
const proofLen = ipc.PlaceSize + 8 + ipc.TokenSize

// Proof implements provider.Host. The layout is place, address of the secret bytes, the bytes.
func (r *rail) Proof() []byte {
	bytes := r.core.Proof()
	b := r.listener.Place().Append(nil)
	b = binary.BigEndian.AppendUint64(b, uint64(uintptr(unsafe.Pointer(&bytes[0]))))
	return append(b, bytes...)
}

// Reach implements provider.Host. The kernel names the user of the process that listens at the proof's place. In our
// namespaces process_vm_readv of the secret bytes shows that we may read that process's memory. In all other cases
// the ring serves the peer, and way says why. The error says what forbids the connection and what would help.
func (r *rail) Reach(proof []byte) (way string, err error) {
	if len(proof) != proofLen {
		return "", fmt.Errorf("%w: proof has %d bytes instead of %d", provider.ErrBadAddress, len(proof), proofLen)
	}
	place, ok := ipc.Decode(proof)
	if !ok {
		return "", fmt.Errorf("%w: proof names no sockets: %x", provider.ErrBadAddress, proof[:ipc.PlaceSize])
	}
	p := ipc.Proof{Place: place, At: binary.BigEndian.Uint64(proof[ipc.PlaceSize:]), Bytes: ipc.Token(proof[ipc.PlaceSize+8:])}
	if err := r.meets(&place); err != nil {
		return "", err
	}
	to, err := p.Reach(r.host)
	switch {
	case err == nil && to.Direct:
		return "", nil
	case err == nil:
		return fmt.Sprintf("ring, mapped where it is a shared memory file (%s)", to.Why+r.advice(to.Errno)), nil
	}
	var e *ipc.Error
	_ = errors.As(err, &e)
	what := e.Step
	if to.PID != 0 {
		what = fmt.Sprintf("%s, process %d", what, to.PID)
	}
	return "", fmt.Errorf("%s: %w%s", what, e.Errno, r.hint(e))
}

// meets says why a peer with this place cannot connect to us.
func (r *rail) meets(peer *ipc.Place) error {
	own := r.listener.Place()
	if own.NetNS == peer.NetNS && own.NetNS != 0 || own.File != (ipc.File{}) {
		return nil
	}
	why := r.noFolder
	if err := r.listener.NotInside(); err != nil {
		why = err
	}
	if why == nil {
		return nil // ipc.Dial has the text
	}
	return fmt.Errorf("the peer is in another network namespace, and we have no socket in a folder: %w", why)
}

// hint is the advice of an error, or what its number says, in parentheses.
func (r *rail) hint(e *ipc.Error) string {
	if e.Advice != "" {
		return " (" + e.Advice + ")"
	}
	return accessHint(e.Errno)
}

// advice says what forbids direct copies.
func (r *rail) advice(errno unix.Errno) string {
	if errno == 0 {
		return ""
	}
	return accessHint(errno)
}

// accessHint says what forbids access to another process's memory, and what would help.
func accessHint(errno syscall.Errno) string {
	switch errno {
	case syscall.EPERM:
		switch ptraceScope() {
		case "1":
			return " (Yama's scope is 1: only an ancestor may access the memory; set option ptracer at the peer, or sysctl kernel.yama.ptrace_scope=0, or grant CAP_SYS_PTRACE)"
		case "2":
			return " (Yama's scope is 2: grant CAP_SYS_PTRACE, or sysctl kernel.yama.ptrace_scope=0)"
		case "3":
			return " (Yama's scope is 3, which forbids the access until the next boot)"
		}
		return " (the peer's user or group ids differ, the peer is not dumpable, or seccomp forbids the call: run both as one user and group, allow process_vm_readv and process_vm_writev)"
	case syscall.EACCES:
		return " (the peer runs as another user: run both as one user, or set local_peers=any-with-token at both)"
	case syscall.EOVERFLOW:
		return " (the peer's user has no id in this user namespace: map the same users in both, or set local_peers=any-with-token at both)"
	case syscall.EAGAIN:
		return " (the backlog of the peer's socket is full)"
	case syscall.ENOSYS:
		return " (seccomp forbids the call, or the kernel lacks CONFIG_CROSS_MEMORY_ATTACH)"
	case syscall.ESRCH, syscall.EBADMSG, syscall.EFAULT:
		return " (the peer has ended, or another process answers in its place)"
	}
	return ""
}

// lateCopy explains a timed-out wait for a copy: which process makes the copy, and what delays that process. who is
// the value of cma_late: process << 8 | state.
func lateCopy(who uint64) string {
	process, state := "another process", byte(who)
	switch pid := int(who >> 8); pid {
	case 0:
	case os.Getpid():
		process = "this process"
	default:
		process = fmt.Sprintf("process %d", pid)
	}
	is := "is slow: starved of CPU time, or waiting for memory (swap, userfaultfd, FUSE)"
	switch state {
	case 'T':
		is = "is stopped by a signal"
	case 't':
		is = "is stopped by a debugger"
	case 0:
		is = "may be stopped, or starved of CPU time"
	}
	return fmt.Sprintf(" (%s %s; its copy is unfinished and may still touch the memory)", process, is)
}

// ptraceScope is Yama's ptrace_scope; "" without Yama.
func ptraceScope() string {
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
