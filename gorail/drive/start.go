package drive

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"gorail/gorail/bench/scheme"
	"gorail/gorail/measure"
	"gorail/gorail/side"
)

// start starts the processes, opens them and lets them connect.
func (t *turn) start() (err error) {
	if t.subject.Title == "process_vm" && t.Connect.Given() {
		return errors.New("process_vm copies on one host only")
	}
	list, err := scheme.Edges(cmp.Or(t.Scheme, "pairwise"), max(1, t.Initiators), max(1, t.Targets))
	if err != nil {
		return err
	}
	t.edges = number(list)
	for i := range max(1, t.Initiators) + max(1, t.Targets) {
		if err := t.spawn(i); err != nil {
			return err
		}
	}
	outs := make([]side.OpenOut, len(t.all()))
	if err := each(t.all(), func(i int, m *member) (err error) {
		args, who := t.open(i)
		outs[i], err = side.Call[side.OpenOut](m.Side, "Open", args, commandLimit)
		if err != nil {
			return fmt.Errorf("%s: %w", who, err)
		}
		m.peer = outs[i].Peer
		return nil
	}); err != nil {
		return err
	}
	for _, e := range t.edges {
		if _, err = side.Call[side.None](t.inis[e.Initiator].Side, "Load", t.tgts[e.Target].peer, commandLimit); err != nil {
			return err
		}
	}
	t.describe(outs)
	if t.subject.Backend != "" {
		p := t.first()
		s, err := t.timed(p, measure.Pace{Count: uint64(p.Threads), Limit: t.Pace.Limit})
		if err != nil {
			return fmt.Errorf("the first transfer: %w", err)
		}
		t.info.First = time.Duration(s.Lat.Max)
	}
	return nil
}

// spawn starts the i-th process.
func (t *turn) spawn(i int) error {
	var s *side.Side
	var err error
	target := i >= max(1, t.Initiators)
	if target && t.Connect.Given() && !t.subject.Here {
		if s, err = side.Dial(t.Connect); err == nil {
			var hello side.HelloOut
			if hello, err = s.Greet(); err != nil {
				s.End(time.Second)
			}
			t.out.Machine = hello.Machine
		}
	} else if t.Spawn != nil {
		s, err = t.Spawn(target)
	} else {
		s, err = side.Spawn()
	}
	if err != nil {
		return err
	}
	m := &member{Side: s}
	if len(t.GPUs) > 0 {
		m.gpu = t.GPUs[i%len(t.GPUs)]
	}
	if target {
		t.tgts = append(t.tgts, m)
	} else {
		t.inis = append(t.inis, m)
	}
	return nil
}

// describe takes what the processes say about themselves.
func (t *turn) describe(outs []side.OpenOut) {
	i, o := outs[0], outs[len(t.inis)]
	t.info = measure.Pair{Subject: t.subject.Title, Repeat: t.repeat, Create: i.Create, Later: i.Later, FDs: [2]int{i.FDs, o.FDs}}
	t.out.Versions = cmp.Or(i.Versions, t.out.Versions)
	var gpus []string
	for k, m := range t.all() {
		if outs[k].GPU != "" {
			gpus = append(gpus, fmt.Sprintf("GPU %d: %s", m.gpu, outs[k].GPU))
		}
	}
	if len(gpus) > 0 {
		t.out.GPUs = gpus
	}
}

// first is the first transfer of new processes: 4 KiB of each agent.
func (t *turn) first() measure.Point {
	p := measure.Point{Op: "WRITE", Block: 4096, Batch: 1, Depth: 1, Threads: 1}
	if n := t.agents(); n > 1 {
		p.Agents, p.Threads = n, n
	}
	return p
}

// agents returns the number of agents of a process.
func (t *turn) agents() (n int) {
	n = 1
	for _, p := range t.Points {
		n = max(n, p.Engines())
	}
	return n
}

// open returns the arguments of the i-th process, and its name.
func (t *turn) open(i int) (in side.OpenArgs, who string) {
	in = side.OpenArgs{Backend: t.subject.Backend, Params: maps.Clone(t.subject.Params), Env: t.subject.Env, Wheel: t.Wheel,
		Prog: t.Prog, Sync: t.Sync, Threads: 1, Agents: t.agents(), GPU: t.all()[i].gpu}
	points := []measure.Point{t.first()}
	for _, p := range t.Points {
		if p.Transfers() {
			points = append(points, p)
		}
		in.Threads = max(in.Threads, p.Threads)
	}
	in.Room = room(t.edges, points)
	in.Memory = cmp.Or(t.subject.Memory, t.Memory, "dram")
	who, number := "initiator", i
	if i >= len(t.inis) {
		who, number = "target", i-len(t.inis)
		in.Memory = cmp.Or(t.subject.Memory, t.TargetMemory, t.Memory, "dram")
	}
	in.Name = who
	if len(t.inis)+len(t.tgts) > 2 {
		in.Name = fmt.Sprintf("%s-%d", who, number)
	}
	if in.Backend == "" {
		in.Limit = t.subject.Title
		return in, in.Name
	}
	if in.Params == nil {
		in.Params = map[string]string{}
	}
	if who == "target" {
		maps.Copy(in.Params, t.Theirs)
	}
	in.PluginDir = t.PluginDir(in.Backend)
	if in.Backend == "UCX" && in.Threads > 1 && in.Params["num_workers"] == "" {
		in.Params["num_workers"] = strconv.Itoa(in.Threads + 1) // as nixlbench does
	}
	return in, in.Name
}

// routes returns an initiator's traffic. The order is that of its calls of Load.
func (t *turn) routes(initiator int, p measure.Point) (out []side.Route) {
	for _, e := range t.edges {
		if e.Initiator == initiator {
			local, remote := e.places(p)
			out = append(out, side.Route{Peer: e.here, Local: local, Remote: remote, Seeds: e.seeds()})
		}
	}
	return out
}
