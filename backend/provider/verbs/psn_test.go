package verbs

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	imitation "gorail/test/verbs"
)

// The first packet sequence number of a queue pair uses all 24 bits. It depends neither on the clock nor on the queue
// pair number.
func TestPSNIsRandom(t *testing.T) {
	s := newSide(t, options(t, imitation.Build(t), true))
	const n = 64
	all, some, byClock := uint32(1<<24-1), uint32(0), 0
	nsec := func() uint32 {
		var now unix.Timespec
		require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
		return uint32(now.Nsec)
	}
	for range n {
		before := nsec()
		ep, err := s.rail.OpenEndpoint()
		require.NoError(t, err)
		after := nsec()
		defer ep.Close()
		a := ep.(*endpoint).addr
		require.Less(t, a.PSN, uint32(1<<24))
		all, some = all&a.PSN, some|a.PSN
		if guess := a.PSN ^ a.QPN<<7&(1<<24-1); (guess-before)&(1<<24-1) <= (after-before)&(1<<24-1) {
			byClock++
		}
	}
	require.Zero(t, all, "bits that are set in every number")
	require.EqualValues(t, 1<<24-1, some, "bits that are set in a number")
	require.Less(t, byClock, n, "every PSN follows from the clock")
}
