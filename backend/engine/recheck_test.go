package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/region"
)

// looks are the times of the looks within a second. Peers ask all the time if they ask at all.
func looks(t *testing.T, asks bool, take time.Duration, soon bool) (at []time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		asked := make(chan struct{}, 1)
		began := time.Now()
		if asks {
			go func() {
				for {
					select {
					case asked <- struct{}{}:
					case <-ctx.Done():
						return
					}
				}
			}()
		}
		keepLooking(ctx, asked, func() time.Duration {
			at = append(at, time.Since(began))
			time.Sleep(take) // of the bubble's clock
			if soon {
				return region.Settled
			}
			return recheckEvery
		})
		synctest.Wait()
	})
	return at
}

func gaps(at []time.Duration) (g []time.Duration) {
	for i := range at[1:] {
		g = append(g, at[i+1]-at[i])
	}
	return g
}

// TestLooksOfPeers: peers that ask for looks without an end get one each restLeast, or restTimes the time that a look takes, if that is
// more. They delay no regular look.
func TestLooksOfPeers(t *testing.T) {
	for _, c := range []struct {
		name  string
		asks  bool
		take  time.Duration
		soon  bool
		every time.Duration
	}{
		{"nobody asks", false, 0, false, recheckEvery},
		{"nobody asks after a change", false, 0, true, region.Settled},
		{"short looks", true, 0, false, restLeast},
		{"looks of 4 ms", true, 4 * time.Millisecond, false, 44 * time.Millisecond},
		{"looks of 4 ms after a change", true, 4 * time.Millisecond, true, 44 * time.Millisecond},
		{"looks of 10 ms after a change", true, 10 * time.Millisecond, true, 10*time.Millisecond + region.Settled},
		{"looks of 30 ms", true, 30 * time.Millisecond, false, 30*time.Millisecond + recheckEvery},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := looks(t, c.asks, c.take, c.soon)
			require.GreaterOrEqual(t, len(at), 3)
			if c.asks {
				require.Zero(t, at[0])
			}
			for _, g := range gaps(at) {
				require.Equal(t, c.every, g)
			}
		})
	}
}

// Without memory to look at there is no look, until somebody asks.
func TestNoLooksWithoutMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		asked, n := make(chan struct{}, 1), 0
		go keepLooking(ctx, asked, func() time.Duration { n++; return 0 })
		time.Sleep(time.Hour)
		synctest.Wait()
		require.LessOrEqual(t, n, 1)
		asked <- struct{}{}
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, 2, n)
	})
}
