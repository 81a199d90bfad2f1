package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/gorail/doctor"
	"gorail/gorail/door"
	"gorail/gorail/side"
)

// DefaultPort is the port of gorail doctor --listen.
const DefaultPort = "18516"

const (
	lookupTime = 3 * time.Second
	factsTime  = 10 * time.Second
	mostFacts  = 256 // of a kind; a host has 34 rails at most, and a plugin folder some dozen names
)

// peerChecker looks at one peer.
type peerChecker struct {
	*doctor.Report
	host    *doctor.Host
	at      string // host:port of gorail doctor --listen
	place   door.Place
	from    string // our address of the connection to it
	own     *Facts
	devices []provider.Device
	peer    Facts
	process *side.Side
	pairs   []rails.Pair
	apart   bool // one host, and rail sm has no way between the two
}

// Check adds the checks of the way to a peer.
func Check(r *doctor.Report, h *doctor.Host, version string, at door.Place) {
	v := &peerChecker{Report: r, host: h}
	if !v.resolve(at) || !v.connect() {
		return
	}
	defer v.process.End(5 * time.Second)
	v.own, v.devices = about(version, h)
	if !v.ask() {
		return
	}
	v.pairs = rails.Match(v.devices, v.usable(), v.own.sameNet(&v.peer), nil)
	v.ports()
	v.transfers()
}

// resolve finds the peer's address.
func (v *peerChecker) resolve(at door.Place) bool {
	name, port, err := net.SplitHostPort(at.Addr)
	if err != nil {
		name, port = at.Addr, DefaultPort
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTime)
	defer cancel()
	ips, err := net.DefaultResolver.LookupHost(ctx, name)
	if err != nil {
		v.Fail("peer-address", fmt.Sprintf("%s has no address: %v", name, err), "correct the name, DNS or /etc/hosts, or write an IP address", "getent hosts "+name)
		return false
	}
	v.at = net.JoinHostPort(ips[0], port)
	v.place = at
	v.place.Addr = v.at
	v.Pass("peer-address", "%s", v.at)
	return true
}

// connect reaches gorail doctor --listen.
func (v *peerChecker) connect() bool {
	process, err := side.Dial(v.place)
	if no, ok := errors.AsType[*door.Refused](err); ok {
		v.Fail("peer-connect", "connected to "+v.at+", and not let in: "+no.Why.Error(), "do what the text says")
		return false
	}
	if err != nil {
		v.Fail("peer-connect", "cannot connect to "+v.at+": "+cause(err), remedyOf(err, v.at, "start gorail doctor --listen "+v.at+" there"))
		return false
	}
	v.process, v.from = process, process.Own
	v.Pass("peer-connect", "connected to %s from %s", v.at, v.from)
	return true
}

// cause is an error of a connection in the words of who looks for it.
func cause(err error) string {
	var n net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, errLost):
		return err.Error()
	case errors.As(err, &n) && n.Timeout():
		return "no answer: the packets are dropped"
	}
	return err.Error()
}

// remedyOf says what to do about an error of a connection to an address.
func remedyOf(err error, addr, refused string) string {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return refused + "; a firewall may refuse it, too: open TCP " + addr
	}
	return "open TCP " + addr + " in firewalls, security groups and network policies; check the route"
}

// ask exchanges facts. The clock's difference is known to half of the round trip.
func (v *peerChecker) ask() bool {
	var err error
	if v.peer, err = side.Call[Facts](v.process, "Facts", side.None{}, factsTime); err != nil {
		return v.silent(err)
	}
	if most := max(len(v.peer.Rails), len(v.peer.Addrs), len(v.peer.Names)); most > mostFacts {
		return v.silent(fmt.Errorf("it tells of %d rails, addresses or plugins", most))
	}
	began := time.Now()
	now, err := side.Call[time.Time](v.process, "Now", side.None{}, factsTime)
	trip := time.Since(began)
	if err != nil {
		return v.silent(err)
	}
	compare(v.Report, v.own, &v.peer, now.Round(0).Sub(began.Round(0).Add(trip/2)), v.ways)
	for who, why := range map[string]string{"here": v.own.Err, "at the peer": v.peer.Err} {
		if why != "" {
			v.Fail("peer-transfer", "no rails "+who+": "+why, "run gorail doctor without --peer there, and do what its first FAIL says")
			return false
		}
	}
	return true
}

// silent says that another program, or another release, answers there.
func (v *peerChecker) silent(err error) bool {
	v.Fail("peer-connect", "the program at "+v.at+" does not answer as it should: "+err.Error(), "run gorail doctor --listen of the same release there")
	return false
}

// route is a pair of addresses that rails use.
type route struct{ own, peer, name string }

