package plugin

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/engine"
	"gorail/backend/errcode"
)

func TestHandles(t *testing.T) {
	var h handles
	a, b := new(engine.Engine), new(engine.Engine) // no test calls them

	ha, hb := h.add(a), h.add(b)
	got, err := h.get(ha)
	require.NoError(t, err)
	require.Same(t, a, got)

	_, err = h.remove(ha)
	require.NoError(t, err)
	_, err = h.remove(ha)
	require.Equal(t, errcode.ErrInvalidParam, errcode.StatusOf(err), "removed twice")

	// The slot is reused, and the old handle stays invalid.
	hc := h.add(new(engine.Engine))
	require.Equal(t, uint32(ha), uint32(hc))
	_, err = h.get(ha)
	require.ErrorContains(t, err, "not alive")
	got, err = h.get(hb)
	require.NoError(t, err)
	require.Same(t, b, got)
}

func TestHandlesNeverGiven(t *testing.T) {
	var h handles
	for _, handle := range []uint64{0, 1, 1 << 32, ^uint64(0)} {
		_, err := h.get(handle)
		require.Error(t, err, "%#x in an empty table", handle)
	}
	h.add(new(engine.Engine))
	for _, handle := range []uint64{0, 1, 1 << 32, 1<<32 | 2, ^uint64(0)} {
		_, err := h.get(handle)
		require.Error(t, err, "%#x", handle)
	}
}

func TestHandlesConcurrently(t *testing.T) {
	var h handles
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				e := new(engine.Engine)
				handle := h.add(e)
				got, err := h.get(handle)
				require.NoError(t, err)
				require.Same(t, e, got)
				_, err = h.remove(handle)
				require.NoError(t, err)
			}
		})
	}
	all.Wait()
}
