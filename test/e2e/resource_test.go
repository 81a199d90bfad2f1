package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/hostmem"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// TestIdleCPU: two agents that are connected and idle each use less than 1 % of a core.
func TestIdleCPU(t *testing.T) {
	t.Parallel()
	const window = 3 * time.Second
	p := pair(t)
	a, b := p.buffers(1 << 20)
	p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")}).Do(limit)
	require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
	p.tgt.Polling(false)
	// Adaptive polling may go on for a moment.
	require.True(t, worker.Eventually(limit, func() bool {
		i, j := p.ini.Stats().CPU, p.tgt.Stats().CPU
		time.Sleep(window)
		i, j = p.ini.Stats().CPU-i, p.tgt.Stats().CPU-j
		t.Logf("idle: initiator %.2f %%, target %.2f %% of a core",
			100*i.Seconds()/window.Seconds(), 100*j.Seconds()/window.Seconds())
		return i < window/100 && j < window/100
	}))
}

// unmapFreed is the environment of workers whose memory is measured: malloc maps large blocks and unmaps them when they
// are freed. By default malloc keeps freed blocks in its arenas: 70 MiB and more after 200 agents over libfabric 2.1.
// With one arena it keeps nothing.
var unmapFreed = []string{"GLIBC_TUNABLES=glibc.malloc.mmap_threshold=131072"}

// leaks fails the test if the worker has more descriptors, threads or memory than before.
func leaks(t *testing.T, w *worker.Worker, before worker.Stats) {
	t.Helper()
	var now worker.Stats
	ok := worker.Eventually(limit, func() bool { // threads end late, and Go's runtime keeps as many threads as calls have ever blocked at once
		now = w.Stats()
		return now.FDs <= before.FDs+3 && now.Threads <= before.Threads+8 && now.RSSKiB-before.RSSKiB < 24<<10
	})
	t.Logf("threads %d -> %d, fds %d -> %d, RSS %d -> %d MiB", before.Threads, now.Threads,
		before.FDs, now.FDs, before.RSSKiB>>10, now.RSSKiB>>10)
	require.True(t, ok, "the process has more threads, descriptors or memory than before")
}

// TestAgentsComeAndGo creates and destroys 200 agents (80 in the short form). Each transfers once.
func TestAgentsComeAndGo(t *testing.T) {
	t.Parallel()
	env := testenv.Need(t)
	w := process(t, worker.Options{Env: env, Setenv: unmapFreed})
	buf := w.Alloc(64<<10, hostmem.Anon)
	cycle := func() {
		a := agent(w, env, "alice")
		require.NoError(t, a.Register(buf.All()))
		x := a.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: buf.Span(0, 4096), Remote: buf.Span(8192, 4096), Peer: "alice", Notif: []byte("n")})
		x.Do(limit)
		require.Len(t, a.WaitNotifs(1, limit), 1)
		require.NoError(t, a.Close())
	}
	for range 20 {
		cycle()
	}
	before := w.Stats()
	for range rounds(80, 200) {
		cycle()
	}
	leaks(t, w, before)
}

// TestPeersComeAndGo: an agent transfers with 60 peers, one after the other, and keeps no resources of a closed peer.
func TestPeersComeAndGo(t *testing.T) {
	t.Parallel()
	env := testenv.Need(t)
	ini := agent(process(t, worker.Options{Env: env, Setenv: unmapFreed}), env, "alice")
	tw := process(t, worker.Options{Env: env, Setenv: unmapFreed})
	a, far := ini.Buffer(1<<20, seedA), tw.Alloc(1<<20, hostmem.Anon)
	cycle := func() {
		b := agent(tw, env, "bob")
		b.Polling(true)
		require.NoError(t, b.Register(far.All()))
		ini.Learn(b)
		x := ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: far.All(), Peer: "bob", Notif: []byte("n")})
		x.Do(limit)
		require.Len(t, b.WaitNotifs(1, limit), 1)
		require.NoError(t, x.Release())
		require.NoError(t, ini.Invalidate("bob"))
		require.NoError(t, b.Close())
	}
	for range 10 {
		cycle()
	}
	here, there := ini.Stats(), tw.Stats()
	for range 60 {
		cycle()
	}
	leaks(t, ini.Worker, here)
	leaks(t, tw, there)
}

// cpu is the processor time of a process.
func cpu(t testing.TB, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(text), ") ")
	f := strings.Fields(after)
	user, err := strconv.Atoi(f[11])
	require.NoError(t, err)
	system, err := strconv.Atoi(f[12])
	require.NoError(t, err)
	return time.Duration(user+system) * 10 * time.Millisecond
}
