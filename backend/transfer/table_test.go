package transfer

import (
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestLife(t *testing.T) {
	table := NewRecords[string]()
	r, err := table.Alloc("payload")
	require.NoError(t, err)
	assert.NotZero(t, r.Handle().Uint64())
	got, err := table.Get(r.Handle())
	require.NoError(t, err)
	assert.Same(t, r, got)
	assert.Equal(t, Idle, r.State())
	assert.False(t, r.Post())
	assert.False(t, table.Retire(r))
	for _, step := range []struct {
		do     func() bool
		to     RecordState
		active int
	}{
		{func() bool { return table.Begin(r) }, Queued, 1},
		{r.Post, Posted, 1},
		{func() bool { return table.Begin(r) }, Queued, 1},
		{func() bool { return table.Retire(r) }, Idle, 0},
		{func() bool { return table.Begin(r) }, Queued, 1},
		{r.Post, Posted, 1},
		{func() bool { return table.Retire(r) }, Idle, 0},
		{func() bool { return table.Begin(r) }, Queued, 1},
	} {
		require.True(t, step.do(), step.to)
		assert.Equal(t, step.to, r.State())
		assert.Equal(t, step.active, table.ActiveLen(), step.to)
	}
	assert.False(t, table.Begin(r))
	require.NoError(t, table.Free(r))
	assert.Zero(t, table.ActiveLen())
	assert.Zero(t, table.Len())

	_, err = table.Get(r.Handle())
	assert.ErrorIs(t, err, ErrStale)
	assert.ErrorIs(t, table.Free(r), ErrStale)
	assert.Equal(t, Freed, r.State())
	assert.False(t, table.Begin(r))
	assert.False(t, r.Post())
	assert.False(t, table.Retire(r))

	again, err := table.Alloc("other")
	require.NoError(t, err)
	assert.Equal(t, r.Handle().Index, again.Handle().Index)
	_, err = table.Get(r.Handle())
	assert.ErrorIs(t, err, ErrStale, "the old handle does not find the next record of the slot")
}

// TestGenerationsEnd: a slot whose generations are used up is not used again, so that no handle identifies two transfers.
func TestGenerationsEnd(t *testing.T) {
	table := NewRecords[int]()
	r, _ := table.Alloc(0)
	require.NoError(t, table.Free(r))
	table.gens[0] = math.MaxUint32 - 1
	r, _ = table.Alloc(0)
	assert.Equal(t, Handle{0, math.MaxUint32}, r.Handle())
	require.NoError(t, table.Free(r))
	r, _ = table.Alloc(0)
	assert.Equal(t, Handle{1, 1}, r.Handle())
}

// TestModel runs random sequences of calls and compares the table with a plain map.
func TestModel(t *testing.T) {
	type entry struct {
		state  RecordState
		active bool
	}
	rapid.Check(t, func(t *rapid.T) {
		table := NewRecords[int]()
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
			"begin": func(t *rapid.T) {
				r := live[pick(t)]
				e := model[r]
				require.Equal(t, e.state != Queued, table.Begin(r))
				e.state, e.active = Queued, true
			},
			"post": func(t *rapid.T) {
				r := live[pick(t)]
				e := model[r]
				if require.Equal(t, e.state == Queued, r.Post()); e.state == Queued {
					e.state = Posted
				}
			},
			"retire": func(t *rapid.T) {
				r := live[pick(t)]
				e := model[r]
				require.Equal(t, e.state != Idle, table.Retire(r))
				e.state, e.active = Idle, false
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

// TestRaces: posts, retirements and walks race. Afterwards exactly the active records are on the list.
func TestRaces(t *testing.T) {
	table := NewRecords[int]()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				r, err := table.Alloc(1)
				if !assert.NoError(t, err) {
					return
				}
				var inner sync.WaitGroup
				for _, f := range []func() bool{func() bool { return table.Begin(r) }, r.Post, func() bool { return table.Retire(r) },
					func() bool { return table.Begin(r) }, func() bool { return table.CollectActive(func(*Record[int]) bool { return false }) != nil }} {
					inner.Go(func() { f() })
				}
				inner.Wait()
				on := slices.Contains(table.CollectActive(func(a *Record[int]) bool { return a == r }), r)
				assert.Equal(t, r.State() != Idle, on, r.State())
				assert.NoError(t, table.Free(r))
			}
		})
	}
	wg.Wait()
	assert.Zero(t, table.Len())
	assert.Zero(t, table.ActiveLen())
}

func TestHandle(t *testing.T) {
	h := Handle{Index: 7, Gen: 9}
	assert.Equal(t, h, FromUint64(h.Uint64()))
	assert.Equal(t, "7.9", h.String())
	_, err := NewRecords[int]().Get(FromUint64(math.MaxUint64))
	assert.ErrorIs(t, err, ErrStale)
	_, err = NewRecords[int]().Get(Handle{})
	assert.ErrorIs(t, err, ErrStale)
}

func TestFull(t *testing.T) {
	table := NewRecords[struct{}]()
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
