package target

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/link"
	"gorail/backend/option"
	"gorail/backend/peer"
	"gorail/backend/provider"
	"gorail/backend/quota"
	"gorail/backend/rails"
	"gorail/backend/wire"
)

// Endpoints of peers are counted from the Hello on, and given back once.
func TestRoom(t *testing.T) {
	s := noSessions()
	s.Options = &option.Options{}
	s.Options.MaxEndpoints, s.Options.QPsPerRail = 5, 2
	s.Links = &link.Set{Rails: &rails.Set{List: []*rails.Rail{{Can: provider.Caps{Descriptors: 3}}, {Can: provider.Caps{SharedEndpoint: true}}}}}
	hello := func(offers ...wire.EndpointOffer) (*Session, error) {
		session := &Session{s: s, in: &peer.In{}}
		return session, session.makeRoom(offers)
	}
	a, err := hello(wire.EndpointOffer{}, wire.EndpointOffer{}, wire.EndpointOffer{Own: 1}, wire.EndpointOffer{Rail: 9})
	require.NoError(t, err)
	require.Equal(t, quota.Usage{Endpoints: 3, Descriptors: 9}, a.usage, "none for a rail that we have not")
	_, err = hello(wire.EndpointOffer{}, wire.EndpointOffer{}, wire.EndpointOffer{})
	require.Equal(t, wire.CodeLimit, reject(t, err), "three links on a pair of rails")
	_, err = hello(wire.EndpointOffer{Rail: 1}, wire.EndpointOffer{Rail: 1})
	require.Equal(t, wire.CodeLimit, reject(t, err), "two on a shared endpoint")
	b, err := hello(wire.EndpointOffer{}, wire.EndpointOffer{Own: 1}, wire.EndpointOffer{Own: 2})
	require.Equal(t, wire.CodeBusy, reject(t, err))
	require.Zero(t, b.usage)
	a.leaveRoom()
	a.leaveRoom()
	_, err = hello(wire.EndpointOffer{}, wire.EndpointOffer{Own: 1}, wire.EndpointOffer{Own: 2})
	require.NoError(t, err)
	_, err = hello(wire.EndpointOffer{}, wire.EndpointOffer{Own: 1}, wire.EndpointOffer{Own: 2})
	require.Equal(t, wire.CodeBusy, reject(t, err), "not given back twice")
}

func reject(t *testing.T, err error) wire.Code {
	var r *peer.RejectError
	require.ErrorAs(t, err, &r)
	return r.Code
}
