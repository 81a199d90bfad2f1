package drive

import (
	"errors"
	"fmt"
	"net"
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
	if _, err := side.Call[side.None](t.tgt.Side, "Serve", serve, commandLimit); err != nil {
		return s, err
	}
	began := time.Now()
	var out side.RunOut
	if p.Op == "NOTIFY" {
		out, err = side.Call[side.RunOut](t.ini.Side, "Notify", side.NotifyArgs{Size: p.Block, Pace: pace}, limit)
	} else {
		out, err = side.Call[side.RunOut](t.ini.Side, "Run", pace, limit)
	}
	if err == nil {
		s.CPU[1], err = t.await(p, out, sleep)
	}
	if err != nil {
		return s, err
	}
	s.Done, s.Posted, s.CPU[0], s.Lat, s.Post, s.Makes = out.Done, out.Posted, out.CPU, out.Lat, out.Post, out.Makes
	s.Wall = out.Ended - out.Began
	if p.Op == "NOTIFY" {
		s.Wall = time.Since(began) // until the last notification has arrived
	}
	return s, nil
}

// await waits until the target has all notifications, and returns its CPU time.
func (t *turn) await(p measure.Point, out side.RunOut, sleep bool) (time.Duration, error) {
	want := side.WantArgs{Wait: 10 * time.Second, Sleep: sleep}
	if t.subject.Backend != "" && (t.Notify || p.Op == "NOTIFY") {
		want.N = out.Posted
	}
	got, err := side.Call[side.WantOut](t.tgt.Side, "Want", want, commandLimit)
	switch {
	case out.Failed != "":
		return 0, errors.New(out.Failed)
	case err != nil:
		return 0, err
	case got.Seen < want.N:
		return 0, fmt.Errorf("%d of %d notifications arrived", got.Seen, want.N)
	}
	return got.CPU, nil
}

// prepare lets the initiator create its requests. For tcp the target listens first.
func (t *turn) prepare(p measure.Point) (time.Duration, error) {
	args := side.PointArgs{Point: p, Notify: t.Notify}
	if t.subject.Title == measure.TCP && t.subject.Backend == "" {
		out, err := side.Call[side.PointOut](t.tgt.Side, "Prepare", args, commandLimit)
		if err != nil {
			return 0, err
		}
		host := t.tgt.Host
		if host == "" {
			host = "127.0.0.1"
		}
		args.Addr = net.JoinHostPort(host, strconv.Itoa(out.Port))
	}
	out, err := side.Call[side.PointOut](t.ini.Side, "Prepare", args, commandLimit)
	return out.Make, err
}

// idle measures the CPU time of connected processes without transfers.
func (t *turn) idle(pace measure.Pace) (s measure.Sample, err error) {
	time.Sleep(min(pace.Time, time.Second)) // work left by the last transfers
	used := func() (out [2]time.Duration, err error) {
		for i, m := range t.members() {
			used, err := side.Call[time.Duration](m.Side, "CPU", side.None{}, commandLimit)
			if err != nil {
				return out, err
			}
			out[i] = used
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
