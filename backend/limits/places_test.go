package limits

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	at   = time.Now()
	a, b = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
)

// A source gets three quarters of all.
func TestPlaces(t *testing.T) {
	var r Places
	most := Quarters(Amount{Endpoints: 8, Descriptors: 100})
	take := func(source netip.Addr, more Amount) Bound { return r.Take(Owner{Source: source}, more, most, at).By }
	require.Equal(t, ByNone, take(a, Amount{Endpoints: 6, Descriptors: 6}), "three quarters")
	require.Equal(t, BySource, take(a, Amount{Endpoints: 1, Descriptors: 1}))
	require.Equal(t, ByNone, take(b, Amount{Endpoints: 2, Descriptors: 2}), "the rest is for others")
	require.Equal(t, ByAll, take(b, Amount{Endpoints: 1, Descriptors: 1}), "all are taken")
	r.Give(Owner{Source: a}, Amount{Endpoints: 6, Descriptors: 6})
	require.Equal(t, BySource, take(b, Amount{Endpoints: 1, Descriptors: 80}), "descriptors count, too")
	require.Equal(t, BySource, take(b, Amount{Bytes: 1}), "and bytes")
	r.Give(Owner{Source: b}, Amount{Endpoints: 2, Descriptors: 2})
	require.Equal(t, Amount{}, r.Used())
	require.Empty(t, r.sources)
	require.Empty(t, r.all.identities)
}

func TestQuarters(t *testing.T) {
	for all, most := range map[int]int{0: 0, 1: 1, 2: 1, 3: 2, 4: 3, 5: 3, 8: 6, 1 << 30: 3 << 28} {
		require.Equal(t, most, Quarters(Amount{Endpoints: all}).Source.Endpoints, all)
	}
	require.Equal(t, Amount{Sessions: 9}, Quarters(Amount{Sessions: 16}).OfSource)
}

// owners takes one session each.
type owners struct {
	Places
	t    *testing.T
	most Most
	now  time.Time
}

func (r *owners) take(source netip.Addr, id byte) Refusal {
	return r.Take(Owner{source, ID{id}}, Amount{Sessions: 1}, r.most, r.now)
}

// fill takes sessions until one is refused.
func (r *owners) fill(source netip.Addr, id byte) (n int, f Refusal) {
	for ; ; n++ {
		if f = r.take(source, id); f.By != ByNone {
			return n, f
		}
	}
}

// One identity alone gets all that its source gets. Where there is another one, it gets three quarters, and what it has
// beyond is asked back.
func TestLent(t *testing.T) {
	r := owners{t: t, most: Quarters(Amount{Sessions: 16}), now: at}
	n, f := r.fill(a, 1)
	require.Equal(t, 12, n)
	require.Equal(t, Refusal{By: BySource, Has: Amount{Sessions: 12}, From: Owner{Source: a}}, f, "the usual bound")

	f = r.take(a, 2)
	require.Equal(t, Refusal{By: BySource, Has: Amount{Sessions: 12}, From: Owner{a, ID{1}}, Lent: true}, f)
	require.True(t, f.Asks(Owner{a, ID{1}}))
	require.False(t, f.Asks(Owner{a, ID{2}}))
	require.False(t, f.Asks(Owner{b, ID{1}}))
	for range 3 {
		require.Equal(t, ByIdentity, r.take(a, 1).By)
		r.Give(Owner{a, ID{1}}, Amount{Sessions: 1})
		require.Equal(t, ByNone, r.take(a, 2).By)
	}
	f = r.take(a, 2)
	require.Equal(t, BySource, f.By)
	require.False(t, f.Lent, "nobody has more than its share")
	require.Equal(t, Owner{Source: a}, f.From)

	n, f = r.fill(b, 1) // the same identity elsewhere
	require.Equal(t, 12-9, n, "three quarters of all")
	require.Equal(t, Refusal{By: ByIdentity, Has: Amount{Sessions: 12}, From: Owner{Identity: ID{1}}}, f)
	r.most.Identity.Sessions = 1 << 20
	n, f = r.fill(b, 1)
	require.Equal(t, 1, n)
	require.Equal(t, ByAll, f.By)
}

