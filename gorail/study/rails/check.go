package rails

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"gorail/gorail/doctor"
	"gorail/gorail/doctor/machine"
	"gorail/gorail/doctor/peer"
	"gorail/gorail/result"
	"gorail/gorail/study/env"
	"gorail/gorail/study/lab"
)

// areas are the areas of gorail doctor that say something about rails.
var areas = []string{"devices", "links", "memory", "rails", "peer"}

// checkHere runs doctor for this machine, and for the way to the peer, and finds the rails.
func (s *study) checkHere(r *result.Result) error {
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
		return errors.New("no rail but shared memory: gorail doctor says why; --lab rails=2,rate=1gbit shows the study on shaped rails")
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

// checkLab runs doctor in the initiator's namespace.
func (s *study) checkLab(ctx context.Context, r *result.Result) error {
	spec := s.lab.Spec
	for i := range spec.Rails {
		s.links = append(s.links, link{name: lab.Rail(i), fabric: "tcp", gbps: spec.GBps(i), why: fmt.Sprintf("shaped to %s, of which %.3g GB/s are data", bits(int(spec.Rate(i)/1e6)), spec.GBps(i))})
	}
	var text []byte
	err := s.lab.In(false, func() error {
		var err error
		c := exec.CommandContext(ctx, "/proc/self/exe", "doctor", "--json", "--param", "provider=tcp")
		c.WaitDelay = time.Second
		if text, err = c.Output(); len(text) > 0 {
			err = nil // with a FAIL the status is 1
		}
		return err
	})
	report := &doctor.Report{}
	if err == nil {
		err = json.Unmarshal(text, report)
	}
	if err != nil {
		return fmt.Errorf("gorail doctor in the lab: %w", err)
	}
	env.TakeChecks(report, areas, r)
	return nil
}
