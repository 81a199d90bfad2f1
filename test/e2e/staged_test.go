package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/worker"
)

// stagedHost is gpuHost over one provider, with small rings, so that a transfer has many chunks.
func stagedHost(t testing.TB, provider string) worker.Options {
	t.Helper()
	o := gpuHost(t)
	if provider == "sm" {
		provider = smProvider()
	}
	o.Setenv = append(o.Setenv, "GORAIL_PROVIDER="+provider, "GORAIL_LOG=info", "GORAIL_STAGE_SIZE=1MiB")
	return o
}

// stagedPair is gpuPair with the options of stagedHost.
func stagedPair(t testing.TB, provider string, opts ...option) *pairOf {
	t.Helper()
	o := stagedHost(t, provider)
	p := &pairOf{env: o.Env, ini: agent(process(t, o), o.Env, "alice", opts...), tgt: agent(process(t, o), o.Env, "bob", opts...)}
	p.tgt.Polling(true)
	return p
}

// buffer makes host memory if m is nil, else GPU memory.
func buffer(a *worker.Agent, size, seed uint64, m *worker.GPUMem) *worker.Buf {
	if m == nil {
		return a.Buffer(size, seed)
	}
	return a.GPUBuffer(size, seed, *m)
}

func gpuMem(n int) *worker.GPUMem { m := device(n); return &m }

// TestStaged transfers GPU memory that no rail carries: over tcp, and on one host between host memory and GPUs or to
// memory that peers cannot map.
func TestStaged(t *testing.T) {
	t.Parallel()
	both := []struct {
		provider    string
		here, there *worker.GPUMem
	}{
		{"tcp", gpuMem(0), gpuMem(1)}, {"tcp", nil, gpuMem(1)}, {"tcp", gpuMem(0), nil},
		{"sm", nil, gpuMem(1)}, {"sm", gpuMem(0), nil},
		{"sm", gpuMem(0), &worker.GPUMem{Device: 1, Handles: 2, Private: true}}, {"sm", gpuMem(1), &worker.GPUMem{Device: 1, Kind: int(cuda.Pool)}},
	}
	name := func(m *worker.GPUMem) string {
		if m == nil {
			return "host"
		}
		return strings.ReplaceAll(fmt.Sprintf("%+v", *m), " ", ",")
	}
	for i, c := range both {
		t.Run(c.provider+" "+name(c.here)+" "+name(c.there), func(t *testing.T) {
			halfShort(t, []nixlapi.Op{nixlapi.Write, nixlapi.Read}[i%2], func(t *testing.T, op nixlapi.Op) {
				const size = 2 * cuda.Granule
				p := stagedPair(t, c.provider)
				a, b := buffer(p.ini, size, seedA, c.here), buffer(p.tgt, size, seedB, c.there)
				p.ini.Learn(p.tgt)
				la, lb := scattered(7, 1000, 100, 1500, 1), scattered(9, 1000, 300, 1500, 2)
				x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.At(la), Remote: b.At(lb), Peer: "bob", Notif: []byte("here")})
				for range 2 {
					a.Fill(seedA)
					b.Fill(seedB)
					x.Do(limit)
					require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
					want(op, a, b, la, lb)
				}
				require.NoError(t, x.Release())
				a.Fill(seedA)
				b.Fill(seedB)
				la.Count, lb.Count = 40, 40 // the tcp rail copies it
				p.ini.Xfer(worker.XferSpec{Op: op, Local: a.At(la), Remote: b.At(lb), Peer: "bob"}).Do(limit)
				want(op, a, b, la, lb)
				a.Fill(seedA)
				b.Fill(seedB)
				p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
				if op == nixlapi.Write {
					b.Want(seedA)
				} else {
					a.Want(seedB)
				}
				says(t, p.ini.Worker, "transfers go through bounce buffers")
				require.NoError(t, p.ini.Deregister(a.All()))
				require.NoError(t, p.tgt.Deregister(b.All()))
				a.Free()
				b.Free()
				gpuClean(t, p.ini, p.tgt)
			})
		})
	}
}

