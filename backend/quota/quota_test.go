package quota

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPlaces(t *testing.T) {
	var r Places
	a, b, most := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), Usage{Endpoints: 8, Descriptors: 100}
	_, fits := r.Take(a, Usage{Endpoints: 6, Descriptors: 6}, most)
	require.True(t, fits, "three quarters")
	same, fits := r.Take(a, Usage{Endpoints: 1, Descriptors: 1}, most)
	require.False(t, fits)
	require.True(t, same)
	_, fits = r.Take(b, Usage{Endpoints: 2, Descriptors: 2}, most)
	require.True(t, fits, "the rest is for others")
	same, fits = r.Take(b, Usage{Endpoints: 1, Descriptors: 1}, most)
	require.False(t, fits)
	require.False(t, same, "all are taken")
	r.Give(a, Usage{Endpoints: 6, Descriptors: 6})
	_, fits = r.Take(b, Usage{Endpoints: 1, Descriptors: 80}, most)
	require.False(t, fits, "descriptors count, too")
	_, fits = r.Take(b, Usage{Bytes: 1}, most)
	require.False(t, fits, "and bytes")
	r.Give(b, Usage{Endpoints: 2, Descriptors: 2})
	require.Equal(t, Usage{}, r.all)
	require.Empty(t, r.sources)
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
