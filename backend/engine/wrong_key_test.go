package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/access"
	"gorail/backend/provider"
	"gorail/backend/provider/fake/drive"
	"gorail/backend/transfer"
)

// liar is a provider whose rails give a wrong key for one region, once it is known.
type liar struct {
	provider.Provider
	bad *uint64 // its first byte
}

type lyingRail struct {
	provider.Rail
	bad *uint64
}

type lyingMR struct{ provider.MR }

func (l liar) Open(d provider.Device) (provider.Rail, error) {
	r, err := l.Provider.Open(d)
	return lyingRail{r, l.bad}, err
}

func (r lyingRail) Register(addr, length, key uint64, peers access.Rights) (provider.MR, error) {
	mr, err := r.Rail.Register(addr, length, key, peers)
	if err == nil && addr == *r.bad {
		mr = lyingMR{mr}
	}
	return mr, err
}

func (m lyingMR) Key() uint64 { return m.MR.Key() ^ 0x55 }

// TestWrongKey: an initiator that presents a wrong key breaks the connection at both ends, again and again. Its transfer fails; those
// beside it on the same rail are replayed and end well, and so does what comes then. GORAIL_TEST_VERBS: on a device of this machine.
func TestWrongKey(t *testing.T) {
	t.Parallel()
	h := onDevices(t)
	var bad uint64
	h.wrap = func(p provider.Provider) provider.Provider { return liar{p, &bad} }
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
		if op == transfer.Read { // it would land where the other does
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
