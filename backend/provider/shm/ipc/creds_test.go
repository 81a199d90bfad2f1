package ipc

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var secret = [TokenSize]byte{1, 2, 3, 4, 5}

// offer prints name and address of a proof, and waits until its input ends.
func offer([]string) error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return err
	}
	l, err := Listen(16, SameUser)
	if err != nil {
		return err
	}
	fmt.Println(at(l), address0(&secret))
	readLine()
	return nil
}

// reach tries a proof and prints the result.
func reach(args []string) error {
	at, _ := strconv.ParseUint(args[1], 10, 64)
	p := Proof{Place: *place(args[0]), At: at, Bytes: secret}
	r, err := p.Reach(&Host{})
	fmt.Println(err == nil && r.Direct, int(Errno(err)))
	return nil
}

// TestOtherUser: a process of another user is refused; one of the same user is reachable, unless Yama forbids the
// access.
func TestOtherUser(t *testing.T) {
	as := func(uid uint32) *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	bothLookups(t, func(t *testing.T) {
		proof := start(t, "offer", as(user)).line()
		refused := fmt.Sprintf("false %d", unix.EACCES)
		require.Equal(t, refused, start(t, "reach "+proof, as(user+1)).line())
		require.Equal(t, refused, start(t, "reach "+proof, as(0)).line())
		if scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); err != nil || scope[0] == '0' {
			require.Contains(t, start(t, "reach "+proof, as(user)).line(), "true")
		}
	})
}

// forge connects and sends the credentials of another process of its pid namespace.
func forge(args []string) error {
	other := newProcess("sleep", nil)
	if err := other.Start(); err != nil {
		return err
	}
	c, err := Dial(place(args[0]), nil)
	if err != nil {
		return err
	}
	oob := unix.UnixCredentials(&unix.Ucred{Pid: int32(other.Process.Pid), Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())})
	var sent error
	_ = c.raw.Control(func(fd uintptr) { sent = unix.Sendmsg(int(fd), []byte("it is he"), oob, nil, unix.MSG_NOSIGNAL) })
	fmt.Println("sent")
	readLine()
	return sent
}

func sleep([]string) error {
	time.Sleep(time.Minute)
	return nil
}

// TestForgedCredentials: root of a user and pid namespace sends the credentials of another process. The kernel still
// identifies the sender.
func TestForgedCredentials(t *testing.T) {
	bothLookups(t, func(t *testing.T) {
		l := listenHere(t)
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
		p := start(t, "forge "+at(l), &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID,
			UidMappings: ids, GidMappings: ids})
		require.Equal(t, "sent", p.line())
		c := accept(t, l)
		var b [16]byte
		_, err := c.Recv(b[:])
		require.NoError(t, err)
		who, pidfd, err := c.Identify(SameUser, Ticks())
		require.NoError(t, err)
		defer unix.Close(pidfd)
		require.Equal(t, Process{p.Process.Pid, true}, who)
		require.Equal(t, p.Process.Pid, pidOf(t, pidfd))
		p.say("q")
		p.endedWell()
	})
}

// refused connects, and expects that the listener's process is refused as a process of another user.
func refused(args []string) error {
	l, err := Listen(16, SameUser)
	if err != nil {
		return err
	}
	c, err := Dial(place(args[0]), nil)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("runs as user %d", os.Geteuid())
	}
	_, err = c.CheckUser(SameUser)
	if err := expect(err, unix.EOVERFLOW); err != nil {
		return err
	}
	fmt.Println(at(l))
	readLine()
	return nil
}

// TestAnotherUsersRoot: a process of another user is root of a user namespace that maps its user to our id. It is
// refused.
func TestAnotherUsersRoot(t *testing.T) {
	bothLookups(t, func(t *testing.T) {
		l := listenHere(t)
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: user, Size: 1}}
		p := start(t, "refused "+at(l), &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
			GidMappingsEnableSetgroups: true, Credential: &syscall.Credential{Uid: 0, Gid: 0}})
		name := p.line()
		_, pidfd, err := accept(t, l).Identify(SameUser, Ticks())
		require.Equal(t, unix.EACCES, Errno(err))
		require.Equal(t, -1, pidfd)
		c, err := Dial(place(name), nil)
		require.NoError(t, err)
		defer c.Close()
		_, err = c.CheckUser(SameUser)
		require.Equal(t, unix.EACCES, Errno(err))
		p.say("q")
		p.endedWell()
	})
}

// unmapped is a process whose user has no number in its namespace. A process of another user connects, which has none
// either.
func unmapped([]string) error {
	l, err := Listen(16, SameUser)
	if err != nil {
		return err
	}
	fmt.Println(at(l))
	c, err := l.anybody()
	if err != nil {
		return err
	}
	who, err := credentials(c)
	if err != nil {
		return err
	}
	if int(who.Uid) != os.Geteuid() {
		return fmt.Errorf("the peer looks like user %d, we like %d", who.Uid, os.Geteuid())
	}
	_, _, err = c.Identify(SameUser, Ticks())
	return expect(err, unix.EOVERFLOW)
}

func credentials(c *Conn) (who *unix.Ucred, err error) {
	_ = c.raw.Control(func(fd uintptr) { who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return who, err
}

// TestOverflowUser: users without a number look alike in a user namespace, and are refused. The user whose real number
// that is (nobody) is accepted.
func TestOverflowUser(t *testing.T) {
	const nobody = 65534
	bothLookups(t, func(t *testing.T) {
		p := start(t, "unmapped", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER})
		caller := start(t, "reach "+p.line()+" 4096", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}})
		require.Equal(t, fmt.Sprintf("false %d", unix.EACCES), caller.line())
		p.endedWell()

		as := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		line := start(t, "reach "+start(t, "offer", as).line(), as).line()
		require.NotContains(t, line, fmt.Sprint(int(unix.EOVERFLOW)))
		require.NotContains(t, line, fmt.Sprint(" ", int(unix.EACCES)))
	})
}

// TestReachClosed: a listener that closes each connection at once is reached all the same, as on an older kernel too. Endpoints
// are stricter.
func TestReachClosed(t *testing.T) {
	bothLookups(t, func(t *testing.T) {
		l, err := Listen(16, SameUser)
		require.NoError(t, err)
		t.Cleanup(l.Close)
		secret := Token{1, 2, 3}
		c, err := Dial(l.Place(), nil)
		require.NoError(t, err)
		defer c.Drop()
		other, err := l.anybody()
		require.NoError(t, err)
		other.Close()
		_, _, err = c.Identify(SameUser, Ticks())
		if noPeerPIDFD {
			require.Equal(t, unix.ECONNRESET, Errno(err))
		} else {
			require.NoError(t, err)
		}
		who, pidfd, err := c.identify(SameUser, Ticks(), true)
		require.NoError(t, err)
		defer unix.Close(pidfd)
		require.Equal(t, os.Getpid(), who.PID)
		p := Proof{At: uint64(uintptr(unsafe.Pointer(&secret))), Bytes: secret}
		require.NoError(t, p.read(who.PID, pidfd))
		p.Bytes[0]++
		require.Equal(t, unix.EBADMSG, p.read(who.PID, pidfd))
	})
}
