package e2e

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/wire"
	"gorail/nixlapi"
	"gorail/test/skip"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// Users of these tests. No account has these numbers.
const (
	honest   = 54321
	stranger = 54322
)

// asUser starts workers of an ordinary user, with a limit for maybeLimit, or "". Option ptracer makes them each other's
// equals under Yama's scope 1, too.
func asUser(user uint32, limit string, setenv ...string) worker.Options {
	env := append([]string{"HOME=/", envLimit + "=" + limit, "GORAIL_PTRACER=on"}, autoProvider...)
	return worker.Options{Setenv: append(env, setenv...), Attr: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}}
}

// unixNames gives the names of a process's unix sockets.
func unixNames(t testing.TB, pid int) (names []string) {
	t.Helper()
	own := map[string]bool{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	require.NoError(t, err)
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
			own[strings.Trim(to, "socket:[]")] = true
		}
	}
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", pid))
	require.NoError(t, err)
	for _, line := range strings.Split(string(list), "\n") {
		const flags, inode, path = 3, 6, 7
		if w := strings.Fields(line); len(w) > path && own[w[inode]] && w[flags] == "00010000" { // listens
			names = append(names, w[path])
		}
	}
	require.NotEmpty(t, names)
	return names
}

// tokenOf finds the token in an agent's metadata.
func tokenOf(t testing.TB, metadata []byte) wire.Token {
	t.Helper()
	at := bytes.Index(metadata, append([]byte("GRC"), wire.Version))
	require.GreaterOrEqual(t, at, 0)
	for end := at; end <= len(metadata); end++ {
		if b, err := wire.DecodeConn(metadata[at:end]); err == nil {
			return b.Token
		}
	}
	t.Fatal("no connection blob in the metadata")
	return wire.Token{}
}

// attack runs an assault in a process of its own. A flood ends with until.
func attack(t testing.TB, a assault, attr *syscall.SysProcAttr, limit string, until io.Reader) (l loot, err error) {
	what, err := json.Marshal(&a)
	require.NoError(t, err)
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), envAttack+"="+string(what), envLimit+"="+limit)
	c.SysProcAttr = attr
	c.Stdin = until
	var said bytes.Buffer
	c.Stderr = &said
	out, err := c.Output()
	if err != nil {
		return l, fmt.Errorf("%w: %s", err, said.String())
	}
	return l, json.Unmarshal(out, &l)
}

// attackers are the rows of the table in docs/security.md, "One host". What is said of each is what it gets.
var attackers = []struct {
	name  string
	user  int
	own   bool
	flags uintptr
	root  bool // of a user namespace, which maps root to the stranger
	limit string

	reaches, memory, opens, signals bool // it reaches our sockets and ports, our memory, our files in /proc, us by signals
}{
	{name: "same user", user: honest, reaches: true, memory: true, opens: true, signals: true},
	{name: "other user", user: stranger, reaches: true},
	{name: "root of a container", root: true, flags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC, reaches: true},
	{name: "other pid namespace", user: honest, own: true, flags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, reaches: true},
	{name: "other network namespace", user: honest, flags: syscall.CLONE_NEWNET, memory: true, opens: true, signals: true},
	{name: "other mount namespace", user: stranger, flags: syscall.CLONE_NEWNS, reaches: true},
	{name: "seccomp", user: honest, limit: seccomp, reaches: true, opens: true, signals: true},
}

// TestOneHost: a process of the host attacks an engine in each of these guises. It gets what its row says and no more.
// The engine's peer goes on meanwhile, and another peer connects.
func TestOneHost(t *testing.T) {
	t.Parallel()
	skip.UnlessRoot(t, "needs root to change users and create namespaces")
	for _, who := range attackers {
		t.Run(who.name, func(t *testing.T) {
			t.Parallel()
			alice, bob := agentOf(t, "alice", asUser(honest, "")), agentOf(t, "bob", asUser(honest, "", "GORAIL_LOG=debug"))
			bob.Polling(true)
			a, b := alice.Buffer(1<<20, seedA), bob.Buffer(1<<20, seedB)
			alice.Learn(bob)
			x := alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
			x.Do(limit)
			open := bob.Stats().FDs
			what := assault{User: who.user, Own: who.own, Pid: bob.Pid(), Addr: b.Addr, Names: unixNames(t, bob.Pid())}
			for _, port := range listening(t, bob.Pid()) {
				what.Ports = append(what.Ports, port.String())
			}
			attr := &syscall.SysProcAttr{Cloneflags: who.flags}
			if who.root {
				ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: stranger, Size: 1}}
				attr.UidMappings, attr.GidMappings, attr.GidMappingsEnableSetgroups = ids, ids, true
				attr.Credential = &syscall.Credential{}
			}
			var l loot
			var failed error
			done := make(chan struct{})
			go func() {
				defer close(done)
				l, failed = attack(t, what, attr, who.limit, nil)
			}()
			for round, over := uint64(0), false; !over; round++ {
				select {
				case <-done:
					over = true
				default:
				}
				a.Fill(round)
				x.Do(limit)
				b.Want(round)
				if round == 0 {
					joins(t, alice, bob)
				}
			}
			require.NoError(t, failed)
			said := l
			said.Text = fmt.Sprint(len(l.Text), " bytes")
			t.Logf("%+v", said)

			names, ports := 0, 0
			if who.reaches {
				names, ports = len(what.Names), len(what.Ports)
			}
			assert.Equal(t, names, l.Listed, "names that it sees")
			assert.Equal(t, who.reaches, l.Named > 0, "connections to unix sockets")
			assert.Equal(t, ports, l.Control, "control ports that it reaches")
			assert.Zero(t, l.Answers, "answers")
			assert.Zero(t, l.Open, "connections that were not closed")
			assert.Zero(t, l.Taken, "names taken, or datagrams sent")
			assert.Equal(t, who.memory, l.Memory, "reads memory")
			assert.Equal(t, who.memory, l.Wrote, "writes memory")
			assert.Equal(t, who.opens, l.Opened, "opens our files in /proc")
			assert.Equal(t, who.signals, l.Signals, "signals")
			if refusesDescriptors() {
				assert.Zero(t, l.Rights, "messages with descriptors")
			}
			maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", bob.Pid()))
			require.NoError(t, err)
			assert.NotContains(t, string(maps), "/dev/shm")
			token := tokenOf(t, bob.Metadata())
			for _, text := range []string{l.Text, bob.Output(), alice.Output()} {
				assert.NotContains(t, text, hex.EncodeToString(token[:]))
				assert.NotContains(t, text, string(token[:]))
			}
			require.True(t, worker.Eventually(limit, func() bool { return bob.Stats().FDs <= open+16 }), "descriptors: %d, before %d", bob.Stats().FDs, open)
			exit(t, alice, bob)
		})
	}
}

// joins connects another agent over shared memory.
func joins(t *testing.T, beside, bob *worker.Agent) {
	t.Helper()
	carol := agent(beside.Worker, testenv.Need(t), "carol")
	a, b := carol.Buffer(1<<16, seedA), bob.Buffer(1<<16, seedB)
	carol.Learn(bob)
	carol.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
	b.Want(seedA)
	says(t, carol.Worker, "peer connected", "agent=carol", "peer=bob", "rails=sm/memory", "session=initiator")
}

// refusesDescriptors reports that the kernel has SO_PASSRIGHTS (Linux 6.16).
func refusesDescriptors() bool {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(s)
	return unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) == nil
}
