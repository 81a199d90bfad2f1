package xfer

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestHandle(t *testing.T) {
	h := Handle{Index: 7, Gen: 9}
	assert.Equal(t, h, FromUint64(h.Uint64()))
	assert.Equal(t, "7.9", h.String())
	_, err := New[int]().Get(FromUint64(math.MaxUint64))
	assert.ErrorIs(t, err, ErrStale)
	_, err = New[int]().Get(Handle{})
	assert.ErrorIs(t, err, ErrStale)
}

func TestLife(t *testing.T) {
	table := New[string]()
	r, err := table.Alloc("payload")
	require.NoError(t, err)
	assert.NotZero(t, r.Handle().Uint64())
	got, err := table.Get(r.Handle())
	require.NoError(t, err)
	assert.Same(t, r, got)
	assert.Equal(t, Prepped, r.State())

	for _, s := range []State{Queued, Posted, Draining, Posted, Done, Posted, Done, Queued, Failed, Queued} {
		_, err := table.Move(r, s)
		require.NoError(t, err, s)
		assert.Equal(t, s.Active(), table.ActiveLen() == 1, s)
	}
	_, err = table.Move(r, Released)
	require.NoError(t, err)
	assert.Equal(t, 1, table.ActiveLen(), "a zombie stays active")
	require.NoError(t, table.Free(r))
	assert.Zero(t, table.ActiveLen())
	assert.Zero(t, table.Len())

	_, err = table.Get(r.Handle())
	assert.ErrorIs(t, err, ErrStale)
	assert.ErrorIs(t, table.Free(r), ErrStale)
	_, err = table.Move(r, Posted)
	assert.ErrorIs(t, err, ErrStale)

	again, err := table.Alloc("other")
	require.NoError(t, err)
	assert.Equal(t, r.Handle().Index, again.Handle().Index)
	_, err = table.Get(r.Handle())
	assert.ErrorIs(t, err, ErrStale, "the slot's next user is not found under the old handle")
}

func TestRefusedStepChangesNothing(t *testing.T) {
	table := New[int]()
	r, _ := table.Alloc(0)
	from, err := table.Move(r, Done)
	var refused *TransitionError
	require.True(t, errors.As(err, &refused))
	assert.ErrorIs(t, err, ErrTransition)
	assert.Equal(t, Prepped, from)
	assert.Equal(t, TransitionError{r.Handle(), Prepped, Done}, *refused)
	assert.Contains(t, err.Error(), "prepped -> done")
	assert.Equal(t, Prepped, r.State())
	assert.False(t, table.MoveFrom(r, Posted, Done))
	assert.False(t, table.MoveFrom(r, Prepped, Failed))
	assert.True(t, table.MoveFrom(r, Prepped, Posted))
}

// TestDiagram pins the arrows that safety hangs on.
func TestDiagram(t *testing.T) {
	for s := range states {
		assert.Equal(t, s != Released, Allowed(s, Released), "%v -> released", s)
		assert.False(t, Allowed(Released, s), "released -> %v", s)
		assert.False(t, Allowed(s, Prepped), "%v -> prepped", s)
		assert.NotContains(t, s.String(), "state(")
	}
	assert.False(t, Allowed(Posted, Failed), "errors drain first")
	assert.False(t, Allowed(Posted, Cancelled), "cancellation drains first")
	assert.False(t, Allowed(Done, Failed))
	assert.False(t, Allowed(states, Posted))
	assert.False(t, Allowed(Posted, states))
	assert.Equal(t, "state(99)", State(99).String())
}

// TestGenerationsEnd: a slot whose generations are used up is never used again, so that no handle ever means two transfers.
func TestGenerationsEnd(t *testing.T) {
	table := New[int]()
	r, _ := table.Alloc(0)
	require.NoError(t, table.Free(r))
	table.gens[0] = math.MaxUint32 - 1
	r, _ = table.Alloc(0)
	assert.Equal(t, Handle{0, math.MaxUint32}, r.Handle())
	require.NoError(t, table.Free(r))
	r, _ = table.Alloc(0)
	assert.Equal(t, Handle{1, 1}, r.Handle())
}

func TestActiveWalks(t *testing.T) {
	table := New[int]()
	var all []*Record[int]
	for i := range 10 {
		r, _ := table.Alloc(i)
		all = append(all, r)
		if i%2 == 0 {
			_, err := table.Move(r, Posted)
			require.NoError(t, err)
		}
	}
	big := func(r *Record[int]) bool { return r.Value >= 4 }
	assert.ElementsMatch(t, []*Record[int]{all[4], all[6], all[8]}, table.CollectActive(big))
	assert.True(t, table.AnyActive(big))
	assert.False(t, table.AnyActive(func(r *Record[int]) bool { return r.Value == 5 }))
	n := 0
	table.EachActive(func(*Record[int]) bool { n++; return n < 3 })
	assert.Equal(t, 3, n)
}

