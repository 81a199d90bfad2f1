package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// envAttack makes this test binary an attacker: it holds an assault. The attacker prints its loot and ends.
const envAttack = "GORAIL_TEST_ATTACK"

// assault says whom a process attacks, as whom.
type assault struct {
	User  int      // 0: stays who it is
	Own   bool     // mounts a /proc of its own pid namespace
	Pid   int      // the victim's process number, in the victim's namespace
	Addr  uint64   // of registered memory of the victim
	Names []string // of the victim's unix sockets, as /proc/net/unix has them
	Ports []string // of the victim's control channel
	Flood int      // threads that connect to Names, and do nothing else, until standard input ends
}

// loot is what the attacker could do.
type loot struct {
	Listed  int  // names that it found in /proc/net/unix
	Named   int  // connections to unix sockets that the kernel made
	Answers int  // of those, how many got an answer or a descriptor
	Open    int  // of those, how many were open in the end
	Rights  int  // messages with descriptors that the kernel took
	Taken   int  // names that it took for itself, or to which it sent a datagram
	Control int  // control ports that it reached
	Memory  bool // it read the registered memory
	Wrote   bool // it could write there
	Opened  bool // it could open memory, descriptors or environment of the victim in /proc
	Signals bool // it may send signals
	Text    string
}

// maybeAttack runs an assault and exits, if the process was started for that.
func maybeAttack() {
	what := os.Getenv(envAttack)
	if what == "" {
		return
	}
	time.AfterFunc(4*limit, func() { os.Exit(3) })
	var a assault
	var l loot
	err := json.Unmarshal([]byte(what), &a)
	if err == nil {
		err = a.disguise()
	}
	if err == nil {
		a.act(&l)
		err = json.NewEncoder(os.Stdout).Encode(&l)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "attacker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// act does what the assault is.
func (a *assault) act(l *loot) {
	if a.Flood > 0 {
		a.flood(l)
		return
	}
	a.sockets(l)
	a.process(l)
	a.look(l)
}

// disguise makes the process who it is to be.
func (a *assault) disguise() error {
	if a.Own {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			return fmt.Errorf("mount /proc: %w", err)
		}
	}
	if a.User == 0 {
		return nil
	}
	if err := syscall.Setgroups(nil); err != nil {
		return err
	}
	if err := syscall.Setgid(a.User); err != nil {
		return err
	}
	return syscall.Setuid(a.User)
}

// hellos are first messages: nothing, junk, one of the right length with a wrong token, one that is too short or long.
func hellos() [][]byte {
	hello := append([]byte{0x34, 0x63, 0x6f, 0x6c, 0, 0x40, 0, 0}, "a token of nobody"...)[:24]
	return [][]byte{nil, []byte("junk"), hello, hello[:23], append(hello[:24:24], 0), make([]byte, 4096)}
}

// sockets connects to all that listens, says what the handshake does not expect, floods it with descriptors, and
// leaves the connections open.
func (a *assault) sockets(l *loot) {
	list, _ := os.ReadFile("/proc/net/unix")
	var open []int
	for _, name := range a.Names {
		if strings.Contains(string(list), name) {
			l.Listed++
		}
		to := &unix.SockaddrUnix{Name: name}
		for round := range 60 {
			if s := dialUnix(to); s >= 0 {
				l.Named++
				open = append(open, s)
				a.say(s, round, l)
			}
		}
		if s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
			if unix.Sendto(s, []byte("stray"), unix.MSG_DONTWAIT, to) == nil {
				l.Taken++
			}
			_ = unix.Close(s)
		}
		if s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); err == nil {
			if l.Listed > 0 && unix.Bind(s, to) == nil {
				l.Taken++
			}
			_ = unix.Close(s)
		}
	}
	for _, port := range a.Ports {
		if c, err := net.DialTimeout("tcp", port, limit); err == nil {
			l.Control++
			_, _ = c.Write(make([]byte, 64))
		}
	}
	l.Answers, l.Open = wait(open)
}

