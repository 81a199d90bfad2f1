package region

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/wire"
)

// enteringRail is a renewingRail with a table, which memory enters when a peer asks for its keys.
type enteringRail struct {
	renewingRail
	calls [][]provider.MR
	full  bool
	first func() // called by EnterAll
}

type enteringMR struct {
	*renewingMR
	entered bool
}

func (r *enteringRail) RegisterVRAM(addr, length uint64, device int, peers option.Rights) (provider.MR, error) {
	mr, err := r.renewingRail.RegisterVRAM(addr, length, device, peers)
	if err != nil {
		return nil, err
	}
	return &enteringMR{renewingMR: mr.(*renewingMR)}, nil
}

func (r *enteringRail) EnterAll(list []provider.MR) error {
	r.calls = append(r.calls, list)
	if r.first != nil {
		r.first()
	}
	if r.full {
		return errors.New("the table is full")
	}
	for _, m := range list {
		m.(*enteringMR).entered = true
	}
	return nil
}

func (m *enteringMR) Key(provider.Salt) uint64 {
	if !m.entered {
		return 0
	}
	return m.addr
}

// newEntering has memory on two rails: the first is an Enterer, the keys of the other are 0.
func newEntering(t *testing.T) (*renewing, *enteringRail) {
	w := newRenewing(t, 2)
	e := &enteringRail{renewingRail: renewingRail{w: w}}
	w.set.List[0].Rail = e
	return w, e
}

// claim registers memory.
func (w *renewing) claim(t *testing.T, addr uint64) (*Region, wire.Claim) {
	w.put(addr, 1)
	id, err := w.Register(wire.Range{Addr: addr, Len: 4096, Mem: VRAM}, option.PeersBoth)
	require.NoError(t, err)
	r := w.Regions.Get(id)
	return r, r.Claim
}

// keys are a peer's keys by rail.
func (w *renewing) keys(claims ...wire.Claim) (all []map[uint8]uint64) {
	for _, e := range w.KeysFor(claims, w.holder) {
		of := map[uint8]uint64{}
		for _, k := range e.Rails {
			of[k.Rail] = k.Key
		}
		all = append(all, of)
	}
	return all
}

// TestEnter: all claimed memory enters a table at once, before its keys are read. Memory that nobody may claim does not, nor does memory that is
// not registered any more.
func TestEnter(t *testing.T) {
	w, e := newEntering(t)
	const a, b, c = pinnedFrom, pinnedFrom + 4096, pinnedFrom + 8192
	ra, first := w.claim(t, a)
	_, second := w.claim(t, b)
	_, third := w.claim(t, c)
	require.Empty(t, e.calls)
	guess := third
	guess.Cap[0]++
	require.Equal(t, []map[uint8]uint64{{0: a, 1: 0}, {0: b, 1: 0}, {0: a, 1: 0}, {}}, w.keys(first, second, first, guess))
	require.Len(t, e.calls, 1)
	require.Len(t, e.calls[0], 3)
	require.EqualValues(t, 1, w.CapsRefused(), "a guess counts once")

	w.Renew(ra)
	require.Equal(t, []map[uint8]uint64{{0: a, 1: 0}}, w.keys(first), "the memory has other registrations")
	e.first = func() { e.first = nil; require.NoError(t, w.Deregister(ra.ID)) }
	require.Equal(t, []map[uint8]uint64{{}}, w.keys(first), "a registration ends while its memory enters: no lock is held that it takes")
	e.calls = nil
	require.Equal(t, []map[uint8]uint64{{}}, w.keys(first))
	require.Empty(t, e.calls)
}

// TestEnterFull: peers get no key of a rail without room, and those of others. One line of the log says so. They get keys once there is room.
func TestEnterFull(t *testing.T) {
	w, e := newEntering(t)
	const a, b = pinnedFrom, pinnedFrom + 4096
	_, first := w.claim(t, a)
	_, second := w.claim(t, b)
	e.full = true
	for range 3 {
		require.Equal(t, []map[uint8]uint64{{1: 0}, {1: 0}}, w.keys(first, second))
	}
	require.Equal(t, 1, strings.Count(w.log.String(), "level=WARN"), w.log.String())
	require.Equal(t, 1, strings.Count(w.log.String(), "memory not registered on a rail for peers"))
	require.Contains(t, w.log.String(), "rail=fake/hca")
	require.Contains(t, w.log.String(), "the table is full")
	e.full = false
	require.Equal(t, []map[uint8]uint64{{0: a, 1: 0}, {0: b, 1: 0}}, w.keys(first, second))
}
