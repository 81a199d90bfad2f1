package peer

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// Thousands of frames in both directions, over connections that are cut after any number of bytes: all frames arrive
// once and in order, and the handlers see one session.
func TestCutsLoseNothing(t *testing.T) {
	for _, seed := range []uint64{1, 2, 3} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			n := uint64(short(600, 3000))
			r := newMultipath(t, 2, func(c *Config) { c.PeerTimeout = 4 * time.Second })
			r.i.out.Store(r.out)
			var mu sync.Mutex
			rng := rand.New(rand.NewPCG(seed, 0))
			for _, p := range r.paths {
				p.spoil(func() int {
					mu.Lock()
					defer mu.Unlock()
					return rng.IntN(60_000)
				}, false)
			}
			r.paths[0].cut()
			var fences []uint64 // of the target's handler; read after the last answer
			r.s.onFence(func(f wire.Fence) (wire.Fenced, error) {
				fences = append(fences, f.ID)
				return wire.Fenced{ID: f.ID}, nil
			})
			go func() {
				for i := range n {
					r.out.Fence(i, 1, 1, make([]byte, i%200))
					r.out.Keys(i, ranges(int(i%5), i))
				}
			}()
			go func() {
				for i := range n {
					r.in.Revoke(i, make([]uint64, i%7))
				}
			}()
			var fenced, keys, revokes, revoked uint64
			for events := 0; fenced < n || keys < n || revokes < n || revoked < n; events++ {
				switch { // a third of the runs also moves without need
				case seed == 3 && events%2000 == 500:
					r.out.Suspect(netip.Addr{}, "a whim")
				case seed == 3 && events%2000 == 1500:
					r.in.Suspect(netip.Addr{}, "a whim")
				}
				select {
				case e := <-r.i.events:
					switch e := e.(type) {
					case evFenced:
						require.Equal(t, fenced, e.f.ID)
						fenced++
					case evKeys:
						require.Equal(t, keys, e.k.ID)
						require.Len(t, e.k.Entries, int(keys%5))
						keys++
					case evRevoke:
						require.Equal(t, revokes, e.id)
						revokes++
					default:
						require.Fail(t, "unexpected", "%T %v", e, e)
					}
				case e := <-r.s.events:
					require.IsType(t, evRevoked{}, e, "%v", e)
					require.Equal(t, revoked, e.(evRevoked).id)
					revoked++
				case <-time.After(testTimeout):
					require.Fail(t, "nothing comes any more", "%d %d %d %d", fenced, keys, revokes, revoked)
				}
			}
			assert.Len(t, fences, int(n))
			assert.True(t, slices.IsSorted(fences))
			assert.Empty(t, r.s.events)
			for _, p := range r.paths {
				p.spoil(nil, false)
			}
			r.out.Fence(n, 1, 1, nil)
			require.Equal(t, n, want[evFenced](t, r.i.events).f.ID)
			from, to := r.from.Stats(), r.to.Stats()
			assert.Greater(t, from.Resumed, uint64(3))
			assert.Positive(t, from.Resent+to.Resent)
			assert.Equal(t, []uint64{1, 1, 0, 0}, []uint64{from.Established, to.Accepted, from.Lost, to.Lost})
			t.Logf("%d resumed, %d and %d frames sent again", from.Resumed, from.Resent, to.Resent)
			eventually(t, func() bool { return r.out.stream.Held() == 0 && r.in.stream.Held() == 0 }, "all is acknowledged")
		})
	}
}
