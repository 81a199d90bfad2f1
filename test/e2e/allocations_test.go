package e2e

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/native"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// counted is an initiator whose allocations are counted: those in C in a file, those of GORAIL's Go runtime by its socket.
type counted struct {
	*worker.Agent
	file, sockets string
}

func startCounted(t *testing.T, opts ...option) *counted {
	t.Helper()
	env := ours(t)
	part := native.Part{Name: "libcount.so", Sources: []string{"test/count/count.c"}, Flags: []string{"-fno-builtin"}}
	c := &counted{file: filepath.Join(t.TempDir(), "count"), sockets: filepath.Join(t.TempDir(), "sockets")}
	require.NoError(t, os.WriteFile(c.file, make([]byte, 8), 0o600))
	w := worker.Start(t, worker.Options{Env: env, Setenv: []string{"LD_PRELOAD=" + part.Build(t), "GORAIL_TEST_COUNT=" + c.file, "GORAIL_STATS_SOCKET=" + c.sockets}})
	c.Agent = agent(w, env, "alice", opts...)
	return c
}

// inC is the number of allocations in C until now.
func (c *counted) inC(t *testing.T) uint64 {
	t.Helper()
	b, err := os.ReadFile(c.file)
	require.NoError(t, err)
	return binary.NativeEndian.Uint64(b)
}

// inGo is the number of objects that GORAIL's Go runtime has allocated until now.
func (c *counted) inGo(t *testing.T) uint64 {
	t.Helper()
	out, err := exec.Command(testenv.Tool(), "stats", "--socket", c.sockets).Output()
	require.NoError(t, err)
	var engines []struct {
		Runtime struct {
			Objects uint64 `json:"heap_objects"`
		} `json:"runtime"`
	}
	require.NoError(t, json.Unmarshal(out, &engines), "%s", out)
	require.Len(t, engines, 1)
	return engines[0].Runtime.Objects
}

// TestNoAllocations: a transfer that is posted again allocates nothing at its initiator: not in C in any library of the process, and
// nothing in GORAIL's Go runtime. That includes its notification. Requests that are made anew do allocate, and are counted. The engine's
// own work, of heartbeats and timers, falls into the counts, too: on a starved host so much that the least of three counts decides.
func TestNoAllocations(t *testing.T) {
	const n = 20_000
	for name, provider := range map[string]string{"shm": "sm,tcp", "tcp": "tcp"} {
		t.Run(name, func(t *testing.T) {
			threads := func(c *worker.AgentConfig) { c.Sync, c.Concurrent = nixlapi.SyncRW, true }
			ini := startCounted(t, params("provider", provider), threads)
			p := &pairOf{env: ours(t), ini: ini.Agent, tgt: start(t, "bob", params("provider", provider))}
			p.tgt.Polling(true)
			mine, theirs := p.buffers(64 << 10)
			request := func(op nixlapi.Op, size uint64) *worker.Xfer {
				return ini.Xfer(worker.XferSpec{Op: op, Local: mine.Span(0, size), Remote: theirs.Span(0, size), Peer: "bob", Notif: []byte("n")})
			}
			one, other, read := request(nixlapi.Write, 64), request(nixlapi.Write, 64), request(nixlapi.Read, 4096)
			beside := make([]int, 15)
			for i := range beside {
				beside[i] = request(nixlapi.Read, 4096).ID()
			}
			for what, loop := range map[string]func(n int) worker.LoopResult{
				"WRITE": func(n int) worker.LoopResult { return one.Loop(worker.LoopArgs{N: n, Timeout: 2 * limit}) },
				"WRITEs of two threads": func(n int) worker.LoopResult {
					second := other.LoopAsync(worker.LoopArgs{N: n / 2, Timeout: 2 * limit})
					r := one.Loop(worker.LoopArgs{N: n / 2, Timeout: 2 * limit})
					require.Equal(t, nixlapi.Success, second.Wait().Status)
					r.Done += n / 2
					return r
				},
				"16 READs, in flight": func(n int) worker.LoopResult {
					return read.Loop(worker.LoopArgs{N: n, Timeout: 2 * limit, Beside: beside})
				},
			} {
				require.Equal(t, 500, loop(500).Done, what)
				for try := 1; ; try++ {
					reading := ini.inGo(t)
					inGo := ini.inGo(t)
					reading = inGo - reading
					inC := ini.inC(t)
					r := loop(n)
					inC = ini.inC(t) - inC
					inGo = max(ini.inGo(t), inGo+reading) - inGo - reading
					require.Equal(t, nixlapi.Success, r.Status)
					require.Equal(t, n, r.Done)
					t.Logf("%s: %d allocations in C and %d objects in Go, of %d", what, inC, inGo, n)
					if inC < n/100 && inGo < n/2 { // Go counts some hundred objects late, and its timers need a few
						break
					}
					require.Less(t, try, 3, what)
				}
			}
			before := ini.inC(t)
			for range 100 {
				require.NoError(t, request(nixlapi.Write, 64).Release())
			}
			require.Greater(t, ini.inC(t)-before, uint64(100), "NIXL and the plugin make each request anew")
		})
	}
}
