package ipc

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// role names the variable that makes this test's binary another process: it talks to the test by its standard input and output.
const role = "GORAIL_TEST_ROLE"

// another user's number.
const user = 54321

var roles = map[string]func(args []string) error{
	"offer": offer, "reach": reach, "forge": forge, "refused": refused, "lonely": lonely, "renumber": renumber, "call": call, "sleep": sleep,
}

func TestMain(m *testing.M) {
	r := strings.Fields(os.Getenv(role))
	if len(r) == 0 {
		os.Exit(m.Run())
	}
	time.AfterFunc(time.Minute, func() { os.Exit(3) })
	noPeerPIDFD = os.Getenv("GORAIL_TEST_OLD") != ""
	if err := roles[r[0]](r[1:]); err != nil {
		fmt.Fprintln(os.Stderr, r[0]+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// both runs a test with SO_PEERPIDFD and as on Linux before 6.5.
func both(t *testing.T, test func(t *testing.T)) {
	if os.Geteuid() != 0 {
		t.Skip("users and pid namespaces are root's to make")
	}
	for _, old := range []bool{false, true} {
		t.Run(fmt.Sprintf("old=%v", old), func(t *testing.T) {
			noPeerPIDFD = old
			defer func() { noPeerPIDFD = false }()
			test(t)
		})
	}
}

// process is another one, in a role.
type process struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	t   *testing.T
}

func newProcess(what string, attr *syscall.SysProcAttr) *exec.Cmd {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), role+"="+what)
	if noPeerPIDFD {
		c.Env = append(c.Env, "GORAIL_TEST_OLD=1")
	}
	c.Stderr = os.Stderr
	c.SysProcAttr = attr
	return c
}

func start(t *testing.T, what string, attr *syscall.SysProcAttr) *process {
	p := &process{Cmd: newProcess(what, attr), t: t}
	var err error
	p.in, err = p.StdinPipe()
	require.NoError(t, err)
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	p.out = bufio.NewReader(out)
	if err := p.Start(); err != nil {
		t.Skipf("a process like that can't be started here: %v", err)
	}
	t.Cleanup(func() {
		_ = p.in.Close()
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	return p
}

func (p *process) line() string {
	line, err := p.out.ReadString('\n')
	require.NoError(p.t, err)
	return strings.TrimSpace(line)
}

func (p *process) say(line string) {
	_, err := fmt.Fprintln(p.in, line)
	require.NoError(p.t, err)
}

func (p *process) endedWell() { require.NoError(p.t, p.Wait()) }

func hear() string {
	var line string
	_, _ = fmt.Scanln(&line)
	return line
}

func expect(err error, want unix.Errno) error {
	if Errno(err) != want || err == nil {
		return fmt.Errorf("%v instead of %v", err, want)
	}
	return nil
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return b
}

func listenHere(t *testing.T) *Listener {
	l, err := Listen(16)
	require.NoError(t, err)
	t.Cleanup(l.Close)
	return l
}

func accept(t *testing.T, l *Listener) *Conn {
	c, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// pidOf is which process a descriptor is of, in our numbers.
func pidOf(t *testing.T, pidfd int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", pidfd))
	require.NoError(t, err)
	_, rest, _ := bytes.Cut(b, []byte("Pid:"))
	pid, err := strconv.Atoi(string(bytes.Fields(rest)[0]))
	require.NoError(t, err)
	return pid
}

var secret = [TokenSize]byte{1, 2, 3, 4, 5}

// offer tells where its socket is, and waits to be ended.
func offer([]string) error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return err
	}
	l, err := Listen(16)
	if err != nil {
		return err
	}
	fmt.Println(hex.EncodeToString(l.Name()), address0(&secret))
	hear()
	return nil
}

// reach tells what it finds at a proof.
func reach(args []string) error {
	at, _ := strconv.ParseUint(args[1], 10, 64)
	p := Proof{Name: unhex(args[0]), At: at, Bytes: secret}
	_, err := p.Reach()
	fmt.Println(err == nil, int(Errno(err)))
	return nil
}

// TestOtherUser: another user's memory is out of reach, the same user's is not, but for Yama.
func TestOtherUser(t *testing.T) {
	as := func(uid uint32) *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	both(t, func(t *testing.T) {
		proof := start(t, "offer", as(user)).line()
		refused := fmt.Sprintf("false %d", unix.EACCES)
		require.Equal(t, refused, start(t, "reach "+proof, as(user+1)).line())
		require.Equal(t, refused, start(t, "reach "+proof, as(0)).line())
		if scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); err != nil || scope[0] == '0' {
			require.Contains(t, start(t, "reach "+proof, as(user)).line(), "true")
		}
	})
}

