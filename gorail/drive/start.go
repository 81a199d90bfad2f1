package drive

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"gorail/gorail/measure"
	"gorail/gorail/side"
)

// start starts the processes, opens them and lets them connect.
func (t *turn) start() (err error) {
	if t.subject.Title == "process_vm" && t.Connect.Given() {
		return errors.New("process_vm copies on one host only")
	}
	var outs [2]side.OpenOut
	for i, m := range []**member{&t.ini, &t.tgt} {
		if *m, err = t.spawn(i == 1); err != nil {
			return err
		}
		args := t.open(i == 1)
		if outs[i], err = side.Call[side.OpenOut]((*m).Side, "Open", args, commandLimit); err != nil {
			return fmt.Errorf("%s: %w", args.Name, err)
		}
		(*m).peer = outs[i].Peer
	}
	if _, err = side.Call[side.None](t.ini.Side, "Load", t.tgt.peer, commandLimit); err != nil {
		return err
	}
	t.describe(outs)
	if t.subject.Backend == "" {
		return nil
	}
	p := t.first()
	s, err := t.timed(p, measure.Pace{Count: uint64(p.Threads), Limit: t.Pace.Limit})
	if err != nil {
		return fmt.Errorf("the first transfer: %w", err)
	}
	t.info.First = time.Duration(s.Lat.Max)
	return nil
}

// spawn starts a process.
func (t *turn) spawn(target bool) (*member, error) {
	m := &member{}
	if n := len(t.GPUs); n > 0 {
		m.gpu = t.GPUs[0]
		if target {
			m.gpu = t.GPUs[n-1]
		}
	}
	var err error
	switch {
	case target && t.Connect.Given() && !t.subject.Here:
		if m.Side, err = side.Dial(t.Connect); err != nil {
			return nil, err
		}
		var hello side.HelloOut
		if hello, err = m.Greet(); err != nil {
			m.End(time.Second)
		}
		t.out.Machine = hello.Machine
	default:
		m.Side, err = side.Spawn()
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// describe takes what the processes say about themselves.
func (t *turn) describe(outs [2]side.OpenOut) {
	i := outs[0]
	t.info = measure.Pair{Subject: t.subject.Title, Repeat: t.repeat, Create: i.Create}
	t.out.Versions = cmp.Or(i.Versions, t.out.Versions)
	var gpus []string
	for k, m := range t.members() {
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

// open returns the arguments of a process.
func (t *turn) open(target bool) (in side.OpenArgs) {
	in = side.OpenArgs{Name: "initiator", Backend: t.subject.Backend, Params: maps.Clone(t.subject.Params), Env: t.subject.Env, Wheel: t.Wheel,
		Prog: t.Prog, Sync: t.Sync, Threads: 1, Agents: t.agents(), Memory: cmp.Or(t.subject.Memory, t.Memory, "dram"), Room: t.first().Room()}
	for _, p := range t.Points {
		if p.Transfers() {
			in.Room = max(in.Room, p.Room())
		}
		in.Threads = max(in.Threads, p.Threads)
	}
	if in.Params == nil {
		in.Params = map[string]string{}
	}
	in.GPU = t.ini.gpu
	if target {
		in.Name, in.GPU, in.Memory = "target", t.tgt.gpu, cmp.Or(t.subject.Memory, t.TargetMemory, t.Memory, "dram")
		maps.Copy(in.Params, t.Theirs)
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
