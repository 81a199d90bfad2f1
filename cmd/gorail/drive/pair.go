package drive

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"time"

	"gorail/cmd/gorail/measure"
	"gorail/cmd/gorail/side"
)

// first is the first transfer of a new pair.
var first = measure.Point{Op: "WRITE", Block: 4096, Batch: 1, Depth: 1, Threads: 1}

// nap is how long a napping target sleeps after an empty poll.
const nap = time.Millisecond

// start starts the pair and opens both sides.
func (t *turn) start() (err error) {
	if t.subject.Title == "process_vm" && t.Connect != "" {
		return errors.New("process_vm copies on one host only")
	}
	if t.ini, err = side.Spawn(); err != nil {
		return err
	}
	if t.Connect != "" && !t.subject.Here {
		t.tgt, err = side.Dial(t.Connect)
	} else {
		t.tgt, err = side.Spawn()
	}
	if err != nil {
		t.ini.Kill()
		t.ini = nil
		return err
	}
	args := t.open()
	args.Name = "initiator"
	i, err := side.Call[side.OpenOut](t.ini, "Open", args, commandLimit)
	if err != nil {
		return fmt.Errorf("initiator: %w", err)
	}
	args.Name, args.Params = "target", maps.Clone(args.Params)
	maps.Copy(args.Params, t.Theirs)
	o, err := side.Call[side.OpenOut](t.tgt, "Open", args, commandLimit)
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	if _, err = side.Call[side.None](t.ini, "Load", side.PeerArgs{MD: o.MD, Base: o.Base, Pid: o.Pid}, commandLimit); err != nil {
		return err
	}
	t.info = measure.Pair{Subject: t.subject.Title, Repeat: t.repeat, Create: i.Create, Later: i.Later, FDs: [2]int{i.FDs, o.FDs}}
	if i.Versions != "" {
		t.versions = i.Versions
	}
	if t.subject.Backend != "" {
		s, err := t.timed(first, measure.Pace{Count: 1, Limit: t.Pace.Limit})
		if err != nil {
			return fmt.Errorf("the first transfer: %w", err)
		}
		t.info.First = time.Duration(s.Lat.Sum)
	}
	return nil
}

// open returns the arguments of both processes.
func (t *turn) open() side.OpenArgs {
	in := side.OpenArgs{Backend: t.subject.Backend, Params: maps.Clone(t.subject.Params), Env: t.subject.Env, Wheel: t.Wheel,
		Memory: cmp.Or(t.subject.Memory, t.Memory), Prog: t.Prog, Sync: t.Sync, Room: first.Room(), Threads: 1}
	for _, p := range t.Points {
		if p.Transfers() {
			in.Room = max(in.Room, p.Room())
		}
		in.Threads = max(in.Threads, p.Threads)
	}
	if in.Backend == "" {
		in.Limit = t.subject.Title
		return in
	}
	in.PluginDir = t.PluginDir(in.Backend)
	if in.Backend == "UCX" && in.Threads > 1 && in.Params["num_workers"] == "" {
		in.Params["num_workers"] = strconv.Itoa(in.Threads + 1) // as nixlbench does
	}
	return in
}