func TestFull(t *testing.T) {
	table := New[struct{}]()
	var last *Record[struct{}]
	for range maxPages * pageLen {
		r, err := table.Alloc(struct{}{})
		require.NoError(t, err)
		last = r
	}
	_, err := table.Alloc(struct{}{})
	require.ErrorIs(t, err, ErrFull)
	require.NoError(t, table.Free(last))
	_, err = table.Alloc(struct{}{})
	require.NoError(t, err)
}

// TestModel runs any sequence of calls beside a plain map.
func TestModel(t *testing.T) {
	type entry struct {
		state  State
		active bool
	}
	rapid.Check(t, func(t *rapid.T) {
		table := New[int]()
		model := map[*Record[int]]*entry{}
		var live, dead []*Record[int]
		pick := func(t *rapid.T) int {
			if len(live) == 0 {
				t.Skip("none")
			}
			return rapid.IntRange(0, len(live)-1).Draw(t, "which")
		}
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				r, err := table.Alloc(len(live))
				require.NoError(t, err)
				live = append(live, r)
				model[r] = &entry{}
			},
			"move": func(t *rapid.T) {
				r := live[pick(t)]
				e, to := model[r], State(rapid.Uint32Range(0, uint32(states)-1).Draw(t, "to"))
				from, err := table.Move(r, to)
				require.Equal(t, e.state, from)
				require.Equal(t, Allowed(from, to), err == nil)
				if err == nil {
					e.state = to
					e.active = to.Active() || to == Released && e.active
				}
			},
			"free": func(t *rapid.T) {
				i := pick(t)
				r := live[i]
				require.NoError(t, table.Free(r))
				live = append(live[:i], live[i+1:]...)
				dead = append(dead, r)
				delete(model, r)
			},
			"": func(t *rapid.T) {
				var want []*Record[int]
				for _, r := range live {
					got, err := table.Get(r.Handle())
					require.NoError(t, err)
					require.Same(t, r, got)
					require.Equal(t, model[r].state, r.State())
					if model[r].active {
						want = append(want, r)
					}
				}
				for _, r := range dead {
					_, err := table.Get(r.Handle())
					require.ErrorIs(t, err, ErrStale)
				}
				require.ElementsMatch(t, want, table.CollectActive(func(*Record[int]) bool { return true }))
				require.Equal(t, len(live), table.Len())
			},
		})
	})
}

// TestRaces lets finishers, releasers and walkers fight; each transfer ends exactly once.
func TestRaces(t *testing.T) {
	table := New[*atomic.Int32]()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				ended := new(atomic.Int32)
				r, err := table.Alloc(ended)
				if !assert.NoError(t, err) {
					return
				}
				h := r.Handle()
				_, err = table.Move(r, Posted)
				assert.NoError(t, err)
				var inner sync.WaitGroup
				for _, to := range []State{Done, Draining, Released} {
					inner.Go(func() {
						if r, err := table.Get(h); err == nil && table.MoveFrom(r, Posted, to) {
							r.Value.Add(1)
						}
					})
				}
				inner.Wait()
				assert.EqualValues(t, 1, ended.Load())
				table.AnyActive(func(r *Record[*atomic.Int32]) bool { return r.State() == Prepped })
				assert.NoError(t, table.Free(r))
			}
		})
	}
	wg.Wait()
	assert.Zero(t, table.Len())
	assert.Zero(t, table.ActiveLen())
}

func BenchmarkGet(b *testing.B) {
	table := New[int]()
	r, _ := table.Alloc(1)
	h := r.Handle()
	for b.Loop() {
		if _, err := table.Get(h); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEachActive(b *testing.B) {
	table := New[int]()
	for i := range 1000 {
		r, _ := table.Alloc(i)
		_, _ = table.Move(r, Posted)
	}
	for b.Loop() {
		table.AnyActive(func(r *Record[int]) bool { return r.Value == -1 })
	}
}

func BenchmarkAllocFree(b *testing.B) {
	table := New[int]()
	b.ReportAllocs()
	for b.Loop() {
		r, _ := table.Alloc(1)
		_, _ = table.Move(r, Posted)
		_, _ = table.Move(r, Done)
		_ = table.Free(r)
	}
}
