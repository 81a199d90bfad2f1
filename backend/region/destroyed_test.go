package region

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
