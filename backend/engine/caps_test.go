package engine

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
	"gorail/test/fake"
)

// Bytes and notifications do not depend on the capabilities of the fabric.
func TestCaps(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*fake.Caps){
		"small queues":           func(c *fake.Caps) { c.TxDepth, c.RxDepth = 10, 32 },
		"iov 1":                  func(c *fake.Caps) { c.IOVLimit = 1 },
		"iov 8":                  func(c *fake.Caps) { c.IOVLimit = 8 },
		"offsets":                func(c *fake.Caps) { c.VirtAddr = false },
		"virtual":                func(c *fake.Caps) { c.VirtAddr = true },
		"provider's keys":        func(c *fake.Caps) { c.ProviderKeys = true },
		"short keys":             func(c *fake.Caps) { c.KeySize = 1 },
		"descriptors":            func(c *fake.Caps) { c.LocalDesc = true },
		"small messages":         func(c *fake.Caps) { c.MaxSend = 256 },
		"small requests":         func(c *fake.Caps) { c.MaxMsg = 5000 },
		"unordered":              func(c *fake.Caps) { c.Ordered = false },
		"unsignaled completions": func(c *fake.Caps) { *c = fake.VerbsCaps() },
	} {
		t.Run(name, func(t *testing.T) {
			caps := fake.TCPCaps()
			change(&caps)
			exercise(onFake(t, caps))
		})
	}
	t.Run("no descriptor to wait on", func(t *testing.T) {
		h := onFake(t, fake.TCPCaps())
		h.links[0].NoWaitFD = true
		exercise(h)
	})
}

// exercise writes, reads and notifies: in one descriptor, in many, and after a fence.
func exercise(h *harness) {
	p := h.pair(256 << 10)
	var l, r []Desc
	for i := 0; i < 256<<10; i += 4096 {
		l, r = append(l, p.mine.desc(i, 3000)), append(r, p.theirs.desc(i, 3000))
		l, r = append(l, p.mine.desc(i+3000, 1096)), append(r, p.theirs.desc(i+3000, 1096))
	}
	for i := range l { // backwards, so that no descriptors merge
		if j := len(l) - 1 - i; i < j {
			l[i], l[j], r[i], r[j] = l[j], l[i], r[j], r[i]
		}
	}
	var want []string
	notify := func(i int) string {
		require.NoError(h, p.a.Notify("bob", body(i*1000, i)))
		want = append(want, "ann:"+string(body(i*1000, i)))
		text := fmt.Sprint("transfer ", i)
		want = append(want, "ann:"+text)
		return text
	}
	for i := range 8 {
		p.mine.fill(uint64(i))
		p.theirs.fill(uint64(i + 50))
		local, remote := l, r
		if i < 4 {
			local, remote = []Desc{p.mine.desc(0, 256<<10)}, []Desc{p.theirs.desc(0, 256<<10)}
		}
		x := p.a.prep(i%2, local, remote, "bob")
		if i == 6 {
			p.a.connected("bob").fenceAll("test")
		}
		x.post(notify(i))
		until(h, "the transfer ends and its notifications arrive", func() bool { return x.check() != inProg && len(p.b.take()) == len(want) })
		require.Equal(h, done, x.wait())
		require.Equal(h, want, p.b.got)
		p.same()
		x.release()
	}
	require.Zero(h, p.a.transfers.Len())
}

// Keys of one byte are enough for 254 registrations. A further registration succeeds, but a transfer over its memory fails.
func TestKeysUsedUp(t *testing.T) {
	t.Parallel()
	caps := fake.TCPCaps()
	caps.KeySize = 1
	h := onFake(t, caps)
	p := h.pair(4096)
	var ids []uint64
	for i := range 300 {
		id, err := p.a.Register(1<<40+uint64(i)<<20, 4096, 0, 0, nil)
		require.NoError(t, err)
		ids = append(ids, id)
	}
	require.True(t, h.log.has("memory not registered on a rail", "fake/fake0", "key"))
	d := Desc{Addr: 1<<40 + 299<<20, Len: 8, MD: unsafe.Pointer(&metaObject{region: ids[299]})}
	_, _, err := p.a.Prep(transfer.Write, []Desc{d}, []Desc{p.theirs.desc(0, 8)}, "bob")
	require.ErrorContains(t, err, "fake/fake0")
	require.ErrorContains(t, err, "deregister")
	for _, id := range ids {
		require.NoError(t, p.a.Deregister(id))
	}
	p.a.whole(transfer.Write, p.mine.fill(1), p.theirs).run()
	p.same()
}

// The fabric has used a key for a message buffer. The engine draws another key.
func TestKeyTakenByTheFabric(t *testing.T) {
	t.Parallel()
	caps := fake.TCPCaps()
	caps.KeySize, caps.LocalDesc = 1, true
	h := onFake(t, caps)
	p := h.pair(4096)
	for i := range 150 {
		_, err := p.a.Register(1<<40+uint64(i)<<20, 4096, 0, 0, nil)
		require.NoError(t, err)
	}
	require.False(t, h.log.has("memory not registered on a rail"))
	p.a.whole(transfer.Write, p.mine.fill(1), p.theirs).run()
	p.same()
}

// The same range registered twice is one region. Two overlapping ranges are two regions. Each deregistration ends one
// registration.
func TestRegistrations(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		p := h.pair(64 << 10)
		again, err := p.a.Register(p.mine.addr(), 64<<10, 0, 0, nil)
		require.NoError(h, err)
		require.Equal(h, p.mine.md.region, again)
		inner := &memory{owner: p.a, b: p.mine.b[4096:8192]}
		inner.register()
		require.NotEqual(h, p.mine.md.region, inner.md.region)
		require.NoError(h, p.a.Deregister(again))
		p.a.whole(transfer.Write, p.mine.fill(1), p.theirs).run()
		p.same()
		known := func(addr, n uint64) bool { ok, err := p.a.Known(addr, n, 0, 0); require.NoError(h, err); return ok }
		require.True(h, known(p.mine.addr()+5000, 100))
		require.True(h, known(p.mine.addr(), 64<<10))
		require.False(h, known(p.mine.addr(), 64<<10+1))
		require.NoError(h, p.a.Deregister(p.mine.md.region))
		require.False(h, known(p.mine.addr(), 64<<10))
		p.mine.fill(2)
		p.a.prep(transfer.Write, []Desc{inner.desc(0, 4096)}, []Desc{p.theirs.desc(0, 4096)}, "bob").run()
		require.True(h, string(inner.b) == string(p.theirs.b[:4096]))
		_, err = p.a.Register(^uint64(0)-10, 100, 0, 0, nil)
		require.Error(h, err)
	})
}
