package peer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/gorail/doctor/machine"
	"gorail/gorail/drive"
	"gorail/gorail/measure"
)

const (
	block    = 1 << 20
	depth    = 8
	mostRail = 16 // pairs that are measured one by one
)

// transfers moves memory over each pair of rails, with real agents on both sides.
func (v *peerChecker) transfers() {
	if len(v.pairs) == 0 {
		v.Fail("peer-transfer", fmt.Sprintf("no rail here reaches a rail of the peer: %s here, %s there", rails.Names(v.devices), v.theirs()), "give both sides a rail of one fabric and subnet: options devices and provider")
		return
	}
	if wheel(v.host) == "" {
		v.Fail("peer-transfer", "nothing is transferred: python3 here finds no NIXL wheel", "install one, or name its site-packages folder in NIXL_WHEEL_DIR", "pip install nixl")
		return
	}
	for i, p := range v.pairs {
		if i == mostRail {
			v.Pass("peer-transfer", "%d more pairs are not measured", len(v.pairs)-i)
			return
		}
		if d := v.devices[p.Own]; d.Shard == 0 {
			v.transfer(p)
		}
	}
}

func (v *peerChecker) theirs() string {
	var names []string
	for _, o := range v.peer.Rails {
		names = append(names, provider.Label(o.Fabric, o.Name, int(o.Shard)))
	}
	return strings.Join(names, ", ")
}

// transfer is one WRITE and one READ over a pair.
func (v *peerChecker) transfer(p rails.Pair) {
	own, name := v.devices[p.Own], v.name(p)
	theirs := own.Name
	for _, o := range v.peer.Rails {
		if int(o.Index) == p.Peer {
			theirs = o.Name
		}
	}
	params := maps.Clone(v.host.Params)
	if params == nil {
		params = map[string]string{}
	}
	params["provider"], params["devices"] = own.Fabric, own.Name
	their := map[string]string{"devices": theirs}
	if own.Host && !v.own.sameNet(&v.peer) { // the control channel needs another rail's address; sm carries all data if it reaches the peer
		params["provider"] = provider.SharedMemory + "," + provider.TCP
		delete(params, "devices")
		their = map[string]string{}
	}
	for name, value := range params {
		if option.NamesFile(name, value) {
			their[name] = "" // a file of this host; the peer has its own
		}
	}
	args := machine.OpenArgs("", nil)
	var failed []string
	c := &drive.Config{
		Subjects: []measure.Subject{{Title: "GORAIL", Backend: "GORAIL", Params: params}},
		Points:   []measure.Point{{Op: "WRITE", Block: block, Batch: 1, Depth: depth, Threads: 1}, {Op: "READ", Block: block, Batch: 1, Depth: depth, Threads: 1}},
		Pace:     measure.Pace{Warmup: depth, Time: 200 * time.Millisecond, Limit: 10 * time.Second}, Repeats: 1, Prog: true, Sync: "none", Target: "polls",
		Check: true, Connect: v.place, Wheel: wheel(v.host), PluginDir: func(string) string { return args.PluginDir },
		Theirs: their, Step: func(string) {}, Warn: func(_ string, why error) { failed = append(failed, oneLine(why)) },
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	samples := c.Run(ctx).Samples
	speeds := map[string]float64{}
	for _, s := range samples {
		if s.Failed == "" && s.Verified {
			speeds[s.Point.Op] = s.GBps()
		}
	}
	link := min(linkOf(own.Mbps), linkOf(v.mbps(p.Peer)))
	if len(failed) == 0 && len(speeds) < 2 {
		failed = append(failed, errors.New("the bytes were not compared").Error())
	}
	if len(failed) > 0 {
		v.Fail("peer-transfer", name+": "+strings.Join(failed, "; "), "do what the first FAIL above says, else what this text says; the peer's log may have more")
		return
	}
	text := fmt.Sprintf("%s: WRITE %.2f GB/s, READ %.2f GB/s, bytes compared", name, speeds["WRITE"], speeds["READ"])
	if link > 0 && link < noLink {
		text += fmt.Sprintf("; the link gives %.4g GB/s", link)
		if max(speeds["WRITE"], speeds["READ"]) < link/2 {
			v.Warn("peer-transfer", text, "see docs/performance.md; over sockets a thread carries about 3 GB/s (option tcp_threads)", "gorail bench --connect HOST:PORT")
			return
		}
	}
	v.Pass("peer-transfer", "%s", text)
}

// noLink is more than any link gives: its speed is unknown.
const noLink = 1e9

// linkOf is a link's speed in GB/s.
func linkOf(mbps uint64) float64 {
	if mbps == 0 {
		return noLink
	}
	return float64(mbps) / 8000
}

func (v *peerChecker) mbps(index int) uint64 {
	for _, o := range v.peer.Rails {
		if int(o.Index) == index {
			return o.Mbps
		}
	}
	return 0
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
