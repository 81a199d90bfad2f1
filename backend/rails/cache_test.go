package rails

import (
	"errors"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// region is the handle of the fake registrar.
type region struct{ addr, length uint64 }

// fakeRegistrar counts registrations and detects double closes. If hook is set, Register calls it.
type fakeRegistrar struct {
	hook func(addr, length uint64) error

	mu     sync.Mutex
	open   map[*region]bool
	opened int
}

func (f *fakeRegistrar) Register(addr, length uint64) (*region, error) {
	if f.hook != nil {
		if err := f.hook(addr, length); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &region{addr, length}
	f.open[r] = true
	f.opened++
	return r, nil
}

func (f *fakeRegistrar) Unregister(r *region) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.open[r] {
		return errors.New("closed twice")
	}
	delete(f.open, r)
	return nil
}

func newFake() (*fakeRegistrar, *Cache[*region]) {
	f := &fakeRegistrar{open: map[*region]bool{}}
	return f, NewCache(f.Register, f.Unregister, Around)
}

func acquire(t require.TestingT, c *Cache[*region], addr, length uint64, reused bool) *Ref[*region] {
	ref, was, err := c.Acquire(addr, length)
	require.NoError(t, err)
	require.Equal(t, reused, was, "reused")
	return ref
}

func release(t require.TestingT, c *Cache[*region], ref *Ref[*region], want Outcome) {
	got, err := c.Release(ref)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// With Exact no range gets a registration that is larger.
func TestSharingExact(t *testing.T) {
	f := &fakeRegistrar{open: map[*region]bool{}}
	c := NewCache(f.Register, f.Unregister, Exact)
	big := acquire(t, c, 1000, 100, false)
	inside := acquire(t, c, 1010, 10, false)
	same := acquire(t, c, 1010, 10, true)
	for _, ref := range []*Ref[*region]{inside, same} {
		addr, length := ref.Range()
		require.Equal(t, region{1010, 10}, region{addr, length})
	}
	release(t, c, big, Closed)
	release(t, c, inside, Kept)
	release(t, c, same, Closed)
	require.Empty(t, f.open)
}

// TestRetired: memory around a range in use may have been mapped again, so new users get a new registration.
func TestRetired(t *testing.T) {
	f, c := newFake()
	big := acquire(t, c, 1000, 100, false)
	inside := acquire(t, c, 1010, 10, true)
	release(t, c, big, Retired)
	live, retired := c.Len()
	assert.Equal(t, [2]int{0, 1}, [2]int{live, retired})

	again := acquire(t, c, 1000, 100, false)
	inside2 := acquire(t, c, 1010, 10, true)
	old, _ := inside.Handle()
	for _, ref := range []*Ref[*region]{again, inside2} {
		h, _ := ref.Handle()
		assert.NotSame(t, old, h)
	}
	release(t, c, inside, Closed)
	release(t, c, inside2, Kept)
	release(t, c, again, Closed)
	assert.Empty(t, f.open)
}

func TestFailure(t *testing.T) {
	f, c := newFake()
	full := errors.New("memory lock limit")
	f.hook = func(uint64, uint64) error { return full }
	_, _, err := c.Acquire(10, 10)
	assert.ErrorIs(t, err, full)
	live, retired := c.Len()
	assert.Zero(t, live+retired, "a failure leaves nothing behind")
	f.hook = func(uint64, uint64) error { panic("boom") }
	assert.Panics(t, func() { _, _, _ = c.Acquire(10, 10) })
	f.hook = nil
	acquire(t, c, 10, 10, false)
}

// TestFlights: concurrent users of one range share one registration. A registration blocks no other range. A user that waits
// for a larger range registers its own range if the larger one fails.
func TestFlights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := newFake()
		proceed, fail := make(chan struct{}), atomic.Bool{}
		f.hook = func(addr, length uint64) error {
			if length == 100 {
				<-proceed
				if fail.Load() {
					return errors.New("no")
				}
			}
			return nil
		}
		for _, fails := range []bool{false, true} {
			fail.Store(fails)
			refs := make(chan *Ref[*region], 10)
			var errs atomic.Int32
			for range 4 {
				go func() {
					ref, _, err := c.Acquire(1000, 100)
					if err != nil {
						errs.Add(1)
						ref = &Ref[*region]{}
					}
					refs <- ref
				}()
			}
			synctest.Wait()
			go func() {
				ref, _, err := c.Acquire(1010, 5)
				assert.NoError(t, err)
				refs <- ref
			}()
			synctest.Wait()
			release(t, c, acquire(t, c, 5000, 10, false), Closed) // not blocked
			assert.Empty(t, refs)
			opened := f.opened
			proceed <- struct{}{}
			synctest.Wait()
			assert.Len(t, refs, 5)
			assert.Equal(t, opened+1, f.opened)
			for range 5 {
				_, err := c.Release(<-refs)
				assert.NoError(t, err)
			}
			if fails {
				assert.EqualValues(t, 4, errs.Load())
			} else {
				assert.Zero(t, errs.Load())
			}
			assert.Empty(t, f.open)
		}
	})
}

