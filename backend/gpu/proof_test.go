package gpu_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/internal/pattern"
	"gorail/test/cuda"
)

// samePID makes two processes with one number, as in two pid namespaces.
func samePID(t *testing.T, switches string) (*rig, *peer) {
	const pid = 7
	r := open(t)
	t.Setenv("GORAIL_TEST_GPU_SWITCHES", "pid=7"+switches)
	p := startPeer(t, r.lib.Path)
	r.lib.Set("pid", pid)
	t.Cleanup(gpu.SetOwnPID(pid))
	return r, p
}

func (p *peer) prove(at, size uint64) gpu.Proof {
	return gpu.Proof(p.ask(ask{Do: "prove", At: at, Size: size}).Data)
}

// TestSamePID: the driver refuses the handle of a process with our own number. With the owner's proof the memory is mapped. The
// copies then move the right bytes.
func TestSamePID(t *testing.T) {
	r, p := samePID(t, "")
	got := p.ask(ask{Do: "alloc", Device: 1, Size: mib})
	s := share(got.Share)
	p.ask(ask{Do: "write", Device: 1, At: got.At, Data: noise(9, mib)})
	_, _, err := r.drv.Map(s, 0)
	require.ErrorIs(t, err, gpu.SamePID)
	require.ErrorContains(t, err, "CUDA_ERROR_INVALID_CONTEXT")
	require.Zero(t, r.lib.Count("ipc_opens"))

	first, second := p.prove(got.At, mib), p.prove(got.At, mib)
	require.NotEqual(t, first, second, "a new word for each proof")
	m, err := r.drv.MapProved(s, 0, first)
	require.NoError(t, err)
	again, err := r.drv.MapProved(s, 0, second)
	require.NoError(t, err)
	require.Equal(t, 1, r.lib.Count("ipc_maps"), "one mapping, and none of the owner's word")
	local := r.alloc(0, cuda.Device, mib)
	ops := r.drv.Ops(1)
	defer r.drv.FreeOps(ops)
	ops[0] = gpu.Op{Local: local, Remote: got.At, Len: mib}
	w := gpu.Work{Ops: ops, Delta: m.At(got.At) - got.At}
	j := r.job(r.stream(0, 1))
	r.run(j, w)
	pattern.Same(t, noise(9, mib), r.app.Read(0, local, mib))
	r.app.Write(0, local, noise(10, mib))
	w.Write = true
	r.run(j, w)
	pattern.Same(t, noise(10, mib), p.ask(ask{Do: "read", Device: 1, At: got.At, Size: mib}).Data)
	require.NoError(t, m.Close())
	require.NoError(t, again.Close())
}

// TestSamePIDLayouts: with another layout of handles nothing is mapped, and the reason says what was found.
func TestSamePIDLayouts(t *testing.T) {
	for layout, want := range map[int]struct {
		why  gpu.Why
		text string
	}{1: {gpu.Layout, "CUDA_ERROR_INVALID_CONTEXT"}, 2: {gpu.Unproved, "the owner's word"}, 3: {gpu.Layout, "CUDA_ERROR_INVALID_VALUE"}} {
		r, p := samePID(t, ",layout="+string(rune('0'+layout)))
		r.lib.Set("layout", layout)
		got := p.ask(ask{Do: "alloc", Device: 1, Size: mib})
		s := share(got.Share)
		_, _, err := r.drv.Map(s, 0)
		if layout == 1 {
			require.ErrorIs(t, err, gpu.Layout)
		} else {
			require.ErrorIs(t, err, gpu.SamePID)
		}
		_, err = r.drv.MapProved(s, 0, p.prove(got.At, mib))
		require.ErrorIs(t, err, want.why, layout)
		require.ErrorContains(t, err, want.text, layout)
		require.Zero(t, r.lib.Count("ipc_maps"), layout)
	}
}

// TestProofs: what is wrong with a proof, or with the memory, and what the mapping says.
func TestProofs(t *testing.T) {
	r, p := samePID(t, "")
	got := p.ask(ask{Do: "alloc", Device: 1, Size: mib})
	p.ask(ask{Do: "write", Device: 1, At: got.At, Data: noise(3, mib)})
	s := share(got.Share)
	try := func(s gpu.Share, change func(*gpu.Proof)) error {
		proof := p.prove(got.At, mib)
		change(&proof)
		m, err := r.drv.MapProved(s, 0, proof)
		if err == nil {
			require.NoError(t, m.Close())
		}
		require.Zero(t, r.lib.Count("ipc_maps"))
		return err
	}
	const word, sample = gpu.ShareSize + 8, gpu.ShareSize + 8 + 16
	none := func(*gpu.Proof) {}
	require.NoError(t, try(s, none))
	require.ErrorIs(t, try(s, func(b *gpu.Proof) { b[word]++ }), gpu.Unproved, "another word")
	require.ErrorIs(t, try(s, func(b *gpu.Proof) { b[0]++ }), gpu.BadShare, "another version")
	require.ErrorIs(t, try(s, func(b *gpu.Proof) { b[32]++ }), gpu.BadShare, "another owner")
	require.ErrorIs(t, try(s, func(b *gpu.Proof) { binary.NativeEndian.PutUint64(b[gpu.ShareSize:], 2<<20-15) }), gpu.BadShare, "a word beyond the end")
	require.ErrorIs(t, try(s, func(b *gpu.Proof) { binary.NativeEndian.PutUint64(b[sample:], mib-15) }), gpu.BadShare, "a sample beyond the end")
	for n, want := range []error{4: nil, 5: gpu.Unproved} {
		require.ErrorIs(t, try(s, func(b *gpu.Proof) {
			for i := range n {
				b[sample+24*i+8]++
			}
		}), want, "%d words have changed", n)
	}
	larger := s
	binary.NativeEndian.PutUint64(larger[16:], 2*mib)
	require.ErrorIs(t, try(larger, none), gpu.BadShare, "less memory than the share says")

	// A peer that shows a handle of ours would make us write to our own memory at an address of its choice.
	own := r.alloc(0, cuda.Device, mib)
	mine, err := r.drv.Share(r.what(own, mib))
	require.NoError(t, err)
	stolen := s
	copy(stolen[72:], mine[72:])
	err = try(stolen, none)
	require.ErrorIs(t, err, gpu.BadShare)
	require.ErrorContains(t, err, "own memory")
}

