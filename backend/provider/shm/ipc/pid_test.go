package ipc

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/host"
)

// isolated runs in a pid namespace that is a sibling of its peer's.
func isolated([]string) error {
	l, err := Listen(16, SameUser)
	if err != nil {
		return err
	}
	fmt.Println(at(l))
	its := Proof{Place: *place(readLine()), At: 4096}
	to, err := its.Reach(&Host{})
	if err != nil || to.PID != 0 || to.Direct || to.Why != "the peer is in another pid namespace" {
		return fmt.Errorf("%+v %w", to, err)
	}
	c, err := l.anybody()
	if err != nil {
		return err
	}
	who, pidfd, err := c.Identify(SameUser, Ticks())
	if err != nil || who != (Process{0, true}) || pidfd >= 0 == noPeerPIDFD {
		return fmt.Errorf("%+v, pidfd %d, %w", who, pidfd, err)
	}
	fmt.Println("identified")
	readLine()
	if pidfd < 0 {
		var b [1]byte
		if n, err := c.Recv(b[:]); n != 0 || err != nil {
			return fmt.Errorf("%d bytes of an ended peer, %w", n, err)
		}
		return nil
	}
	if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 10000); n != 1 {
		return errors.New("the pidfd does not tell the peer's end")
	}
	return nil
}

// TestSiblingPids: two processes are process 1 of sibling pid namespaces. They do not access each other directly, and each
// learns of the end of the other.
func TestSiblingPids(t *testing.T) {
	bothLookups(t, func(t *testing.T) {
		a, b := start(t, "isolated", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}), start(t, "isolated", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID})
		one, two := a.line(), b.line()
		a.say(two)
		b.say(one)
		require.Equal(t, "identified", a.line())
		require.Equal(t, "identified", b.line())
		require.NoError(t, b.Process.Kill())
		a.say("wait")
		a.endedWell()
	})
}

// call connects, sends a message and ends. With "late" a child sends the message later, after the parent has ended.
func call(args []string) error {
	if args[0] == "child" {
		readLine()
		return unix.Sendmsg(3, []byte("x"), nil, nil, unix.MSG_NOSIGNAL)
	}
	c, err := Dial(place(args[1]), nil)
	if err != nil || args[0] == "now" {
		if err == nil {
			err = c.Send([]byte("x"))
		}
		return err
	}
	child := newProcess("call child", nil)
	child.Stdin = os.Stdin
	child.ExtraFiles = []*os.File{c.file}
	return child.Start()
}

// taken is renumber's exit status if it must be tried again.
const taken = 4

// renumber is process 1 of a pid namespace. It starts a process that connects and ends, and starts another one with
// the same number.
func renumber(args []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	l, err := Listen(16, SameUser)
	if err != nil {
		return err
	}
	peer := newProcess("call "+args[0]+" "+at(l), nil)
	go_, err := peer.StdinPipe()
	if err != nil {
		return err
	}
	if err := peer.Start(); err != nil {
		return err
	}
	pid := peer.Process.Pid
	if _, err := peer.Process.Wait(); err != nil {
		return err
	}
	c, err := l.Accept()
	if err != nil {
		return err
	}
	since := Ticks()
	for Ticks() < since+2 {
	}
	for {
		if _, err := os.Stat(fmt.Sprint("/proc/self/task/", pid)); err == nil { // a thread of ours has the number now
			os.Exit(taken)
		}
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0); err != nil {
			return err
		}
		other := newProcess("sleep", nil)
		if err := other.Start(); err != nil {
			return err
		}
		if other.Process.Pid == pid {
			break
		}
		_ = other.Process.Kill()
		_, _ = other.Process.Wait()
	}
	fmt.Fprintln(go_, "g")
	var b [1]byte
	if n, err := c.Recv(b[:]); n != 1 {
		return fmt.Errorf("no message: %w", err)
	}
	_, pidfd, err := c.Identify(SameUser, since)
	if err == nil && !host.ProcessEnded(pidfd) {
		return fmt.Errorf("Identify took another process for the peer")
	}
	return nil
}

// TestNumberReused: a peer has connected and ended, and another process has its number.
func TestNumberReused(t *testing.T) {
	for _, when := range []string{"now", "late"} {
		t.Run(when, func(t *testing.T) {
			bothLookups(t, func(t *testing.T) {
				for range 10 {
					p := start(t, "renumber "+when, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS})
					if err := p.Wait(); err == nil || p.ProcessState.ExitCode() != taken {
						require.NoError(t, err)
						return
					}
				}
				t.Fatal("a thread of the process takes the number each time")
			})
		})
	}
}
