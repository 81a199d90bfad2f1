package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/access"
	"gorail/backend/provider"
	"gorail/backend/provider/fake/drive"
	"gorail/backend/transfer"
)

// wrongKeys is a provider whose rails return a wrong key for the region at *bad.
type wrongKeys struct {
	provider.Provider
	bad *uint64 // the region's address
}

type wrongKeyRail struct {
	provider.Rail
	bad *uint64
}

type wrongKeyMR struct{ provider.MR }

func (p wrongKeys) Open(d provider.Device) (provider.Rail, error) {
	r, err := p.Provider.Open(d)
	return wrongKeyRail{r, p.bad}, err
}

func (r wrongKeyRail) Register(addr, length, key uint64, peers access.Rights) (provider.MR, error) {
	mr, err := r.Rail.Register(addr, length, key, peers)
	if err == nil && addr == *r.bad {
		mr = wrongKeyMR{mr}
	}
	return mr, err
}

func (m wrongKeyMR) Key() uint64 { return m.MR.Key() ^ 0x55 }

// TestWrongKey posts transfers with a wrong key, which breaks the endpoints of both sides. Such a transfer fails. Another transfer
// on the same rail is replayed and ends well, and so do later ones. GORAIL_TEST_VERBS: the test uses the host's devices.
func TestWrongKey(t *testing.T) {
	t.Parallel()
	h := onDevices(t)
	var bad uint64
	h.wrap = func(p provider.Provider) provider.Provider { return wrongKeys{p, &bad} }
	p := h.pair(8 << 20)
	p.a.whole(transfer.Write, p.mine, p.theirs).run("first")
	p.b.expect("ann:first")
	theirs := drive.Alloc(1 << 20)
	bad = drive.Addr(theirs)
	wrong := &memory{owner: p.b, b: theirs}
	wrong.register()
	wrong = wrong.seenBy(p.a)
	for i, op := range []int{transfer.Write, transfer.Read} {
		p.mine.fill(uint64(i))
		p.theirs.fill(uint64(i))
		p.mine.b[3]++
		beside := p.a.whole(op, p.mine, p.theirs)
		x := p.a.prep(op, []Desc{p.mine.desc(0, 1<<20)}, []Desc{wrong.desc(0, 1<<20)}, "bob")
		if op == transfer.Read { // into memory of its own, because the other READ fills p.mine
			x = p.a.prep(op, []Desc{p.a.memory(1<<20).desc(0, 1<<20)}, []Desc{wrong.desc(0, 1<<20)}, "bob")
		}
		beside.post("beside")
		x.post("never")
		require.NotEqual(t, done, x.wait())
		require.Equal(t, done, beside.wait())
		p.b.expect("ann:beside")
		p.same()
		require.Equal(t, make([]byte, 1<<20), theirs)
		p.mine.b[4]++
		beside.run("then")
		p.b.expect("ann:then")
		p.same()
	}
}
