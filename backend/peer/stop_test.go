package peer

import (
	"bufio"
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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/wire"
)

// childEnv makes the test binary a target in its own process, with the variable's value as PeerTimeout.
const childEnv = "GORAIL_TEST_PEER_TIMEOUT"

// runChild is the child: it serves until its standard input ends.
func runChild() bool {
	timeout, err := time.ParseDuration(os.Getenv(childEnv))
	if err != nil {
		return false
	}
	cfg := config("child")
	cfg.Identity.Process, cfg.PeerTimeout, cfg.Listen = Self(), timeout, []string{"127.0.0.1:0"}
	n, err := NewNode(cfg, newTarget())
	if err != nil {
		panic(err)
	}
	b, err := blob(n).Encode()
	if err != nil {
		panic(err)
	}
	fmt.Println(hex.EncodeToString(b))
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(startHolder())
	}
	n.Close()
	return true
}

// startHolder starts a process that inherits all of our sockets, and returns its pid.
func startHolder() int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	for _, e := range all {
		fd, _ := strconv.Atoi(e.Name())
		if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.HasPrefix(to, "socket:") {
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
		}
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	return cmd.Process.Pid
}

// visible lets the child and this process see each other.
func visible(c *Config) { c.Identity.Process = Self() }

// child is a ready session with a target in another process.
type child struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	from   *Node
	i      *initiator
	out    *Out
}

func startChild(t *testing.T, ours, theirs time.Duration, change ...func(*Config)) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+theirs.String())
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		stdin.Close()
		_ = cmd.Wait()
	})
	c := &child{cmd: cmd, stdin: stdin, stdout: bufio.NewReader(stdout), i: newInitiator()}
	line, err := c.stdout.ReadString('\n')
	require.NoError(t, err)
	raw, err := hex.DecodeString(strings.TrimSpace(line))
	require.NoError(t, err)
	b, err := wire.DecodeConn(raw)
	require.NoError(t, err)
	c.from = listen(t, newTarget(), append(change, func(c *Config) { c.PeerTimeout = ours })...)
	c.out = c.from.Dial(b, 0, c.i)
	want[evOffers](t, c.i.events)
	want[evReady](t, c.i.events)
	return c
}

// stop stops the child for a time, or for good if d is 0.
func (c *child) stop(t *testing.T, d time.Duration) {
	t.Helper()
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGSTOP))
	if d > 0 {
		time.Sleep(d)
		require.NoError(t, c.cmd.Process.Signal(syscall.SIGCONT))
	}
}

func (c *child) answers(t *testing.T) {
	t.Helper()
	c.out.Keys(1, ranges(1, 7))
	assert.Equal(t, uint64(7), want[evKeys](t, c.i.events).k.Entries[0].Region)
}

// A process that was stopped for longer than its own timeout does not blame its peer for the silence.
func TestSelfStoppedForMoreThanTheTimeout(t *testing.T) {
	c := startChild(t, time.Minute, 300*time.Millisecond)
	c.stop(t, time.Second)
	c.answers(t)
}

// A stopped process is not dead, however long it is stopped: its kernel acknowledges our pings.
func TestPeerStoppedForMoreThanTheTimeout(t *testing.T) {
	for name, theirs := range map[string]time.Duration{"both_would_time_out": 300 * time.Millisecond, "we_alone": time.Minute} {
		t.Run(name, func(t *testing.T) {
			c := startChild(t, 300*time.Millisecond, theirs)
			c.stop(t, 2*time.Second)
			c.answers(t)
			assert.Equal(t, Ready, c.out.State())
		})
	}
}

// The same with the visible process as the only sign of life.
func TestPeerStoppedAndVisible(t *testing.T) {
	c := startChild(t, 300*time.Millisecond, 300*time.Millisecond, visible, func(c *Config) { c.acks = noAcks })
	c.stop(t, 2*time.Second)
	c.answers(t)
}

func TestPeerKilled(t *testing.T) {
	c := startChild(t, time.Minute, time.Minute)
	start := time.Now()
	require.NoError(t, c.cmd.Process.Kill())
	err := want[evLost](t, c.i.events).err
	assert.Less(t, time.Since(start), time.Second)
	assert.ErrorIs(t, err, ErrDropped)
	assert.ErrorContains(t, err, "its process is gone")
}

// A child that holds all sockets of the peer does not hide the peer's death.
func TestPeerKilledBehindItsChild(t *testing.T) {
	c := startChild(t, time.Minute, time.Minute, visible)
	_, err := fmt.Fprintln(c.stdin, "fork")
	require.NoError(t, err)
	line, err := c.stdout.ReadString('\n')
	require.NoError(t, err)
	var pid int
	_, err = fmt.Sscan(line, &pid)
	require.NoError(t, err)
	defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
	start := time.Now()
	require.NoError(t, c.cmd.Process.Kill())
	err = want[evLost](t, c.i.events).err
	assert.Less(t, time.Since(start), 2*time.Second)
	assert.ErrorIs(t, err, ErrDead)
	assert.ErrorContains(t, err, "has ended")
	require.NoError(t, syscall.Kill(pid, 0), "its child lives")
}
