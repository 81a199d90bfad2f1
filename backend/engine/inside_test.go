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

// remote is a session of ours, as tests look at it.
type remote struct{ *initiator.Session }

// remote is the session with a peer; nil inside: there is none.
func (a *agent) remote(name string) *remote { return &remote{a.initiators.Of(name)} }

// inside is what the session is made of now.
func (r *remote) inside() (in initiator.Inside) {
	r.Inspect(func(i initiator.Inside) { in = i })
	in.Links = slices.Clone(in.Links)
	return in
}

func (r *remote) links() []*link.Link { return r.inside().Links }

func (r *remote) ready() bool { return r.Peer().View().State == transfer.Ready }

// count is how many links are so.
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

// atWork is how many links of the session work.
func (r *remote) atWork() int {
	return r.count(func(l *link.Link) bool { return l.Phase == failover.Working && l.Up })
}

// fail ends the session with a peer as an error of this side's does.
func (r *remote) fail(text string) { r.GiveUp(errors.New(text)) }

// fenceAll fences every link.
func (r *remote) fenceAll(why string) { r.Fence(r.Peer().View().Routes, why) }

// dropped waits until our endpoints of a session that is let go of are closed.
func (r *remote) dropped(t testing.TB) {
	t.Helper()
	until(t, "endpoints are open", func() bool { return !r.inside().Has })
}

// inFlight waits until something of the first link's is posted.
func (r *remote) inFlight(x *request) {
	until(x.a.t, "nothing posted", func() bool { x.check(); return r.links()[0].Core.Stats().InflightOps > 0 })
}

// keysHere is how many regions of the peer's have keys.
func (r *remote) keysHere() int { return r.inside().Keyed }

// settled waits until everything that was handed to the peer's queue of events so far is done.
func settled(a *agent, r *remote) {
	done := make(chan struct{})
	r.Peer().Events.Do(&a.life, func() { close(done) })
	<-done
}

// connected waits until a link to the peer works.
func (a *agent) connected(peer string) *remote {
	a.t.Helper()
	r := a.controlReady(peer)
	until(a.t, "not connected", func() bool {
		return r.ready() && r.count(func(l *link.Link) bool { return l.Phase == failover.Working }) > 0
	})
	return r
}

// controlReady waits until the control channel is ready, whatever the links do.
func (a *agent) controlReady(peer string) *remote {
	a.t.Helper()
	r := a.remote(peer)
	require.NotNil(a.t, r.Session)
	until(a.t, "not controlReady", r.ready)
	return r
}

// sessions is how many peers' sessions the engine serves.
func (a *agent) sessions() int { return len(a.targets.All()) }

// held is how many messages of the latest session wait behind a gap.
func (a *agent) held() int {
	if t := a.targets.Latest(); t != nil {
		return t.Held()
	}
	return 0
}

// record is the transfer of a request.
func (x *request) record() *transfer.Transfer {
	t, err := x.a.transfers.Get(x.handle)
	require.NoError(x.a.t, err)
	return t
}

// shares is what each link has moved of the request's last run.
func (x *request) shares() (all []uint64) {
	t := x.record()
	for _, r := range t.Peer().View().Routes {
		all = append(all, t.Slot().Share(r.Link))
	}
	return all
}

// posted waits until the request has something posted.
func (x *request) posted() *request {
	x.a.t.Helper()
	slot := x.record().Slot()
	until(x.a.t, "nothing posted", func() bool {
		x.check()
		slot.DropCachedPost()
		return x.a.core.Posted(slot, core.Link{})
	})
	return x
}
