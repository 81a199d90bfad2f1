package quota

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