func TestRaces(t *testing.T) {
	f, c := newFake()
	var wg sync.WaitGroup
	for seed := range uint64(8) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 0))
			var refs []*Ref[*region]
			for range 2000 {
				if len(refs) > 5 {
					_, err := c.Release(refs[0])
					assert.NoError(t, err)
					refs = refs[1:]
				}
				addr, length := r.Uint64N(50), 1+r.Uint64N(50)
				ref, _, err := c.Acquire(addr, length)
				if !assert.NoError(t, err) {
					return
				}
				a, n := ref.Range()
				assert.True(t, a <= addr && a+n >= addr+length)
				refs = append(refs, ref)
			}
			for _, ref := range refs {
				_, err := c.Release(ref)
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
	assert.Empty(t, f.open)
	live, retired := c.Len()
	assert.Zero(t, live+retired)
}

func TestKeySizes(t *testing.T) {
	for _, bad := range []int{-1, 0, 9} {
		_, err := NewKeyAllocator(bad)
		assert.Error(t, err)
	}
	for size := 1; size <= 8; size++ {
		a, err := NewKeyAllocator(size)
		require.NoError(t, err)
		key, err := a.Alloc()
		require.NoError(t, err)
		if size < 8 {
			assert.Less(t, key, uint64(1)<<(8*size))
		}
	}
}

// TestKeysAreRandom: each bit is set in about half of the keys, and differs from the previous key in about half. With 4,000
// keys, a fair bit is outside these bounds once in 10^30.
func TestKeysAreRandom(t *testing.T) {
	const n = 4000
	for _, size := range []int{4, 8} {
		a, err := NewKeyAllocator(size)
		require.NoError(t, err)
		var set, differ [64]int
		var last uint64
		for range n {
			key, err := a.Alloc()
			require.NoError(t, err)
			require.LessOrEqual(t, bits.Len64(key), 8*size)
			for b := range 8 * size {
				set[b] += int(key >> b & 1)
				differ[b] += int((key ^ last) >> b & 1)
			}
			last = key
		}
		for b := range 8 * size {
			assert.InDelta(t, n/2, set[b], 360, "bit %d of %d bytes", b, size)
			assert.InDelta(t, n/2, differ[b], 360, "bit %d of %d bytes, against the key before", b, size)
		}
	}
}

func TestKeysRunOut(t *testing.T) {
	a, err := NewKeyAllocator(1)
	require.NoError(t, err)
	seen := map[uint64]bool{}
	for range 254 {
		key, err := a.Alloc()
		require.NoError(t, err)
		require.False(t, seen[key] || key == 0 || key == 255, "key %d", key)
		seen[key] = true
	}
	_, err = a.Alloc()
	require.ErrorIs(t, err, ErrKeys)
	assert.True(t, a.Free(17))
	assert.False(t, a.Free(17))
	assert.Equal(t, 253, a.Len())
	key, err := a.Alloc()
	require.NoError(t, err)
	assert.EqualValues(t, 17, key, "the only free one")
	assert.Equal(t, 254, a.Len())
}

// TestKeysReturnLate: a freed key of a small key space is used again only after half of the space, or after all keys that were
// free.
func TestKeysReturnLate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, err := NewKeyAllocator(1)
		require.NoError(t, err)
		held := rapid.IntRange(0, 200).Draw(t, "held")
		for range held {
			_, err := a.Alloc()
			require.NoError(t, err)
		}
		last := map[uint64]int{}
		for i := range 1000 {
			key, err := a.Alloc()
			require.NoError(t, err)
			if before, again := last[key]; again {
				require.GreaterOrEqual(t, i-before, min(127, 254-held))
			}
			last[key] = i
			require.True(t, a.Free(key))
			require.Equal(t, held, a.Len())
		}
	})
}
