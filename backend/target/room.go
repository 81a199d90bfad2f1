package target

import (
	"fmt"
	"syscall"
	"time"

	"gorail/backend/limits"
	"gorail/backend/peer"
	"gorail/backend/quota"
	"gorail/backend/wire"
)

// Limits of what a peer that holds our token may take. docs/options.md has the options.
const (
	mostEndpoints = 16384                  // of all peers; their descriptors may also take at most half of the process's limit
	mostOlder     = 4                      // sessions of one engine: over shared endpoints, older sessions stay for a while
	openers       = 2                      // Hellos that open endpoints at a time: each holds a thread, and a rail's lock
	fencers       = 16                     // fences at a time: one may wait a second for its peer's notifications
	connectors    = 128                    // connects at a time: each holds a thread, on RoCE up to 3 s if the neighbour is lost
	ownConnectors = 32                     // connects of one session at a time
	enders        = 16                     // sessions that close endpoints at a time
	share         = 8                      // opening endpoints takes 1/share of a core, after atOnce
	atOnce        = 300 * time.Millisecond // time for about a thousand endpoints on tcp
	askers        = 1                      // requests for keys at a time: one lock guards the registrations
	shareOfAsking = 2                      // requests for keys take 1/shareOfAsking of a core, after askAtOnce
	askAtOnce     = 4 * time.Second        // many peers may ask for all keys when they connect
)

// mostRoom is the limit of endpoints and of their descriptors.
func (s *Sessions) mostRoom() quota.Usage {
	if s.Options.MaxEndpoints > 0 {
		return quota.Usage{Endpoints: s.Options.MaxEndpoints, Descriptors: 1 << 30}
	}
	l := syscall.Rlimit{Cur: 1024}
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l)
	return quota.Usage{Endpoints: mostEndpoints, Descriptors: int(min(l.Cur/2, 1<<30))}
}

// makeRoom checks a Hello's offers, and counts their endpoints until leaveRoom. A Hello that could be admitted later is
// refused as busy.
func (t *Session) makeRoom(offers []wire.EndpointOffer) error {
	s := t.s
	type pair struct{ rail, own uint8 }
	links := map[pair]int{}
	for _, o := range offers {
		if int(o.Rail) >= len(s.Links.Rails.List) {
			continue // open answers that we have no such rail
		}
		most := s.Options.QPsPerRail
		if s.Links.Rails.List[o.Rail].Can.SharedEndpoint {
			most = 1
		}
		p := pair{o.Rail, o.Own}
		if links[p]++; links[p] > most { //limit:links_per_pair
			s.Limits.Hit(limits.LinksPerPair)
			return &peer.RejectError{Code: wire.CodeLimit, Text: fmt.Sprintf("%d links on a pair of rails: %d are allowed here (option qps_per_rail)", links[p], most)}
		}
		t.usage = t.usage.Plus(quota.Usage{Endpoints: 1, Descriptors: s.Links.Rails.List[o.Rail].Can.Descriptors})
	}
	all := s.mostRoom()
	most := quota.Quarters(all)
	wants := t.usage
	refusal := s.room.Take(t.in.Owner(), wants, most, time.Now()) //limit:identity_endpoints
	if refusal.By == quota.ByNone {
		return nil
	}
	t.usage = quota.Usage{}
	if refusal.By == quota.ByIdentity {
		s.Limits.Hit(limits.IdentityEndpoints)
	} else {
		s.Limits.Hit(limits.Endpoints)
	}
	limit := fmt.Sprintf("the limit is %d, with %d file descriptors (option max_endpoints, ulimit -n)", all.Endpoints, all.Descriptors)
	if !wants.Within(most.Source) {
		return &peer.RejectError{Code: wire.CodeLimit, Text: fmt.Sprintf("the session wants %d endpoints, and one address may have three quarters of all: %s", wants.Endpoints, limit)}
	}
	if n := s.node.Load(); n != nil {
		n.MakeRoom(refusal)
	}
	whose := map[quota.Bound]string{quota.BySource: " of this address", quota.ByIdentity: " of this identity"}[refusal.By]
	return &peer.RejectError{Code: wire.CodeBusy, Text: "too many endpoints of peers" + whose + ": " + limit}
}

// warnOf logs a warning that a peer has caused, within the limit of such lines.
func (s *Sessions) warnOf(in *peer.In, text string, args ...any) {
	if !s.warnLimit.Warn(s.Log, time.Now(), text, append(args, "peer", in.Agent())...) {
		s.Limits.Hit(limits.LogLines)
	}
}
