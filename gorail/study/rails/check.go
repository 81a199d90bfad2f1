package rails

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"sync"
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
		l.capacity = &c
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

// checkLab runs doctor in the initiator's namespace, then plain TCP over each rail and over all at once.
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
	for i := range spec.Rails {
		if err := s.checkPlain(r, lab.Rail(i), s.links[i].gbps, i); err != nil {
			return err
		}
	}
	if spec.Rails > 1 {
		var all []int
		sum := 0.0
		for i, l := range s.links {
			all, sum = append(all, i), sum+l.gbps
		}
		return s.checkPlain(r, "all rails at once", sum, all...)
	}
	return nil
}

// checkPlain compares plain TCP over rails with what they should give.
func (s *study) checkPlain(r *result.Result, what string, want float64, rails ...int) error {
	got := make([]float64, len(rails))
	errs := make([]error, len(rails))
	var all sync.WaitGroup
	for k, i := range rails {
		all.Go(func() { got[k], errs[k] = plain(s.lab, i) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("plain TCP over %s of the lab: %w", what, err)
	}
	sum := 0.0
	for _, g := range got {
		sum += g
	}
	s.plain = append(s.plain, sum)
	c := result.Check{Status: "PASS", What: "plain-tcp", Text: fmt.Sprintf("%s: plain TCP carries %.3g GB/s of %.3g", what, sum, want)}
	if sum < enough*want {
		c.Status, c.Remedy = "WARN", "give the lab idle cores, or lower rates: no backend over TCP will do better"
	}
	r.Checks = append(r.Checks, c)
	return nil
}

// enough is the share of an expectation that counts as reached.
const enough = 0.9

// plain measures one TCP connection over a rail, in 10^9 bytes a second.
func plain(l *lab.Lab, i int) (float64, error) {
	var ln net.Listener
	if err := l.In(true, func() (err error) {
		ln, err = net.Listen("tcp", net.JoinHostPort(lab.Addr(i), "0"))
		return err
	}); err != nil {
		return 0, err
	}
	defer ln.Close()
	var out net.Conn
	if err := l.In(false, func() (err error) {
		for end := time.Now().Add(5 * time.Second); ; { // the first packets on a new wire may be lost
			if out, err = net.DialTimeout("tcp", ln.Addr().String(), time.Second); err == nil || time.Now().After(end) {
				return err
			}
		}
	}); err != nil {
		return 0, err
	}
	defer out.Close()
	in, err := ln.Accept()
	if err != nil {
		return 0, err
	}
	defer in.Close()
	go func() {
		b := make([]byte, 256<<10)
		for {
			if _, err := out.Write(b); err != nil {
				return // the measurement has ended
			}
		}
	}()
	b := make([]byte, 256<<10)
	began, n := time.Now(), 0
	for skipped := false; ; {
		k, err := in.Read(b)
		if err != nil {
			return 0, err
		}
		n += k
		took := time.Since(began)
		if !skipped && took > plainTime/3 { // the shaper lets a first burst through
			began, n, skipped = time.Now(), 0, true
		} else if skipped && took > plainTime {
			return float64(n) / took.Seconds() / 1e9, nil
		}
	}
}