// point measures one point. It starts a pair if there is none.
func (t *turn) point(p measure.Point, n uint64) (measure.Sample, error) {
	if t.ini == nil {
		if err := t.start(); err != nil {
			return measure.Sample{}, err
		}
	}
	if !t.Check || !p.Transfers() {
		return t.timed(p, t.Pace)
	}
	// The source has one pattern and the destination another. Both differ from those of other points.
	from, to := side.MemArgs{Point: p, Seed: 2*n + 1, Between: 2*n + 1}, side.MemArgs{Point: p, Seed: 2*n + 2, Between: 2*n + 2}
	src, dst := t.ini, t.tgt
	if t.subject.Title == "memcpy" {
		dst, to.CopyTarget = t.ini, true
	}
	if p.Op == "READ" {
		src, dst, from.CopyTarget, to.CopyTarget = dst, src, to.CopyTarget, from.CopyTarget
	}
	if t.subject.Backend == "" {
		p.Depth = 1
	}
	if _, err := side.Call[side.None](src, "Fill", from, commandLimit); err != nil {
		return measure.Sample{}, err
	}
	if _, err := side.Call[side.None](dst, "Fill", to, commandLimit); err != nil {
		return measure.Sample{}, err
	}
	s, err := t.timed(p, t.Pace)
	if err != nil {
		return s, err
	}
	to.Seed = from.Seed
	_, err = side.Call[side.None](dst, "Check", to, commandLimit)
	s.Verified = err == nil
	return s, err
}

// timed runs a point between two ready processes.
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
	serve := side.ServeArgs{Limit: limit}
	sleep := t.Target == "sleeps" && p != first // connecting needs both sides with some backends
	if sleep {
		serve.Limit = 0
	} else if t.Target == "naps" {
		serve.Nap = nap
	}
	if _, err := side.Call[side.None](t.tgt, "Serve", serve, commandLimit); err != nil {
		return s, err
	}
	began := time.Now()
	var out side.RunOut
	if p.Op == "NOTIFY" {
		out, err = side.Call[side.RunOut](t.ini, "Notify", side.NotifyArgs{Size: p.Block, Pace: pace}, limit)
	} else {
		out, err = side.Call[side.RunOut](t.ini, "Run", pace, limit)
	}
	if err != nil {
		return s, err
	}
	want := side.WantArgs{N: out.Posted, Wait: 10 * time.Second, Sleep: sleep}
	if !t.Notify && p.Op != "NOTIFY" {
		want.N = 0
	}
	w, err := side.Call[side.WantOut](t.tgt, "Want", want, commandLimit)
	switch {
	case out.Failed != "":
		return s, errors.New(out.Failed)
	case err != nil:
		return s, err
	case t.subject.Backend != "" && w.Seen < want.N:
		return s, fmt.Errorf("%d of %d notifications arrived", w.Seen, want.N)
	}
	s.Done, s.Posted, s.Wall, s.Lat, s.Post = out.Done, out.Posted, out.Wall, out.Lat, out.Post
	s.CPU = [2]time.Duration{out.CPU, w.CPU}
	if p.Op == "NOTIFY" {
		s.Wall = time.Since(began) // until the last notification has arrived
	}
	return s, nil
}

// prepare lets the initiator create its requests. For tcp the target listens first.
func (t *turn) prepare(p measure.Point) (time.Duration, error) {
	in := side.PointArgs{Point: p, Notify: t.Notify}
	if t.subject.Title == "tcp" && t.subject.Backend == "" {
		out, err := side.Call[side.PointOut](t.tgt, "Prepare", in, commandLimit)
		if err != nil {
			return 0, err
		}
		host := t.tgt.Host
		if host == "" {
			host = "127.0.0.1"
		}
		in.Addr = net.JoinHostPort(host, strconv.Itoa(out.Port))
	}
	out, err := side.Call[side.PointOut](t.ini, "Prepare", in, commandLimit)
	return out.Make, err
}

// idle measures the CPU time of a connected pair without transfers.
func (t *turn) idle(pace measure.Pace) (s measure.Sample, err error) {
	time.Sleep(min(pace.Time, time.Second)) // work left by the last transfers
	var before [2]time.Duration
	for round := range 2 {
		for i, p := range []*side.Side{t.ini, t.tgt} {
			st, err := side.Call[side.Stats](p, "Stats", side.None{}, commandLimit)
			if err != nil {
				return s, err
			}
			before[i], s.CPU[i] = st.CPU, st.CPU-before[i]
		}
		if round == 0 {
			time.Sleep(pace.Time)
		}
	}
	s.Wall = pace.Time
	return s, nil
}
