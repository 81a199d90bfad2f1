package drive

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"gorail/gorail/measure"
	"gorail/gorail/side"
)

// nap is how long a napping target sleeps after an empty poll.
const nap = time.Millisecond

// timed runs a point between ready processes.
func (t *turn) timed(p measure.Point, pace measure.Pace) (s measure.Sample, err error) {
	if p.Op == "IDLE" {
		return t.idle(pace)
	}
	if p.Transfers() {
		if s.Make, err = t.prepare(p); err != nil {
			return s, err
		}
	}
	limit := pace.Limit + commandLimit
	sleep := t.Target == "sleeps" && t.info.First != 0 // connecting needs both sides with some backends
	serve := side.ServeArgs{Limit: 2 * limit}
	if sleep {
		serve.Limit = 0
	} else if t.Target == "naps" {
		serve.Nap = nap
	}
	if err := each(t.tgts, func(_ int, m *member) error {
		_, err := side.Call[side.None](m.Side, "Serve", serve, commandLimit)
		return err
	}); err != nil {
		return s, err
	}
	began := time.Now()
	outs, err := t.transfer(p, pace, limit)
	if err != nil {
		return s, err
	}
	if err := t.await(p, outs, sleep, &s); err != nil {
		return s, err
	}
	first, last := outs[0].Began, outs[0].Ended
	for _, out := range outs {
		s.Done, s.Posted = s.Done+out.Done, s.Posted+out.Posted
		first, last = min(first, out.Began), max(last, out.Ended)
		s.CPU[0] += out.CPU
		s.Lat.Add(out.Lat)
		s.Post.Add(out.Post)
		s.Makes.Add(out.Makes)
	}
	s.Wall = last - first
	if p.Op == "NOTIFY" {
		s.Wall = time.Since(began) // until the last notification has arrived
	}
	return s, nil
}

// startIn is how long after the warm-up several initiators start together.
const startIn = 100 * time.Millisecond

// transfer lets all initiators post. Several warm up first, and start their clocks at one time.
func (t *turn) transfer(p measure.Point, pace measure.Pace, limit time.Duration) (outs []side.RunOut, err error) {
	outs = make([]side.RunOut, len(t.inis))
	if p.Op == "NOTIFY" {
		outs[0], err = side.Call[side.RunOut](t.inis[0].Side, "Notify", side.NotifyArgs{Size: p.Block, Pace: pace}, limit)
		return outs, err
	}
	run := func(args side.RunArgs) ([]side.RunOut, error) {
		got := make([]side.RunOut, len(t.inis))
		return got, each(t.inis, func(i int, m *member) (err error) {
			got[i], err = side.Call[side.RunOut](m.Side, "Run", args, limit)
			return err
		})
	}
	var warmed []side.RunOut
	args := side.RunArgs{Pace: pace}
	if len(t.inis) > 1 {
		warm := pace
		warm.Count = 1
		if warmed, err = run(side.RunArgs{Pace: warm}); err != nil {
			return outs, err
		}
		args.Pace.Warmup = 0
		args.Start = measure.Now() + startIn
	}
	if outs, err = run(args); err != nil {
		return outs, err
	}
	for i, w := range warmed {
		o := &outs[i]
		o.Posted, o.CPU = o.Posted+w.Posted, o.CPU+w.CPU
		for k, n := range w.To {
			o.To[k] += n
		}
		if w.Failed != "" {
			o.Failed = w.Failed
		}
	}
	return outs, nil
}

// await waits until the targets have all notifications.
func (t *turn) await(p measure.Point, outs []side.RunOut, sleep bool, s *measure.Sample) error {
	want := make([]uint64, len(t.tgts))
	for _, e := range t.edges {
		if to := outs[e.Initiator].To; e.here < len(to) && (t.Notify || p.Op == "NOTIFY") {
			want[e.Target] += to[e.here]
		}
	}
	got := make([]side.WantOut, len(t.tgts))
	err := each(t.tgts, func(i int, m *member) (err error) {
		got[i], err = side.Call[side.WantOut](m.Side, "Want", side.WantArgs{N: want[i], Wait: 10 * time.Second, Sleep: sleep}, commandLimit)
		return err
	})
	for _, out := range outs {
		if out.Failed != "" {
			return errors.New(out.Failed)
		}
	}
	if err != nil {
		return err
	}
	for i, w := range got {
		if t.subject.Backend != "" && w.Seen < want[i] {
			return fmt.Errorf("%d of %d notifications arrived", w.Seen, want[i])
		}
		s.CPU[1] += w.CPU
	}
	return nil
}

// prepare lets the initiators create their requests. For tcp the target listens first.
func (t *turn) prepare(p measure.Point) (time.Duration, error) {
	var addr string
	if t.subject.Title == "tcp" && t.subject.Backend == "" {
		local, remote := t.edges[0].places(p)
		seeds := t.edges[0].seeds()
		r := side.Route{Local: remote, Remote: local, Seeds: [2]uint64{seeds[1], seeds[0]}}
		out, err := side.Call[side.PointOut](t.tgts[0].Side, "Prepare", side.PointArgs{Point: p, Routes: []side.Route{r}}, commandLimit)
		if err != nil {
			return 0, err
		}
		host := t.tgts[0].Host
		if host == "" {
			host = "127.0.0.1"
		}
		addr = net.JoinHostPort(host, strconv.Itoa(out.Port))
	}
	made := make([]time.Duration, len(t.inis))
	err := each(t.inis, func(i int, m *member) error {
		out, err := side.Call[side.PointOut](m.Side, "Prepare", side.PointArgs{Point: p, Routes: t.routes(i, p), Notify: t.Notify, Addr: addr}, commandLimit)
		made[i] = out.Make
		return err
	})
	return slices.Max(made), err
}

// idle measures the CPU time of connected processes without transfers.
func (t *turn) idle(pace measure.Pace) (s measure.Sample, err error) {
	time.Sleep(min(pace.Time, time.Second)) // work left by the last transfers
	used := func() (out [2]time.Duration, err error) {
		for i, list := range [][]*member{t.inis, t.tgts} {
			for _, m := range list {
				st, err := side.Call[side.Stats](m.Side, "Stats", side.None{}, commandLimit)
				if err != nil {
					return out, err
				}
				out[i] += st.CPU
			}
		}
		return out, nil
	}
	before, err := used()
	if err != nil {
		return s, err
	}
	time.Sleep(pace.Time)
	after, err := used()
	s.CPU, s.Wall = [2]time.Duration{after[0] - before[0], after[1] - before[1]}, pace.Time
	return s, err
}
