package region

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// TestCover compares random lists with a search through all of them. Memory types and devices differ.
func TestCover(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		random := func(most uint64) wire.Range {
			return wire.Range{Addr: 1 + rnd.Uint64N(40), Len: rnd.Uint64N(most), Dev: rnd.Uint64N(2), Mem: rnd.Int32N(2)}
		}
		list := make([]*Region, rnd.IntN(12))
		for i := range list {
			list[i] = &Region{Claim: wire.Claim{Range: random(20)}}
		}
		c := NewCover(list)
		for range 100 {
			q := random(6)
			name := fmt.Sprintf("seed %d, %+v", seed, q)
			var last uint64
			overlaps := false
			for _, g := range list {
				if g.Mem != q.Mem || g.Dev != q.Dev {
					continue
				}
				if g.Contains(q.Addr, 1) {
					last = max(last, g.Addr+g.Len)
				}
				overlaps = overlaps || q.Len > 0 && g.Len > 0 && g.Addr < q.Addr+q.Len && q.Addr < g.Addr+g.Len
			}
			require.Equal(t, overlaps, c.Overlaps(q), name)
			if g := c.At(q, q.Addr); last == 0 {
				require.Nil(t, g, name)
			} else {
				require.NotNil(t, g, name)
				require.True(t, g.Contains(q.Addr, 1) && g.Mem == q.Mem && g.Dev == q.Dev, name)
				require.Equal(t, last, g.Addr+g.Len, name)
			}
		}
	}
}

func region(index, gen uint64) (id uint64) { return gen<<32 | index }

// Who holds the keys of a region is known until the region ends. A session with the keys of all regions costs a bit for
// each of them.
func TestHolders(t *testing.T) {
	const regions = 100_000
	h := newHolders()
	var sessions [5]Holder
	holder := func(i int) *Holder { return &sessions[i] }
	for i := range uint64(regions) {
		h.note(holder(1), region(i, 1))
		h.note(holder(1), region(i, 1))
	}
	h.note(holder(2), region(70, 1))
	h.note(holder(2), region(3, 1))
	require.Less(t, 8*cap(h.list[0].bits), 2*regions/8)
	require.ElementsMatch(t, []*Holder{holder(1), holder(2)}, h.take(region(70, 1)))
	require.Empty(t, h.take(region(70, 2)), "another region in its place")
	require.Empty(t, h.take(region(regions+64, 1)))
	h.drop(holder(3)) // unknown
	h.drop(holder(1))
	require.Empty(t, h.take(region(5, 1)))
	require.Equal(t, []*Holder{holder(2)}, h.take(region(3, 1)))
	h.note(holder(2), region(3, 2))
	h.note(holder(4), region(3, 2))
	require.Equal(t, []*Holder{holder(2), holder(4)}, h.take(region(3, 2)))
	h.drop(holder(2))
	h.drop(holder(4))
	require.Empty(t, h.list)
	require.Empty(t, h.place)
}

// paused is a destructor whose timers the test lets fire.
type paused struct {
	destructor
	due []func()
}

func (p *paused) after(_ time.Duration, f func()) { p.due = append(p.due, f) }

// fire lets what is due fire, once each, n times. A stopped process does that once when it continues, whatever the time.
func (p *paused) fire(n int) {
	for range n {
		due := p.due
		p.due = nil
		for _, f := range due {
			f()
		}
	}
}

func (p *paused) deregister() { p.begins(); p.ends(p.after) }

// A destructor's calls follow each other without a pause, and none is a registration.
func TestDestructor(t *testing.T) {
	var p paused
	require.False(t, p.stays.Load())
	p.registers()
	require.True(t, p.stays.Load())
	for range 3 {
		p.deregister()
		require.False(t, p.stays.Load())
		p.fire(pauseSteps - 1)
		require.False(t, p.stays.Load(), "too early")
	}
	require.Len(t, p.due, 1, "one timer at a time")
	p.unloads(p.after)
	p.fire(pauseSteps - 1)
	require.False(t, p.stays.Load(), "the unloading may be the destructor's")
	p.fire(1)
	require.True(t, p.stays.Load())
	require.Empty(t, p.due)
	p.unloads(p.after)
	require.False(t, p.stays.Load(), "a destructor that has nothing to deregister")
	p.registers()
	require.True(t, p.stays.Load(), "no destructor registers")
	p.unloads(p.after)
	require.True(t, p.stays.Load(), "a destructor would have deregistered that first")
	p.fire(pauseSteps)
	p.deregister()
	require.False(t, p.stays.Load())
}

// A deregistration that waits for peers is no pause, and neither is the end of the engine.
func TestDestructorWaits(t *testing.T) {
	var p paused
	p.registers()
	p.deregister()
	p.fire(pauseSteps - 1)
	p.begins()
	p.registers()
	p.fire(10 * pauseSteps)
	require.False(t, p.stays.Load(), "another thread's registration does not end it")
	p.ends(p.after)
	p.fire(pauseSteps - 1)
	require.False(t, p.stays.Load())
	p.begins() // the engine ends
	p.fire(10 * pauseSteps)
	p.registers()
	require.False(t, p.stays.Load())
}

// Without timers only a registration shows that the agent goes on.
func TestDestructorWithoutTimers(t *testing.T) {
	var p paused
	p.begins()
	p.ends(nil)
	require.False(t, p.stays.Load())
	p.registers()
	require.True(t, p.stays.Load())
}
