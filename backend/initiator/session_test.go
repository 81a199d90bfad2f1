package initiator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/link"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/rail"
	"gorail/backend/rails"
	"gorail/backend/wire"
)

// peerOf is an unconnected session with a peer that offers this number of links. The endpoint of our last rail is
// shared.
func peerOf(links uint8, qps int) *Session {
	s := &Sessions{Config: Config{Options: &option.Options{}}, disconnecting: map[*Session]*disconnection{}}
	s.Options.QPsPerRail = qps
	s.Links = &link.Set{Rails: &rails.Set{List: []*rails.Rail{{}, {Can: provider.Caps{SharedEndpoint: true}}}}}
	return &Session{s: s, blob: wire.ConnBlob{Links: links}}
}

// Every pair of rails has as many links as both sides want and as fit. A pair over a shared endpoint has one link.
func TestSpread(t *testing.T) {
	one, two, shared := rail.Pair{Own: 0, Peer: 0}, rail.Pair{Own: 0, Peer: 1}, rail.Pair{Own: 1, Peer: 2}
	require.Equal(t, []rail.Pair{one, two, one, two}, peerOf(4, 2).spread([]rail.Pair{one, two}), "ours are fewer")
	require.Equal(t, []rail.Pair{one, two, one, two}, peerOf(2, 4).spread([]rail.Pair{one, two}), "the peer's are")
	require.Equal(t, []rail.Pair{one}, peerOf(0, 4).spread([]rail.Pair{one}), "a peer that offers no number")
	require.Equal(t, []rail.Pair{one, shared, one}, peerOf(2, 2).spread([]rail.Pair{one, shared}))
	many := make([]rail.Pair, core.MaxLinks-1)
	require.Len(t, peerOf(8, 8).spread(many), len(many), "a second round would not fit")
}

// The numbers of a new session begin behind all that the target has.
func TestFirstNumber(t *testing.T) {
	require.EqualValues(t, 7, firstNumber(wire.Welcome{NextSeq: 7}))
	require.EqualValues(t, 17, firstNumber(wire.Welcome{NextSeq: 7, Have: []uint16{2, 9}}), "16 is there already")
}

// A session waits for an older one with the same engine that still delivers, whatever the older one's name was.
func TestOlderThan(t *testing.T) {
	r := peerOf(1, 1)
	r.number, r.blob.Engine = 5, wire.EngineID{1}
	leave := func(number uint64, engine byte) *disconnection {
		d := &disconnection{}
		r.s.disconnecting[&Session{s: r.s, number: number, blob: wire.ConnBlob{Engine: wire.EngineID{engine}}}] = d
		return d
	}
	leave(4, 2)
	leave(6, 1)
	require.Nil(t, r.s.olderThan(r), "another engine's, and a later one")
	older := leave(4, 1)
	require.Same(t, older, r.s.olderThan(r))
}
