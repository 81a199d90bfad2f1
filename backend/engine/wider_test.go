package engine

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
	"gorail/backend/wire"
	"gorail/test/fake"
)

// without takes the keys of rail 1 away.
func without(k *wire.Keys) {
	for i := range k.Entries {
		k.Entries[i].Rails = slices.DeleteFunc(slices.Clone(k.Entries[i].Rails), func(r wire.RailKey) bool { return r.Rail == 1 })
	}
}

var moreRails = &wire.Wider{Rails: []wire.Rail{{Number: 1}}}

// has reports that the initiator has the liar's keys of a rail.
func (d *deceived) has(rail int) bool {
	return d.a.regions.Regions.Get(d.theirs.md.region).Rails.Load()&(1<<rail) != 0
}

// The target registers memory on more rails while its answer with the keys is under way: it says so first, and the answer comes after that. The initiator
// asks again.
func TestWiderBeforeKeys(t *testing.T) {
	t.Parallel()
	first := true
	d := newDeceivedOn(onRails(t, 2, fake.TCPCaps()), func(l *liar) {
		l.lies(func(f wire.Frame) []wire.Frame {
			k, ok := f.(*wire.Keys)
			if !ok || !first {
				return []wire.Frame{f}
			}
			first = false
			without(k)
			return []wire.Frame{moreRails, k}
		})
	})
	require.Equal(t, done, d.transfer(transfer.Write))
	until(t, "the keys of the other rail are here", func() bool { return d.has(1) })
	d.works()
}

// A target says again and again that its memory is on more rails, and gives no keys of them. The initiator asks a few times a second. Then the keys come.
func TestWiderAgain(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	var gives atomic.Bool
	d := newDeceivedOn(onRails(t, 2, fake.TCPCaps()), func(l *liar) {
		l.lies(func(f wire.Frame) []wire.Frame {
			if k, ok := f.(*wire.Keys); ok && !gives.Load() {
				without(k)
			}
			return []wire.Frame{f}
		})
		l.quiet(func(f wire.Frame) bool {
			if _, ok := f.(*wire.KeysReq); ok {
				asked.Add(1)
			}
			return false
		})
	})
	require.Equal(t, done, d.transfer(transfer.Write))
	began, before := time.Now(), asked.Load()
	for range 2000 {
		d.tell(moreRails)
		time.Sleep(200 * time.Microsecond)
	}
	require.Equal(t, done, d.transfer(transfer.Write))
	most := int64(time.Since(began)/(250*time.Millisecond)) + 2
	require.LessOrEqual(t, asked.Load()-before, most)
	require.Greater(t, asked.Load(), before)
	gives.Store(true)
	d.tell(moreRails)
	until(t, "the last Wider is answered", func() bool { return d.has(1) })
	d.works()
}