// forge connects, and writes the credentials of another process of its own.
func forge(args []string) error {
	other := newProcess("sleep", nil)
	if err := other.Start(); err != nil {
		return err
	}
	c, err := Dial(unhex(args[0]))
	if err != nil {
		return err
	}
	oob := unix.UnixCredentials(&unix.Ucred{Pid: int32(other.Process.Pid), Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())})
	var sent error
	_ = c.raw.Control(func(fd uintptr) { sent = unix.Sendmsg(int(fd), []byte("it is he"), oob, nil, unix.MSG_NOSIGNAL) })
	fmt.Println("sent")
	hear()
	return sent
}

func sleep([]string) error {
	time.Sleep(time.Minute)
	return nil
}

// TestForgedCredentials: root of a user and pid namespace names another process of its own: it is known for itself all the same.
func TestForgedCredentials(t *testing.T) {
	both(t, func(t *testing.T) {
		l := listenHere(t)
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
		p := start(t, "forge "+hex.EncodeToString(l.Name()), &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID,
			UidMappings: ids, GidMappings: ids})
		require.Equal(t, "sent", p.line())
		c := accept(t, l)
		var b [16]byte
		_, err := c.Recv(b[:])
		require.NoError(t, err)
		pid, pidfd, err := c.Identify(Ticks())
		require.NoError(t, err)
		defer unix.Close(pidfd)
		require.Equal(t, p.Process.Pid, pid)
		require.Equal(t, p.Process.Pid, pidOf(t, pidfd))
		p.say("q")
		p.endedWell()
	})
}

// refused is a process that the listener is not to be told anything by, nor to tell.
func refused(args []string) error {
	l, err := Listen(16)
	if err != nil {
		return err
	}
	c, err := Dial(unhex(args[0]))
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("is user %d", os.Geteuid())
	}
	_, err = c.CheckUser()
	if err := expect(err, unix.EACCES); err != nil {
		return err
	}
	fmt.Println(hex.EncodeToString(l.Name()))
	hear()
	return nil
}

// TestAnotherUsersRoot: another user's process, root of a namespace where its user is called as ours.
func TestAnotherUsersRoot(t *testing.T) {
	both(t, func(t *testing.T) {
		l := listenHere(t)
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: user, Size: 1}}
		p := start(t, "refused "+hex.EncodeToString(l.Name()), &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
			GidMappingsEnableSetgroups: true, Credential: &syscall.Credential{Uid: 0, Gid: 0}})
		name := unhex(p.line())
		_, pidfd, err := accept(t, l).Identify(Ticks())
		require.Equal(t, unix.EACCES, Errno(err))
		require.Equal(t, -1, pidfd)
		c, err := Dial(name)
		require.NoError(t, err)
		defer c.Close()
		_, err = c.CheckUser()
		require.Equal(t, unix.EACCES, Errno(err))
		p.say("q")
		p.endedWell()
	})
}

// lonely has a number that its sibling can't know.
func lonely([]string) error {
	l, err := Listen(16)
	if err != nil {
		return err
	}
	fmt.Println(hex.EncodeToString(l.Name()))
	its := Proof{Name: unhex(hear()), At: 4096}
	pid, err := its.Reach()
	if pid != 0 {
		return fmt.Errorf("process %d", pid)
	}
	if err := expect(err, unix.ENOTSUP); err != nil {
		return err
	}
	c, err := l.Accept()
	if err != nil {
		return err
	}
	_, _, err = c.Identify(Ticks())
	return expect(err, unix.ENOTSUP)
}

// TestSiblingPids: two siblings, each process 1.
func TestSiblingPids(t *testing.T) {
	both(t, func(t *testing.T) {
		a, b := start(t, "lonely", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}), start(t, "lonely", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID})
		one, two := a.line(), b.line()
		a.say(two)
		b.say(one)
		a.endedWell()
		b.endedWell()
	})
}

// call connects, sends a message and ends; late: its child sends it, when it is told to, and its parent has ended by then.
func call(args []string) error {
	if args[0] == "child" {
		hear()
		return unix.Sendmsg(3, []byte("x"), nil, nil, unix.MSG_NOSIGNAL)
	}
	c, err := Dial(unhex(args[1]))
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

// renumber is init of a pid namespace: it has a process connect, ends it, and has another of that number.
func renumber(args []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	l, err := Listen(16)
	if err != nil {
		return err
	}
	peer := newProcess("call "+args[0]+" "+hex.EncodeToString(l.Name()), nil)
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
		return fmt.Errorf("no message: %v", err)
	}
	_, pidfd, err := c.Identify(since)
	if err == nil && !Ended(pidfd) {
		return fmt.Errorf("another process is taken for the peer")
	}
	return nil
}

// TestNumberReused: a peer that has connected and ended, and a process that has its number now.
func TestNumberReused(t *testing.T) {
	for _, when := range []string{"now", "late"} {
		t.Run(when, func(t *testing.T) {
			both(t, func(t *testing.T) {
				p := start(t, "renumber "+when, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS})
				p.endedWell()
			})
		})
	}
}
