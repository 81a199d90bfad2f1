package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/region"
	"gorail/backend/transfer"
	"gorail/test/cuda"
	imitation "gorail/test/verbs"
)

// GPU memory moves over verbs, to memory of a GPU or of the host. It is registered as a dmabuf or through nvidia_peermem, on one to
// three devices, whole or in slices. All bytes are compared.
func TestVerbsVRAM(t *testing.T) {
	t.Parallel()
	const size = 3 << 20
	for name, c := range map[string]struct {
		devices, handles int
		peermem          bool
		params           []string
		how              string
	}{
		"dmabuf":               {devices: 1, how: "dmabuf"},
		"dmabuf, handles":      {devices: 1, handles: 2, how: "dmabuf"},
		"dmabuf, three rails":  {devices: 3, how: "dmabuf"},
		"dmabuf, slices":       {devices: 2, handles: 2, params: []string{"mr_max", "1MiB"}, how: "dmabuf"},
		"peermem":              {devices: 1, peermem: true, how: "nvidia_peermem"},
		"peermem, three rails": {devices: 3, peermem: true, handles: 2, how: "nvidia_peermem"},
	} {
		t.Run(name, func(t *testing.T) {
			h := onGPUDevices(t, c.devices)
			if c.peermem {
				h.lib.Set("dmabuf", 0)
				h.lib.Peermem(h.cuda.Peermem())
			}
			a, b := h.agent("ann", c.params...), h.agent("bob", c.params...)
			loadBoth(a, b)
			h.moves(a, b, h.gpu(a, 0, size, c.handles), h.gpu(b, 1, size, c.handles))
			h.moves(a, b, h.gpu(a, 1, size, c.handles), h.dram(b, size))
			h.moves(a, b, h.dram(a, size), h.gpu(b, 0, size, c.handles))
			require.True(t, h.log.has("memory of GPUs is registered on a rail", "verbs/hca0", c.how))
			require.Equal(t, 2*c.devices, h.log.count("memory of GPUs is registered on a rail"), "one line per rail of each agent")
			if c.devices > 1 {
				require.True(t, h.log.has("memory of GPUs is registered on a rail", "verbs/hca1", c.how))
			}
		})
	}
}

// GPU memory is freed without deregistration and allocated again at the same address. The application registers it again. Peers
// reach the new memory then.
func TestVerbsVRAMFreed(t *testing.T) {
	t.Parallel()
	h := onGPUDevices(t, 2)
	a, b := h.agent("ann"), h.agent("bob")
	loadBoth(a, b)
	const size = 1 << 20
	mine := h.gpu(a, 0, size, 0)
	at := h.app.Alloc(1, cuda.Device, size)
	theirs := &vram{owner: b, app: h.app, dev: 1, at: at, size: size}
	id, err := b.Register(at, size, 1, region.VRAM, nil)
	require.NoError(t, err)
	theirs.blob, err = b.RegionBlob(id)
	require.NoError(t, err)
	h.moves(a, b, mine, theirs)
	h.app.Free(1, cuda.Device, at)
	again := h.app.Alloc(1, cuda.Device, size)
	require.Equal(t, at, again)
	_, err = b.Register(at, size, 1, region.VRAM, nil)
	require.NoError(t, err)
	require.True(t, h.log.has("is mapped at registered addresses"))
	h.moves(a, b, mine, theirs)
	require.NoError(t, b.Deregister(id))
	require.NoError(t, b.Deregister(id))
	h.app.Free(1, cuda.Device, at)
}

// The rail near a GPU carries small transfers of its memory, in whichever order the rails are listed. A large transfer uses both
// rails.
func TestVerbsVRAMNear(t *testing.T) {
	t.Parallel()
	h := onGPUDevices(t, 2)
	const left, right = "pci0000:15/0000:15:01.0/0000:16:00.0/", "pci0000:80/0000:80:01.0/0000:81:00.0/"
	imitation.OnPCI(h.sys, 0, left+"0000:17:00.0/0000:18:00.0")
	imitation.OnPCI(h.sys, 1, right+"0000:82:00.0/0000:83:00.0")
	imitation.OnPCI(h.sys, -1, left+"0000:17:01.0/0000:a0:00.0")
	imitation.OnPCI(h.sys, -1, right+"0000:82:01.0/0000:a1:00.0")
	a, b := h.agent("ann"), h.agent("bob")
	loadBoth(a, b)
	theirs := h.dram(b, 16<<20)
	seen := theirs.seenBy(a)
	for dev := range 2 {
		mine := h.gpu(a, dev, 16<<20, 0)
		mine.fill()
		x := a.prep(transfer.Write, []Desc{mine.desc(0, 16<<20)}, []Desc{seen.desc(0, 16<<20)}, "bob")
		until(t, "both rails work", func() bool { return a.connected("bob").atWork() == 2 })
		x.run("")
		for i, n := range x.shares() {
			require.Positive(t, n, "rail %d", i)
		}
		until(t, "small transfers stay on the near rail", func() bool { // a busy machine may stop a rail while its rate is measured:
			x.post()
			require.Equal(t, done, x.wait()) // measures again
			far := 0
			b.take() // a busy machine needs many rounds, and notifications that nobody takes end the credits
			for i := range 20 {
				y := a.prep(i%2, []Desc{mine.desc(i<<12, 4096)}, []Desc{seen.desc(i<<12, 4096)}, "bob")
				y.post()
				require.Equal(t, done, y.wait())
				if y.shares()[1-dev] > 0 {
					far++
				}
				y.release()
			}
			return far == 0
		})
		x.release()
		require.NoError(t, a.Deregister(mine.md.region))
	}
}

// A GPU with writes_order 0 needs a flush to see what a device has written. The target flushes before it gives the application the
// notification of a WRITE. The initiator flushes before a READ ends. There is no other flush, and none before memory of such a GPU
// is registered.
func TestVerbsVRAMFlush(t *testing.T) {
	t.Parallel()
	for _, order := range []int{0, 100} {
		h := onGPUDevices(t, 1)
		h.cuda.Set("writes_order", order)
		a, b := h.agent("ann"), h.agent("bob")
		loadBoth(a, b)
		const size = 1 << 20
		x := a.prep(transfer.Read, []Desc{h.dram(a, size).desc(0, size)}, []Desc{h.dram(b, size).seenBy(a).desc(0, size)}, "bob")
		x.run("host")
		b.expect("ann:host")
		require.Zero(t, h.cuda.Count("flushes"))
		mine, theirs := h.gpu(a, 0, size, 0), h.gpu(b, 1, size, 0)
		local, remote := []Desc{mine.desc(0, size)}, []Desc{theirs.seenBy(a).desc(0, size)}
		flushed := func(what string, do func()) {
			before := h.cuda.Count("flushes")
			do()
			require.Equal(t, order == 0, h.cuda.Count("flushes") > before, what)
		}
		w, r := a.prep(transfer.Write, local, remote, "bob"), a.prep(transfer.Read, local, remote, "bob")
		before := h.cuda.Count("flushes")
		w.run("written")
		require.Equal(t, before, h.cuda.Count("flushes"), "the initiator of a WRITE needs no flush")
		flushed("a notification", func() { b.expect("ann:written") })
		for range 3 { // posted through Go first, then without
			flushed("a READ", func() { r.run() })
		}
		a.quiet()
	}
}
