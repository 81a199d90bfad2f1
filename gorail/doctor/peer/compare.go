package peer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gorail/gorail/doctor"
)

// compare judges the facts of both sides. ahead is how far the peer's clock is ahead, as good as half a round trip tells.
func compare(r *doctor.Report, own, peer *Facts, ahead time.Duration, try func() ways) {
	versions(r, own, peer)
	backends(r, own, peer)
	clock(r, ahead)
	sameHost(r, own, peer, try)
}

func versions(r *doctor.Report, own, peer *Facts) {
	text := fmt.Sprintf("GORAIL %s (protocol %d) and %s here, %s (%d) and %s at the peer", own.Version, own.Wire, orNo(own.NIXL), peer.Version, peer.Wire, orNo(peer.NIXL))
	switch {
	case own.Wire != peer.Wire:
		r.Fail("peer-version", text+": the protocols differ", "install one release of GORAIL on both sides", "pip install --upgrade nixl-gorail")
	case own.Version != peer.Version || own.NIXL != peer.NIXL:
		r.Warn("peer-version", text, "install the same releases on both sides, unless an upgrade is under way (docs/upgrade.md)", "pip install --upgrade nixl-gorail")
	default:
		r.Pass("peer-version", "%s", text)
	}
}

func orNo(nixl string) string {
	if nixl == "" {
		return "no NIXL wheel"
	}
	return nixl
}

// backends compares who answers to which name. An agent compares names alone, so the two would not understand each other.
func backends(r *doctor.Report, own, peer *Facts) {
	bad := missing(r, own, peer, "here", "at the peer") || missing(r, peer, own, "at the peer", "here")
	for _, name := range slices.Sorted(maps.Keys(own.Names)) {
		theirs, there := peer.Names[name]
		if ours := own.Names[name]; there && ours != theirs {
			bad = true
			who := map[bool]string{true: "GORAIL", false: "NIXL's own"}
			r.Fail("peer-names", fmt.Sprintf("%s is %s here and %s at the peer", name, who[ours], who[theirs]), "run gorail plugins with the same --as on both sides", "gorail plugins --dir DIR --as "+name)
		}
	}
	if !bad {
		r.Pass("peer-names", "no name is GORAIL on one side and another backend on the other")
	}
}

// missing finds aliases of one side that the other side has no plugin for. A side without NIXL_PLUGIN_DIR tells no names.
func missing(r *doctor.Report, a, b *Facts, here, there string) (found bool) {
	for _, name := range slices.Sorted(maps.Keys(a.Names)) {
		if _, ok := b.Names[name]; a.Names[name] && !ok && len(b.Names) > 0 {
			found = true
			r.Warn("peer-names", fmt.Sprintf("%s is GORAIL %s, and there is no plugin of that name %s", name, here, there), "run gorail plugins with the same --as on both sides", "gorail plugins --dir DIR --as "+name)
		}
	}
	return found
}

func clock(r *doctor.Report, ahead time.Duration) {
	by := ahead.Round(time.Millisecond).Abs()
	const remedy = "synchronize both clocks: chrony, systemd-timesyncd"
	switch text := fmt.Sprintf("the clocks differ by %v", by); {
	case by > time.Minute:
		r.Fail("peer-clock", text+": certificates may be refused as expired or not yet valid", remedy, "timedatectl set-ntp true")
	case by > 5*time.Second:
		r.Warn("peer-clock", text, remedy, "timedatectl set-ntp true")
	default:
		r.Pass("peer-clock", "%s", text)
	}
}

// ways are the ways of host memory between both sides, as the rail sm finds them.
type ways struct {
	there, back       string // "": direct
	thereErr, backErr error  // what forbids every way
}

// sameHost says which way host memory takes between two processes of one host, and what keeps them from a better one. try is
// called for processes of one host.
func sameHost(r *doctor.Report, own, peer *Facts, try func() ways) {
	if own.Boot == "" || own.Boot != peer.Boot {
		r.Pass("peer-host", "the peer is another host")
		return
	}
	if !own.SM || !peer.SM {
		r.Pass("peer-host", "one host; option provider leaves out sm")
		return
	}
	var apart []string
	remedy := "do what the text says (docs/kubernetes.md), or set option provider without sm"
	if own.UID != peer.UID {
		apart = append(apart, fmt.Sprintf("users differ (%d here, %d there)", own.UID, peer.UID))
		remedy = "run both as one user, or set local_peers=any-with-token at both, or set option provider without sm"
	}
	if own.PIDNS != peer.PIDNS {
		apart = append(apart, fmt.Sprintf("pid namespaces differ (%s, %s)", own.PIDNS, peer.PIDNS))
	}
	if own.NetNS != peer.NetNS {
		apart = append(apart, fmt.Sprintf("network namespaces differ (%s, %s)", own.NetNS, peer.NetNS))
	}
	text := "one host, one user, one pid and network namespace"
	if len(apart) > 0 {
		text = "one host, and the " + strings.Join(apart, ", the ")
	}
	w := try()
	if err := errors.Join(w.thereErr, w.backErr); err != nil {
		text += ": no shared memory: " + cmp.Or(w.thereErr, w.backErr).Error()
		r.Fail("peer-host", text, remedy)
		return
	}
	r.Pass("peer-host", "%s: %s", text, cmp.Or(w.there, w.back, "direct"))
}