// A share is kept for an identity that asked, for a while. An identity that has something keeps it for longer.
func TestAsked(t *testing.T) {
	r := owners{t: t, most: Quarters(Amount{Sessions: 16}), now: at}
	require.Equal(t, ByNone, r.take(a, 2).By)
	r.now = at.Add(2 * remembered)
	n, f := r.fill(a, 1)
	require.Equal(t, 9, n)
	require.Equal(t, ByIdentity, f.By)
	require.Equal(t, a, f.From.Source)
	r.Give(Owner{a, ID{2}}, Amount{Sessions: 1})
	n, _ = r.fill(a, 1)
	require.Equal(t, 3, n, "nobody else has asked lately")
	r.take(a, 3)
	r.Give(Owner{a, ID{1}}, Amount{Sessions: 1})
	for range 5 { // whoever asked last
		require.Equal(t, ByIdentity, r.take(a, 1).By)
	}
	r.now = r.now.Add(remembered)
	require.Equal(t, ByNone, r.take(a, 1).By)
}

// A source may have a limit of its own. Owners without an identity have no limit of an identity.
func TestMostOf(t *testing.T) {
	r := owners{t: t, most: MostOf(Amount{Sessions: 16}, Amount{Sessions: 12}), now: at}
	require.Equal(t, ByNone, r.take(a, 2).By)
	n, f := r.fill(a, 1)
	require.Equal(t, 9, n)
	require.Equal(t, ByIdentity, f.By)
	n, f = r.fill(a, 0)
	require.Equal(t, 2, n)
	require.Equal(t, Refusal{By: BySource, Has: Amount{Sessions: 12}, From: Owner{Source: a}}, f)

	r = owners{t: t, most: MostOf(Amount{Sessions: 4}, Amount{Sessions: 4}), now: at}
	n, f = r.fill(a, 0)
	require.Equal(t, 4, n)
	require.Equal(t, Refusal{By: ByAll, Has: Amount{Sessions: 4}}, f, "it is not the source's limit")
}

// An identity is told once to make room. It is told again when it has given something back, or has not for long.
func TestRecall(t *testing.T) {
	r := owners{t: t, most: Quarters(Amount{Sessions: 16}), now: at}
	r.fill(a, 1)
	for range 2 {
		require.True(t, r.take(a, 2).Lent)
		f := r.take(a, 2)
		require.Equal(t, Refusal{By: BySource, Has: Amount{Sessions: 12}, From: Owner{a, ID{1}}}, f, "its silent sessions end, no others")
		require.False(t, r.take(a, 3).Lent)
		r.now = r.now.Add(recallEvery)
	}
	require.True(t, r.take(a, 2).Lent)
	r.Give(Owner{a, ID{1}}, Amount{Sessions: 1})
	require.Equal(t, ByNone, r.take(a, 2).By)
	require.True(t, r.take(a, 2).Lent)
}

func TestPace(t *testing.T) {
	p := Pace{burst: 100 * time.Millisecond, parts: 4}
	now := time.Now()
	require.Zero(t, p.due(now))
	p.Spend(150 * time.Millisecond)
	due := p.due(p.at)
	require.Equal(t, 200*time.Millisecond, due)
	require.Zero(t, p.due(p.at.Add(due)))
	over := make(chan struct{})
	close(over)
	p.Spend(time.Hour)
	require.False(t, p.Wait(over))
	require.Zero(t, p.due(p.at.Add(4*time.Hour)))
}

// Who finds all places taken, or the pace exceeded, waits and is counted.
func TestTurns(t *testing.T) {
	waits := 0
	turns := NewTurns(1, NewPace(time.Hour, 2), func() { waits++ })
	end, ok := turns.Take(nil, nil)
	require.True(t, ok)
	require.Zero(t, waits)
	over := make(chan struct{})
	close(over)
	_, ok = turns.Take(over, nil)
	require.False(t, ok, "the place is taken")
	require.Equal(t, 1, waits)
	end()
	own := NewPace(0, 4)
	own.Spend(time.Hour)
	_, ok = turns.Take(over, own)
	require.False(t, ok, "the session has used its share")
	require.Equal(t, 2, waits)
	end, ok = turns.Take(over, nil)
	if ok { // else the end came first
		end()
	}
	require.Equal(t, 2, waits)
}

func TestFewLines(t *testing.T) {
	var f Lines
	now, written := time.Unix(1000, 0), 0
	for range 1000 {
		if _, ok := f.Next(now); ok {
			written++
		}
	}
	require.Equal(t, burstLines, written)
	lost, ok := f.Next(now.Add(time.Second))
	require.True(t, ok)
	require.Equal(t, 1000-burstLines, lost)
	_, ok = f.Next(now.Add(time.Second))
	require.False(t, ok)
}