// routes are the ways that control connections take: those of paired rails, else that of the connection.
func (v *peerChecker) routes() (out []route) {
	for _, p := range v.pairs {
		if v.devices[p.Own].Host && !v.own.sameNet(&v.peer) {
			continue // its address is the loopback's
		}
		own, peer := v.own.Addrs[p.Own], v.addrOf(p.Peer)
		if own != "" && peer != "" {
			out = append(out, route{own, peer, v.name(p)})
		}
	}
	if len(out) == 0 {
		host, _, _ := net.SplitHostPort(v.at)
		out = append(out, route{v.from, host, "the connection of this check"})
	}
	return out
}

// addrOf is the address of the peer's rail with an index; a peer may tell anything.
func (v *peerChecker) addrOf(index int) string {
	if index < 0 || index >= len(v.peer.Addrs) {
		return ""
	}
	return v.peer.Addrs[index]
}

func (v *peerChecker) name(p rails.Pair) string {
	theirs := "?"
	for _, o := range v.peer.Rails {
		if int(o.Index) == p.Peer {
			theirs = provider.Label(o.Fabric, o.Name, int(o.Shard))
		}
	}
	return rails.Name(v.devices[p.Own]) + " to " + theirs
}

// ports tries a port of each kind from both sides, then large packets.
func (v *peerChecker) ports() {
	routes := v.routes()
	v.kind("peer-control", "control_port", v.own.Control, routes)
	if v.kind("peer-data", "data_port", v.own.Data, routes) {
		v.large(routes)
	}
}

// kind opens a port of an option's range on each side, and connects to both.
func (v *peerChecker) kind(id, option_ string, own option.PortRange, routes []route) bool {
	l, err := listen(own)
	if err != nil {
		v.Fail(id, "cannot listen here: "+err.Error(), "widen "+option_+", or end what uses these ports", "ss -ltnp")
		return false
	}
	defer l.Close()
	open, err := side.Call[OpenPortOut](v.process, "OpenPort", OpenPortArgs{option_ == "data_port"}, factsTime)
	if err != nil {
		v.Fail(id, "the peer cannot listen: "+err.Error(), "widen "+option_+" there, or end what uses these ports", "ss -ltnp")
		return false
	}
	here, there, bad := strconv.Itoa(l.Addr().(*net.TCPAddr).Port), strconv.Itoa(open.Port), false
	for _, at := range routes {
		to, back := net.JoinHostPort(at.peer, there), net.JoinHostPort(at.own, here)
		remedy := func(host, port string) string {
			return "open TCP port " + port + " of " + host + " in firewalls, security groups and network policies; option " + option_ + " sets the range"
		}
		if _, err := connectTo(at.own, to, 1); err != nil {
			bad = true
			v.Fail(id, fmt.Sprintf("%s: cannot connect from %s to %s: %s", at.name, at.own, to, cause(err)), remedy(at.peer, there), "iptables -S INPUT   # at "+at.peer, "nft list ruleset")
		}
		out, err := side.Call[ConnectOut](v.process, "ConnectBack", ConnectArgs{at.peer, back}, factsTime)
		if err != nil || out.Err != "" {
			bad = true
			v.Fail(id, fmt.Sprintf("%s: the peer cannot connect from %s to %s: %s", at.name, at.peer, back, errText(err, out.Err)), remedy(at.own, here), "iptables -S INPUT", "nft list ruleset")
		}
	}
	if !bad {
		v.Pass(id, "ports %s there and %s here, both ways, over %d routes", there, here, len(routes))
	}
	return !bad
}

func errText(err error, text string) string {
	if err != nil {
		return err.Error()
	}
	return text
}

// bulk is more than the buffers of a connection to a path that drops large packets can hide.
const bulk = 256 << 10

// large sends full packets over each route.
func (v *peerChecker) large(routes []route) {
	open, err := side.Call[OpenPortOut](v.process, "OpenPort", OpenPortArgs{Data: true}, factsTime)
	if err != nil {
		v.Fail("peer-mtu", "the peer cannot listen: "+err.Error(), "widen data_port there")
		return
	}
	for _, at := range routes {
		p, err := connectTo(at.own, net.JoinHostPort(at.peer, strconv.Itoa(open.Port)), bulk)
		if err != nil {
			v.Fail("peer-mtu", fmt.Sprintf("%s: small packets arrive, and %d KiB do not: %s", at.name, bulk>>10, cause(err)), "set one MTU at both ends and all switches between, or let ICMP \"fragmentation needed\" pass", "ping -M do -s 8972 "+at.peer)
			continue
		}
		v.Pass("peer-mtu", "%s: path MTU %d", at.name, p.mtu)
	}
}

// wheel is the wheel of this side.
func wheel(h *doctor.Host) string {
	if dir := os.Getenv("NIXL_WHEEL_DIR"); dir != "" {
		return dir
	}
	return h.Software.Wheels.Where
}
