package e2e

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/worker"
)

// imitatedPair is gpuPair with the imitation of the driver, and with other environments for the two processes.
func imitatedPair(t *testing.T, alice, bob []string) *pairOf {
	t.Helper()
	o := gpuHost(t)
	o.Setenv = append(o.Setenv, "GORAIL_CUDA_PATH="+cuda.Build(t).Path, "GORAIL_LOG=info")
	start := func(name string, env []string) *worker.Agent {
		o := o
		o.Setenv = append(slices.Clip(o.Setenv), env...)
		return agent(process(t, o), o.Env, name)
	}
	p := &pairOf{env: o.Env, ini: start("alice", alice), tgt: start("bob", bob)}
	p.tgt.Polling(true)
	return p
}

// wayCase is a pair of memories, and whether the initiator's GPU copies directly.
type wayCase struct {
	env    [2][]string // of alice and bob
	there  worker.GPUMem
	direct bool
	warns  string // alice's warning
}

func (c *wayCase) try(t *testing.T) {
	eachOp(t, func(t *testing.T, op nixlapi.Op) {
		const size = 2 * cuda.Granule
		p := imitatedPair(t, c.env[0], c.env[1])
		a, b := p.ini.GPUBuffer(size, seedA, device(0)), p.tgt.GPUBuffer(size, seedB, c.there)
		p.ini.Learn(p.tgt)
		x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("here")})
		x.Do(limit)
		require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
		if op == nixlapi.Write {
			b.Want(seedA)
		} else {
			a.Want(seedB)
		}
		if c.direct {
			require.NotContains(t, p.ini.Output(), "bounce buffers")
		} else {
			says(t, p.ini.Worker, "transfers go through bounce buffers", c.warns)
			says(t, p.ini.Worker, "path to peer changed", "VRAM:ipc or staged (", c.warns)
			says(t, p.ini.Worker, "WARN", c.warns)
		}
		require.NoError(t, x.Release())
		require.NoError(t, p.ini.Close())
		require.NoError(t, p.tgt.Close())
		a.Free()
		b.Free()
		gpuEmpty(t, p.ini, p.tgt)
	})
}

// TestVRAMOtherVisibleGPU: two processes that show different GPUs to their applications, as CUDA_VISIBLE_DEVICES says. The GPU
// of one copies to memory of the other's.
func TestVRAMOtherVisibleGPU(t *testing.T) {
	t.Parallel()
	env := [2][]string{{"CUDA_VISIBLE_DEVICES=0"}, {"CUDA_VISIBLE_DEVICES=1"}}
	for name, mem := range map[string]worker.GPUMem{"ipc": device(0), "vmm": {Handles: 2}} {
		t.Run(name, func(t *testing.T) { (&wayCase{env: env, there: mem, direct: true}).try(t) })
	}
}

// TestVRAMHiddenGPU: the initiator's container has no device node of the target's GPU. A warning has the remedy, and the bytes
// go through bounce buffers.
func TestVRAMHiddenGPU(t *testing.T) {
	t.Parallel()
	env := [2][]string{{"CUDA_VISIBLE_DEVICES=0", "GORAIL_TEST_GPU_SWITCHES=hidden=2"}, {"CUDA_VISIBLE_DEVICES=1"}}
	for name, mem := range map[string]worker.GPUMem{"ipc": device(0), "vmm": {Handles: 2}} {
		t.Run(name, func(t *testing.T) { (&wayCase{env: env, there: mem, warns: "give both pods both devices"}).try(t) })
	}
}

// TestVRAMUnknownHandle: the driver takes the handles of the target for the initiator's own, and the handles are not laid out
// as known. A warning says so. VMM memory on the target's GPU takes the bytes.
func TestVRAMUnknownHandle(t *testing.T) {
	t.Parallel()
	same := []string{"GORAIL_TEST_GPU_SWITCHES=pid=7,layout=1"}
	(&wayCase{env: [2][]string{same, same}, there: device(1), warns: "takes the peer's IPC handle for one of ours"}).try(t)
}
