package ipc

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
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

	"gorail/test/skip"
)

// role names the environment variable that makes this test binary another process. The process talks to the test over
// standard input and output.
const role = "GORAIL_TEST_ROLE"

// user is the id of another user.
const user = 54321

var roles = map[string]func(args []string) error{
	"offer": offer, "reach": reach, "forge": forge, "refused": refused, "isolated": isolated, "renumber": renumber, "call": call, "sleep": sleep, "linger": linger, "unmapped": unmapped,
	"inside": inside, "mounted": mounted, "meet": meet, "creates": creates,
}

func TestMain(m *testing.M) {
	if at := os.Getenv(asPeer); at != "" {
		peerMain(at)
	}
	if name := os.Getenv(asCaller); name != "" {
		callerMain(name)
	}
	r := strings.Fields(os.Getenv(role))
	if len(r) == 0 {
		os.Exit(m.Run())
	}
	time.AfterFunc(time.Minute, func() { os.Exit(3) })
	olderKernel(os.Getenv("GORAIL_TEST_OLD") != "")
	if err := roles[r[0]](r[1:]); err != nil {
		fmt.Fprintln(os.Stderr, r[0]+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// hasPeerPIDFD reports that the kernel has SO_PEERPIDFD.
func hasPeerPIDFD(t *testing.T) bool {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	fd, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err == nil {
		_ = unix.Close(fd)
	}
	_, _ = unix.Close(pair[0]), unix.Close(pair[1])
	return err != unix.ENOPROTOOPT
}

// olderKernel does without SO_PEERPIDFD (Linux 6.5) and SO_PASSRIGHTS (Linux 6.16).
func olderKernel(is bool) { noPeerPIDFD, noPassRights = is, is }

// bothLookups runs a test as on this kernel, and as on an older one.
func bothLookups(t *testing.T, test func(t *testing.T)) {
	skip.UnlessRoot(t, "needs root to change users and create pid namespaces")
	for _, old := range []bool{false, true} {
		t.Run(fmt.Sprintf("old=%v", old), func(t *testing.T) {
			if !old && !hasPeerPIDFD(t) {
				skip.OrFail(t, errors.New("needs SO_PEERPIDFD (Linux 6.5)"))
			}
			olderKernel(old)
			defer olderKernel(false)
			test(t)
		})
	}
}

// process is another process, in a role.
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
		skip.OrFail(t, fmt.Errorf("cannot start a process with these attributes: %w", err))
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

func readLine() string {
	var line string
	_, _ = fmt.Scanln(&line)
	return line
}

func expect(err error, want unix.Errno) error {
	if Errno(err) != want || err == nil {
		return fmt.Errorf("%w instead of %w", err, want)
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

// at encodes the place of a listener for another process.
func at(l *Listener) string {
	p := *l.Place()
	if p.Abstract == nil { // one in a folder
		p.Abstract = []byte("\x00x")
	}
	return hex.EncodeToString(p.Append(nil))
}

func place(at string) *Place {
	p, ok := Decode(unhex(at))
	if !ok {
		panic(at)
	}
	return &p
}

func listenHere(t *testing.T) *Listener {
	l, err := Listen(16, SameUser)
	require.NoError(t, err)
	t.Cleanup(l.Close)
	return l
}

func accept(t *testing.T, l *Listener) *Conn {
	c, err := l.anybody()
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// pidOf is the number of a pidfd's process in our pid namespace.
func pidOf(t *testing.T, pidfd int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", pidfd))
	require.NoError(t, err)
	_, rest, _ := bytes.Cut(b, []byte("Pid:"))
	pid, err := strconv.Atoi(string(bytes.Fields(rest)[0]))
	require.NoError(t, err)
	return pid
}