// flood connects as often as it can.
func (a *assault) flood(l *loot) {
	var over atomic.Bool
	var all sync.WaitGroup
	named := make([]int, a.Flood)
	for i := range named {
		all.Go(func() {
			for n := i; !over.Load(); n++ {
				s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
				if err != nil {
					continue
				}
				if unix.Connect(s, &unix.SockaddrUnix{Name: a.Names[n%len(a.Names)]}) == nil {
					named[i]++
				}
				_ = unix.Close(s)
			}
		})
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	over.Store(true)
	all.Wait()
	for _, n := range named {
		l.Named += n
	}
}

func dialUnix(to unix.Sockaddr) int {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	if unix.Connect(s, to) != nil {
		_ = unix.Close(s)
		return -1
	}
	return s
}

// say sends the first messages of a connection.
func (a *assault) say(s, round int, l *loot) {
	all := hellos()
	what := all[round%len(all)]
	if round%7 == 3 {
		time.Sleep(150 * time.Millisecond) // after the time for a token
	}
	if what != nil {
		_ = unix.Sendto(s, what, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, nil)
	}
	for range 1 + round%4 {
		rights := make([]int, 253) // of standard input
		if unix.Sendmsg(s, []byte("x"), unix.UnixRights(rights...), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT) == nil {
			l.Rights++
		}
	}
}

// wait reads from connections until they are closed, for a limit at most.
func wait(open []int) (answers, left int) {
	end := time.Now().Add(limit)
	for _, s := range open {
		b, oob := make([]byte, 64), make([]byte, 64)
		p := []unix.PollFd{{Fd: int32(s), Events: unix.POLLIN}}
		if n, _ := unix.Poll(p, int(max(0, time.Until(end).Milliseconds()))); n == 0 {
			left++
			continue
		}
		if n, oobn, _, _, err := unix.Recvmsg(s, b, oob, unix.MSG_DONTWAIT); err == nil && n+oobn > 0 {
			answers++
		}
	}
	return answers, left
}

// process tries what one process can do to another.
func (a *assault) process(l *loot) {
	b := make([]byte, 64)
	here := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	there := []unix.RemoteIovec{{Base: uintptr(a.Addr), Len: len(b)}}
	n, err := unix.ProcessVMReadv(a.Pid, here, there, 0)
	l.Memory = err == nil && n == len(b)
	if l.Memory { // the same bytes
		n, err = unix.ProcessVMWritev(a.Pid, here, there, 0)
		l.Wrote = err == nil && n == len(b)
	}
	proc := fmt.Sprintf("/proc/%d/", a.Pid)
	for _, name := range []string{"mem", "environ", "maps"} {
		if f, err := os.Open(proc + name); err == nil {
			_, err := f.Read(b)
			l.Opened = l.Opened || err == nil || name == "mem" // an address that is not mapped
			_ = f.Close()
		}
	}
	fds, _ := filepath.Glob(proc + "fd/*")
	l.Opened = l.Opened || len(fds) > 0
	if fd, err := unix.PidfdOpen(a.Pid, 0); err == nil {
		if _, err := unix.PidfdGetfd(fd, 0, 0); err == nil {
			l.Opened = true
		}
	}
	l.Signals = unix.Kill(a.Pid, 0) == nil
}

// look reads all that a process shows to others.
func (a *assault) look(l *loot) {
	var all strings.Builder
	proc := fmt.Sprintf("/proc/%d/", a.Pid)
	names := []string{"/proc/net/unix", proc + "cmdline", proc + "status", proc + "stat", proc + "comm", proc + "environ"}
	shared, _ := filepath.Glob("/dev/shm/*")
	for _, name := range append(names, shared...) {
		b, _ := os.ReadFile(name)
		fmt.Fprintf(&all, "%s\n%x\n%s\n", name, b, b)
	}
	l.Text = all.String()
}