// TestStagedKilled: the target's process is killed during staged transfers. They end with NIXL_ERR_REMOTE_DISCONNECT, and
// the initiator's GPU driver has nothing open at the end.
func TestStagedKilled(t *testing.T) {
	t.Parallel()
	eachOp(t, func(t *testing.T, op nixlapi.Op) {
		const size = 16 << 20
		p := stagedPair(t, "tcp")
		a, b := buffer(p.ini, size, seedA, gpuMem(0)), buffer(p.tgt, size, seedB, gpuMem(1))
		p.ini.Learn(p.tgt)
		x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob"})
		x.Do(limit)
		loop := x.LoopAsync(worker.LoopArgs{N: 1 << 20, Timeout: limit})
		p.tgt.Kill()
		require.Less(t, loop.Wait().Status, nixlapi.Success)
		says(t, p.ini.Worker, "NIXL_ERR_REMOTE_DISCONNECT")
		require.NoError(t, x.Release())
		require.NoError(t, p.ini.Deregister(a.All()))
		a.Free()
		gpuClean(t, p.ini)
	})
}

// TestManyGPUs: one transfer has memory of two GPUs on both sides, a part of which peers cannot map. Each operation takes
// its own path.
func TestManyGPUs(t *testing.T) {
	t.Parallel()
	for _, provider := range []string{"sm", "tcp"} {
		t.Run(provider, func(t *testing.T) {
			eachOp(t, func(t *testing.T, op nixlapi.Op) {
				const size = 2 * cuda.Granule
				p := stagedPair(t, provider)
				var mine, theirs []*worker.Buf
				var here, there []worker.Side
				kinds := []*worker.GPUMem{gpuMem(0), gpuMem(1), {Device: 1, Handles: 2, Private: true}, {Device: 0, Handles: 2}}
				l := worker.Layout{Len: 4096, Stride: 5000, Count: 300, Shuffle: 1}
				for i := range kinds {
					mine, theirs = append(mine, buffer(p.ini, size, seedA, kinds[i])), append(theirs, buffer(p.tgt, size, seedB, kinds[(i+1)%len(kinds)]))
					here, there = append(here, mine[i].At(l)), append(there, theirs[i].At(l))
				}
				here[0].Also, there[0].Also = here[1:], there[1:]
				p.ini.Learn(p.tgt)
				x := p.ini.Xfer(worker.XferSpec{Op: op, Local: here[0], Remote: there[0], Peer: "bob", Notif: []byte("all")})
				for range 2 {
					x.Do(limit)
					require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
				}
				for i := range mine {
					want(op, mine[i], theirs[i], l, l)
				}
				require.NoError(t, x.Release())
				require.NoError(t, p.ini.Close())
				require.NoError(t, p.tgt.Close())
				for i := range mine {
					mine[i].Free()
					theirs[i].Free()
				}
				gpuEmpty(t, p.ini, p.tgt)
			})
		})
	}
}

// TestStagedWhileMapping: VMM memory of many handles is mapped in the background. Transfers are staged until it is mapped.
func TestStagedWhileMapping(t *testing.T) {
	t.Parallel()
	if os.Getenv("GORAIL_TEST_CUDA") != "" {
		t.Skip("the real driver maps the handles too fast")
	}
	const n, size = 70, 70 * cuda.Granule
	p := stagedPair(t, "sm")
	a, b := p.ini.GPUBuffer(size, seedA, device(0)), p.tgt.GPUBuffer(size, seedB, worker.GPUMem{Device: 1, Handles: n})
	p.ini.Learn(p.tgt)
	p.ini.GPUSwitch("slow_import", 900_000) // a minute for all handles
	span := func(m *worker.Buf) worker.Side { return m.Span(69*cuda.Granule, cuda.Granule) }
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: span(a), Remote: span(b), Peer: "bob", Notif: []byte("before")})
	began := time.Now()
	x.Do(limit)
	require.Less(t, p.ini.GPUCount("imports"), n, "all handles are mapped %v after the post, and the transfer was not staged", time.Since(began))
	require.EqualValues(t, -1, b.Diff(69*cuda.Granule, cuda.Granule, seedA, 69*cuda.Granule))
	require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
	says(t, p.ini.Worker, "still being mapped here")
	p.ini.GPUSwitch("slow_import", 0)
	for end := time.Now().Add(limit); ; { // the target copies only while transfers go through bounce buffers
		b.Fill(seedB)
		before := p.tgt.GPUCount("copied_host")
		x.Do(limit)
		after := p.tgt.GPUCount("copied_host")
		require.EqualValues(t, -1, b.Diff(69*cuda.Granule, cuda.Granule, seedA, 69*cuda.Granule))
		if after == before {
			break
		}
		require.True(t, time.Now().Before(end), "transfers are still staged")
	}
	require.NoError(t, x.Release())
	p.endGPU(t, a, b)
}
