package session

import (
	"runtime"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/provider"
	"gorail/backend/rails"
)

// dialed is an endpoint that connects, and may admit its peer for a while.
type dialed struct {
	way
	err error // of Connect
}

func (d *dialed) Connect([]byte) error       { return d.err }
func (d *dialed) Secure(provider.Security)   {}
func (d *dialed) Close() error               { return nil }
func (d *dialed) Ends() (own, peer string)   { return d.way.Ends() }
func (d *dialed) Packets(bool) (_, _ string) { return "", "" }

// TestClosedEndpointIsFree: a closed endpoint, whose session's secrets hang on it, is not kept for the time in which its peer might have dialed. Nor is one that
// cannot be connected.
func TestClosedEndpointIsFree(t *testing.T) {
	s := &Set{Life: &core.Lifetime{}}
	closed := func(err error) weak.Pointer[dialed] {
		ep := &dialed{err: err}
		l := &Link{Rail: &rails.Rail{}, EP: ep, meter: &meter{}}
		require.Equal(t, err, s.Reach(l.EP, nil, provider.Security{}))
		require.NoError(t, s.Quiesce(l))
		return weak.Make(ep)
	}
	for _, err := range []error{nil, provider.ErrEndpoint} {
		w := closed(err)
		runtime.GC()
		require.Nil(t, w.Value())
	}
	require.Empty(t, s.shuts)
}
