// Package rail decides which rails an engine has and which of them carry the traffic to a peer. It is pure.
package rail

import (
	"cmp"
	"slices"

	"gorail/backend/provider"
	"gorail/backend/wire"
)

// Pair is one rail of ours and the peer's rail that it talks to, by index on each side.
type Pair struct{ Own, Peer int }

// Offers describes our rails for the connection blob; the index is the place in the slice.
func Offers(devices []provider.Device) []wire.RailOffer {
	offers := make([]wire.RailOffer, len(devices))
	for i, d := range devices {
		offers[i] = wire.RailOffer{Index: uint8(i), Fabric: d.Fabric, Subnet: d.Subnet, Name: d.Name, Loopback: d.Loopback, Mbps: d.Mbps}
	}
	return offers
}

// Match pairs our rails with a peer's, best first. sameNS says that both live in one network namespace: then a loopback
// pair comes first, as the fastest there; otherwise loopback rails are left out. Rails pair within a fabric, by subnet
// where both have one, else by number; rails of the same fabric and of different subnets come last (they may be routed).
func Match(own []provider.Device, peer []wire.RailOffer, sameNS bool) []Pair {
	type scored struct {
		Pair
		score int
		mbps  uint64
	}
	var all []scored
	for i, d := range own {
		for _, o := range peer {
			if d.Fabric != o.Fabric || d.Loopback != o.Loopback || (d.Loopback && !sameNS) {
				continue
			}
			s := scored{Pair{i, int(o.Index)}, 0, min(d.Mbps, o.Mbps)}
			switch {
			case d.Loopback:
				s.score = 3
			case d.Subnet == o.Subnet:
				s.score = 2
			default:
				s.score = 1
			}
			if d.Name == o.Name && s.score < 3 {
				s.mbps++ // rail i with rail i, other things being equal
			}
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b scored) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(b.mbps, a.mbps), cmp.Compare(a.Own, b.Own), cmp.Compare(a.Peer, b.Peer))
	})
	var pairs []Pair
	usedOwn, usedPeer := map[int]bool{}, map[int]bool{}
	for _, s := range all {
		if len(all) > 0 && s.score != all[0].score {
			break // never mix loopback, same subnet and routed
		}
		if usedOwn[s.Own] || usedPeer[s.Peer] {
			continue
		}
		usedOwn[s.Own], usedPeer[s.Peer] = true, true
		pairs = append(pairs, s.Pair)
	}
	return pairs
}
