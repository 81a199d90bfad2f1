package peer

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// childEnv makes the test binary a target in a process of its own, with the PeerTimeout that it holds.
const childEnv = "GORAIL_TEST_PEER_TIMEOUT"

// stoppable is the child: it serves until its standard input ends.
func stoppable() bool {
	timeout, err := time.ParseDuration(os.Getenv(childEnv))
	if err != nil {
		return false
	}
	n, err := NewNode(Config{Identity: identity("child"), PeerTimeout: timeout, Listen: []string{"127.0.0.1:0"}}, newTarget())
	if err != nil {
		panic(err)
	}
	b, err := blob(n).Encode()
	if err != nil {
		panic(err)
	}
	fmt.Println(hex.EncodeToString(b))
	_, _ = io.Copy(io.Discard, os.Stdin)
	n.Close()
	return true
}

// child is a ready session with a target in another process.
type child struct {
	cmd *exec.Cmd
	i   *initiator
	out *Out
}

func startChild(t *testing.T, ours, theirs time.Duration) *child {
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
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	raw, err := hex.DecodeString(strings.TrimSpace(line))
	require.NoError(t, err)
	b, err := wire.DecodeConn(raw)
	require.NoError(t, err)
	from := listen(t, newTarget(), func(c *Config) { c.PeerTimeout = ours })
	c := &child{cmd: cmd, i: newInitiator()}
	c.out = from.Dial(b, c.i)
	want[evOffers](t, c.i.events)
	want[evReady](t, c.i.events)
	return c
}

// stop stops the child for a time, or for good when that is 0.
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

func TestPeerStoppedForLessThanTheTimeout(t *testing.T) {
	c := startChild(t, time.Second, time.Second)
	c.stop(t, 600*time.Millisecond)
	c.answers(t)
}

// A process that was itself stopped for longer than its own timeout doesn't blame its peer for the silence.
func TestSelfStoppedForMoreThanTheTimeout(t *testing.T) {
	c := startChild(t, time.Minute, 300*time.Millisecond)
	c.stop(t, time.Second)
	c.answers(t)
}

func TestPeerStoppedForGood(t *testing.T) {
	c := startChild(t, 400*time.Millisecond, 400*time.Millisecond)
	c.stop(t, 0)
	err := want[evLost](t, c.i.events).err
	assert.ErrorIs(t, err, ErrSilent)
	assert.ErrorContains(t, err, `"child"`)
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