// TestProveFails: each call of the owner fails once. Then a proof works.
func TestProveFails(t *testing.T) {
	for _, call := range []string{"MemAlloc", "IpcGetMemHandle", "MemcpyHtoDAsync", "MemcpyAsync", "StreamSynchronize"} {
		r := open(t)
		m := r.what(r.alloc(0, cuda.Device, mib), mib)
		r.lib.Fail(call, 1, cuda.OutOfMemory)
		_, err := r.drv.Prove(m)
		require.ErrorIs(t, err, gpu.NoMemory, call)
		_, err = r.drv.Prove(m)
		require.NoError(t, err, call)
	}
	r := open(t)
	_, err := r.drv.Prove(r.what(r.vmm(0, 1, cuda.Granule, true), cuda.Granule))
	require.ErrorIs(t, err, gpu.BadShare)
	at := r.app.Alloc(0, cuda.Device, mib)
	m := r.what(at, mib)
	r.app.Free(0, cuda.Device, at)
	_, err = r.drv.Prove(m)
	require.ErrorIs(t, err, gpu.Changed)
}

// TestProofWaits: the driver does not say that a copy of a proof has ended. The peer's memory stays mapped until the end of the copy.
func TestProofWaits(t *testing.T) {
	r, p := samePID(t, "")
	got := p.ask(ask{Do: "alloc", Device: 1, Size: mib})
	proof := p.prove(got.At, mib)
	_, err := r.drv.Device(0)
	require.NoError(t, err)
	r.lib.Set("late", 200_000)
	r.lib.Fail("StreamSynchronize", 1, cuda.OutOfMemory)
	_, err = r.drv.MapProved(share(got.Share), 0, proof)
	require.ErrorIs(t, err, gpu.NoMemory)
	require.Empty(t, r.lib.Breaches())
}

// TestHiddenGPU: CUDA_VISIBLE_DEVICES hides a GPU from the application, and its memory is mapped all the same. Without the
// device node the driver refuses, and the reason names the remedy.
func TestHiddenGPU(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "1")
	lib := cuda.Build(t)
	p := startPeer(t, lib.Path)
	ipc := p.ask(ask{Do: "alloc", Device: 0, Size: mib})
	vmm := p.ask(ask{Do: "alloc", Kind: "vmm", Device: 0, N: 2, Size: cuda.Granule})
	t.Setenv("CUDA_VISIBLE_DEVICES", "0")
	r := openAt(t, lib, lib.Path)
	s, v := share(ipc.Share), share(vmm.Share)
	require.Equal(t, 1, r.drv.Devices())
	require.Equal(t, -1, r.drv.Find(s.GPU()))
	m, _, err := r.drv.Map(s, 0)
	require.NoError(t, err)
	p.ask(ask{Do: "write", Device: 0, At: ipc.At, Data: noise(1, mib)})
	local := r.alloc(0, cuda.Device, mib)
	ops := r.drv.Ops(1)
	defer r.drv.FreeOps(ops)
	ops[0] = gpu.Op{Local: local, Remote: ipc.At, Len: mib}
	r.run(r.job(r.stream(0, gpu.ToHost)), gpu.Work{Ops: ops, Delta: m.At(ipc.At) - ipc.At})
	pattern.Same(t, noise(1, mib), r.app.Read(0, local, mib))
	require.NoError(t, m.Close())
	m, _, err = r.drv.Map(v, 0)
	require.NoError(t, err)
	addPieces(t, p, m, vmm.At, 2*cuda.Granule, 2, 1)
	require.NoError(t, m.Close())

	lib.Set("hidden", 1<<1)
	_, _, err = r.drv.Map(s, 0)
	require.ErrorIs(t, err, gpu.Unseen)
	same := s
	binary.NativeEndian.PutUint32(same[72+8:], 7)
	lib.Set("pid", 7)
	undo := gpu.SetOwnPID(7)
	proof := p.prove(ipc.At, mib)
	binary.NativeEndian.PutUint32(proof[72+8:], 7)
	_, err = r.drv.MapProved(same, 0, proof)
	require.ErrorIs(t, err, gpu.Unseen, "with equal process numbers, too")
	undo()
	lib.Set("pid", 0)
	require.ErrorContains(t, err, "give both pods both devices")
	m, _, err = r.drv.Map(v, 0)
	require.NoError(t, err)
	sizes := p.ask(ask{Do: "pieces", At: vmm.At, Size: 2 * cuda.Granule, N: 1}).Sizes
	require.ErrorIs(t, m.Add(p.take(1), sizes), gpu.Unseen)
	require.NoError(t, m.Close())
}
