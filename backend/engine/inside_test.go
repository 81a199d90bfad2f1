package engine

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/failover"
	"gorail/backend/initiator"
	"gorail/backend/link"
	"gorail/backend/transfer"
)

// remote is a session with this engine as initiator.
type remote struct{ *initiator.Session }

// remote is the session with a peer. Its Session is nil if there is none.
func (a *agent) remote(name string) *remote { return &remote{a.initiators.Of(name)} }

// inside returns the present state of the session.
func (r *remote) inside() (in initiator.Inside) {
	r.Inspect(func(i initiator.Inside) { in = i })
	in.Links = slices.Clone(in.Links)
	return in
}

func (r *remote) links() []*link.Link { return r.inside().Links }

func (r *remote) ready() bool { return r.Peer().View().State == transfer.Ready }

// count returns the number of links for which is returns true.
func (r *remote) count(is func(l *link.Link) bool) (n int) {
	r.Inspect(func(in initiator.Inside) {
		for _, l := range in.Links {
			if is(l) {
				n++
			}
		}
	})
	return n
}

// atWork returns the number of working links.
func (r *remote) atWork() int {
	return r.count(func(l *link.Link) bool { return l.Phase == failover.Working && l.Up })
}

// fail ends the session, as an error of the initiator does.
func (r *remote) fail(text string) { r.GiveUp(errors.New(text)) }

// fenceAll fences every link.
func (r *remote) fenceAll(why string) { r.Fence(r.Peer().View().Routes, why) }

// dropped waits until a session that has ended has closed the initiator's endpoints.
func (r *remote) dropped(t testing.TB) {
	t.Helper()
	until(t, "the endpoints are closed", func() bool { return !r.inside().Has })
}

// inFlight waits until the first link has a work request in flight.
func (r *remote) inFlight(x *request) {
	until(x.a.t, "the first link has posted something", func() bool { x.check(); return r.links()[0].Core.Stats().InflightOps > 0 })
}

// keysHere returns how many regions of the peer have keys.
func (r *remote) keysHere() int { return r.inside().Keyed }

// settled waits until all events that are in the peer's queue now have been handled.
func settled(a *agent, r *remote) {
	done := make(chan struct{})
	r.Peer().Events.Do(&a.life, func() { close(done) })
	<-done
}

// connected waits until a link to the peer works.
func (a *agent) connected(peer string) *remote {
	a.t.Helper()
	r := a.controlReady(peer)
	until(a.t, "a link to the peer works", func() bool {
		return r.ready() && r.count(func(l *link.Link) bool { return l.Phase == failover.Working }) > 0
	})
	return r
}

// controlReady waits until the control channel is ready. The links need not work.
func (a *agent) controlReady(peer string) *remote {
	a.t.Helper()
	r := a.remote(peer)
	require.NotNil(a.t, r.Session)
	until(a.t, "the control channel is ready", r.ready)
	return r
}

// sessions returns the number of sessions with this engine as target.
func (a *agent) sessions() int { return len(a.targets.All()) }

// held returns how many messages of the latest session wait behind a gap.
func (a *agent) held() int {
	if t := a.targets.Latest(); t != nil {
		return t.Held()
	}
	return 0
}

// record returns the transfer.
func (x *request) record() *transfer.Transfer {
	t, err := x.a.transfers.Get(x.handle)
	require.NoError(x.a.t, err)
	return t
}

// shares returns how many bytes each link has moved in the last post.
func (x *request) shares() (all []uint64) {
	t := x.record()
	for _, r := range t.Peer().View().Routes {
		all = append(all, t.Slot().Share(r.Link))
	}
	return all
}

// posted waits until the transfer has posted a work request.
func (x *request) posted() *request {
	x.a.t.Helper()
	slot := x.record().Slot()
	until(x.a.t, "the request has posted something", func() bool {
		x.check()
		slot.DropCachedPost()
		return x.a.core.Posted(slot, core.Link{})
	})
	return x
}
