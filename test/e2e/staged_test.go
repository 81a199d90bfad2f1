package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/cuda"
	"gorail/test/nixl"
	"gorail/test/worker"
)

// stagedPair is gpuPair over some provider; rings have room for little, so that there are many chunks.
func stagedPair(t testing.TB, provider string, opts ...option) *pairOf {
	t.Helper()
	o := gpuHost(t)
	o.Setenv = append(o.Setenv, "GORAIL_PROVIDER="+provider, "GORAIL_LOG=info", "GORAIL_STAGE_SIZE=1MiB")
	p := &pairOf{env: o.Env, ini: agent(worker.Start(t, o), o.Env, "alice", opts...), tgt: agent(worker.Start(t, o), o.Env, "bob", opts...)}
	p.tgt.Polling(true)
	return p
}

// buffer is memory of the host, or of a GPU.
func buffer(a *worker.Agent, size, seed uint64, m *worker.GPUMem) *worker.Buf {
	if m == nil {
		return a.Buffer(size, seed)
	}
	return a.GPUBuffer(size, seed, *m)
}

func gpuMem(n int) *worker.GPUMem { m := device(n); return &m }

// TestStaged: memory of GPUs, on one side or both, where no rail moves it: over tcp, and between host memory and GPUs on one host.
func TestStaged(t *testing.T) {
	both := []struct {
		provider    string
		here, there *worker.GPUMem
	}{
		{"tcp", gpuMem(0), gpuMem(1)}, {"tcp", nil, gpuMem(1)}, {"tcp", gpuMem(0), nil},
		{"local", nil, gpuMem(1)}, {"local", gpuMem(0), nil},
		{"local", gpuMem(0), &worker.GPUMem{Device: 1, Handles: 2, Private: true}}, {"local", gpuMem(1), &worker.GPUMem{Device: 1, Kind: int(cuda.Pool)}},
	}
	name := func(m *worker.GPUMem) string {
		if m == nil {
			return "host"
		}
		return strings.ReplaceAll(fmt.Sprintf("%+v", *m), " ", ",")
	}
	for _, c := range both {
		t.Run(c.provider+" "+name(c.here)+" "+name(c.there), func(t *testing.T) {
			eachOp(t, func(t *testing.T, op nixl.Op) {
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
					if n := p.tgt.WaitNotifs(1, limit/10); len(n) != 1 { t.Fatalf("notifs %v\nINI %s\nTGT %s", n, p.ini.Output(), p.tgt.Output()) }
					want(op, a, b, la, lb)
				}
				require.NoError(t, x.Release())
				a.Fill(seedA)
				b.Fill(seedB)
				p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
				if op == nixl.Write {
					b.Want(seedA)
				} else {
					a.Want(seedB)
				}
				says(t, p.ini.Worker, "transfers are staged")
				require.NoError(t, p.ini.Deregister(a.All()))
				require.NoError(t, p.tgt.Deregister(b.All()))
				a.Free()
				b.Free()
				gpuClean(t, p.ini, p.tgt)
			})
		})
	}
}
