package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// TestVRAMFreedUnsaid: the application frees GPU memory without a deregistration, and registers new memory at the same
// address. The log says so, and transfers read the new memory.
func TestVRAMFreedUnsaid(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	o := gpuHost(t)
	o.Setenv = append(o.Setenv, "GORAIL_LOG=info")
	p := &pairOf{env: o.Env, ini: agent(process(t, o), o.Env, "alice"), tgt: agent(process(t, o), o.Env, "bob")}
	p.tgt.Polling(true)
	a, b := p.ini.GPUBuffer(size, seedA, device(0)), p.tgt.GPUBuffer(size, seedB, device(1))
	p.ini.Learn(p.tgt)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.All(), Peer: "bob"})
	x.Do(limit)
	a.Want(seedB)
	b.Free()
	again := p.tgt.AllocGPU(size, device(1))
	require.Equal(t, b.Addr, again.Addr, "the imitation returned another address")
	again.Fill(seedC)
	require.NoError(t, p.tgt.Register(again.All()))
	says(t, p.tgt.Worker, "is mapped at registered addresses")
	x.Do(limit)
	a.Want(seedC)
	require.NoError(t, x.Release())
	require.NoError(t, p.ini.Close())
	require.NoError(t, p.tgt.Close())
	a.Free()
	again.Free()
	for w, mistake := range map[*worker.Agent]string{p.ini: "", p.tgt: "memory was freed while a peer had it mapped by an IPC handle"} {
		open, wrong := w.GPUState()
		if os.Getenv("GORAIL_TEST_CUDA") != "" {
			mistake = "" // the real driver reports no breaches
		}
		require.Equal(t, mistake, strings.TrimSpace(wrong), "breaches other than the application's")
		require.Empty(t, open)
	}
}

// TestVRAMReleased: transfers are released in progress, and the next transfer succeeds. When the target's process is
// killed, the transfer in progress ends with an error.
func TestVRAMReleased(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	t.Run("released", func(t *testing.T) {
		p := gpuPair(t)
		a, b := p.ini.GPUBuffer(size, seedA, device(0)), p.tgt.GPUBuffer(size, seedB, device(1))
		p.ini.Learn(p.tgt)
		l := worker.Layout{Len: 64, Stride: 64, Count: 300_000, Shuffle: 1}
		for range 5 {
			x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.At(l), Remote: b.At(l), Peer: "bob", Notif: []byte("never")})
			x.Post()
			require.NoError(t, x.Release())
		}
		p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("whole")}).Do(limit)
		b.Want(seedA)
		require.NotEmpty(t, p.tgt.WaitNotifs(1, limit))
		a.Want(seedA)
	})
	t.Run("killed", func(t *testing.T) {
		p := gpuPair(t)
		a, b := p.ini.GPUBuffer(size, seedA, device(0)), p.tgt.GPUBuffer(size, seedB, device(1))
		p.ini.Learn(p.tgt)
		x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.All(), Peer: "bob"})
		x.Do(limit)
		loop := x.LoopAsync(worker.LoopArgs{N: 1 << 20, Timeout: limit})
		p.tgt.Kill()
		require.Less(t, loop.Wait().Status, nixlapi.Success)
		require.NoError(t, x.Release())
		require.NoError(t, p.ini.Deregister(a.All()))
		a.Free()
		gpuClean(t, p.ini)
	})
}
