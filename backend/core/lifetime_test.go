package core

import (
	"bytes"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A goroutine that never ends does not hold up the end of the engine.
func TestWaitIsBounded(t *testing.T) {
	var e Lifetime
	end := make(chan struct{})
	e.Go(func() { <-end })
	require.False(t, e.Wait(time.Millisecond))
	close(end)
	require.True(t, e.Wait(time.Minute))
}

func TestQuiesce(t *testing.T) {
	var e Lifetime
	require.True(t, e.Enter())
	require.False(t, e.Quiesce(time.Millisecond), "somebody is inside")
	e.Leave()
	require.True(t, e.Enter(), "nobody was shut out")
	e.Leave()
	require.True(t, e.Quiesce(time.Minute))
	require.False(t, e.Enter())
	ran := false
	e.After(0, func() { ran = true })
	var s Serial
	s.Do(&e, func() { ran = true })
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return !s.busy
	}, time.Minute, time.Millisecond)
	require.False(t, ran)
}

// Timers of a gone engine keep none of its memory.
func TestTimersEnd(t *testing.T) {
	var e Lifetime
	fired := make(chan struct{})
	e.After(0, func() { close(fired) })
	<-fired
	held, freed := new([1 << 20]byte), make(chan struct{})
	runtime.AddCleanup(held, func(c chan struct{}) { close(c) }, freed)
	e.After(time.Hour, func() { held[0] = 1 })
	require.True(t, e.Quiesce(time.Minute))
	require.Eventually(t, func() bool {
		runtime.GC()
		select {
		case <-freed:
			return true
		default:
			return false
		}
	}, time.Minute, time.Millisecond)
	e.After(0, func() { t.Error("fired") })
	require.Empty(t, e.timers.pending)
}

func TestLifetimeClose(t *testing.T) {
	var e Lifetime
	require.False(t, e.Ending())
	require.True(t, e.BeginEnd())
	require.False(t, e.BeginEnd(), "once")
	require.True(t, e.Ending())
	ended := make(chan struct{})
	e.Go(func() { <-ended })
	go close(ended)
	require.True(t, e.Wait(time.Minute))
	require.NotEqual(t, e.NextID(), e.NextID())
}

// A Serial runs functions one at a time and in each caller's order, with several callers.
func TestSerial(t *testing.T) {
	const each = 1000
	var e Lifetime
	var s Serial
	var all, callers sync.WaitGroup
	order, inside := map[int]int{}, 0
	all.Add(4 * each)
	for c := range 4 {
		callers.Go(func() {
			for i := range each {
				s.Do(&e, func() {
					inside++
					if inside != 1 || order[c] != i {
						t.Errorf("caller %d: %d after %d, %d inside", c, i, order[c], inside)
					}
					order[c]++
					inside--
					all.Done()
				})
			}
		})
	}
	callers.Wait()
	all.Wait()
}

// A step that never ends holds up no later step, and the log names it.
func TestBounded(t *testing.T) {
	var log bytes.Buffer
	b := Bounded{Log: slog.New(slog.NewTextHandler(&log, nil)), Until: time.Now().Add(time.Minute)}
	var order []int
	b.Do("first", func() { order = append(order, 1) })
	require.False(t, b.Late)
	b.Until = time.Now()
	end, ended := make(chan struct{}), make(chan struct{})
	b.Do("second", func() { <-end; close(ended) })
	require.True(t, b.Late)
	require.Contains(t, log.String(), "stays=second")
	next := make(chan struct{})
	b.Do("third", func() { close(next) })
	<-next
	require.Equal(t, []int{1}, order)
	close(end)
	<-ended
}
