package rails

import (
	"errors"
	"fmt"
	"slices"

	"gorail/gorail/doctor"
	"gorail/gorail/doctor/machine"
	"gorail/gorail/doctor/peer"
	"gorail/gorail/result"
	"gorail/gorail/study/env"
)

// areas are the areas of gorail doctor that say something about rails.
var areas = []string{"devices", "links", "memory", "rails", "peer"}

// check runs doctor for this machine, and for the way to the peer, and finds the rails.
func (s *study) check(r *result.Result) error {
	host := machine.Here(s.Version, nil)
	report := doctor.Run(host)
	if s.Peer.Given() {
		peer.Check(report, host, s.Version, s.Peer)
		for _, c := range report.Checks {
			if c.Status == doctor.Fail && slices.Contains([]string{"peer-address", "peer-connect", "peer-version"}, c.ID) {
				return fmt.Errorf("%s: %s; %s", c.ID, c.Text, c.Remedy)
			}
		}
	}
	env.TakeChecks(report, areas, r)
	rails, err := env.Rails(host)
	if err != nil {
		return err
	}
	capacity := doctor.Capacities(host)
	for _, d := range rails.Now {
		if d.Host || d.Loopback || slices.ContainsFunc(s.links, func(l link) bool { return l.name == d.Name }) {
			continue
		}
		l := link{name: d.Name, fabric: d.Fabric, gbps: unknown, why: "the link's speed is unknown"}
		c := capacity[d.Name]
		if c.Mbps() == 0 {
			c.Port = int(d.Mbps)
		}
		if c.Mbps() > 0 {
			l.gbps = float64(c.Mbps()) / 8000 * payload(d.Hardware)
			l.why = "its port does " + bits(c.Port)
			if c.PCIe > 0 {
				l.why += ", its PCIe link " + c.Link + " carries " + bits(c.PCIe)
			}
		}
		s.links = append(s.links, l)
	}
	if len(s.links) == 0 {
		return errors.New("no rail but shared memory: gorail doctor says why")
	}
	return nil
}

// payload is the share of data on a link: headers of RDMA with packets of 4 KiB, or of TCP with frames of 1,500 bytes.
func payload(rdma bool) float64 {
	if rdma {
		return 0.97
	}
	return 0.949
}

func bits(mbps int) string {
	if mbps >= 1000 {
		return fmt.Sprintf("%.4g Gbit/s", float64(mbps)/1000)
	}
	return fmt.Sprintf("%d Mbit/s", mbps)
}
