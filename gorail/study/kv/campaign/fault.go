package campaign

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gorail/gorail/study/kv/hosts"
	"gorail/gorail/study/kv/node"
	"gorail/internal/subprocess"
)

// fault is one kind of fault.
type fault struct {
	name, what string
	kills      bool          // the node's process ends
	hosts      bool          // wants hosts of their own
	local      bool          // wants a process of this host
	pause      bool          // it lasts
	hold       time.Duration // how long; 0: as the pace says
	begin      func(*campaign, *seat) error
	end        func(*campaign, *round) error
}

// left is a fault that was left out, and why.
type left struct{ name, why string }

func done(*campaign, *seat) error   { return nil }
func ended(*campaign, *round) error { return nil }

// nothing is the round that shows how much requests differ without a fault.
var nothing = &fault{name: "none", what: "nothing happens", pause: true, begin: done, end: ended}

// faults are all, in the order of a campaign.
var faults = []*fault{
	{name: "kill", what: "kill -9; later another engine, with another name and other ports", kills: true, pause: true, begin: killed, end: renewed},
	{name: "restart", what: "kill -9; at once a node with the same name and ports", kills: true, begin: killed, end: func(c *campaign, r *round) error {
		c.lives++
		return c.enter(r.victim, c.lives)
	}},
	{name: "replace", what: "kill -9; a node with another name on another host", kills: true, begin: killed, end: replaced},
	stop(time.Second), stop(9 * time.Second), stop(70 * time.Second),
	{name: "cut-out", what: "nothing that the host sends arrives", hosts: true, pause: true, begin: cut(1, hosts.Out), end: healed},
	{name: "cut-in", what: "nothing that is sent to the host arrives", hosts: true, pause: true, begin: cut(1, hosts.In), end: healed},
	{name: "cut", what: "nothing arrives, both ways", hosts: true, pause: true, begin: cut(1, hosts.In, hosts.Out), end: healed},
	{name: "loss", what: "one packet of 100 is lost, both ways", hosts: true, pause: true, begin: cut(0.01, hosts.In, hosts.Out), end: healed},
	{name: "rail", what: "one of two interfaces is down", hosts: true, pause: true,
		begin: func(_ *campaign, s *seat) error { return s.host.Rail(1, false) }, end: func(_ *campaign, r *round) error { return r.victim.host.Rail(1, true) }},
	{name: "address", what: "the address of one of two interfaces is replaced", hosts: true, begin: func(_ *campaign, s *seat) error { return s.host.Readdress(1) }, end: ended},
	{name: "disk", what: "the disk of the log is full", hosts: true, pause: true, begin: filled, end: emptied},
	{name: "memory", what: "the process gets no more memory than it has (RLIMIT_AS)", kills: true, local: true, pause: true, begin: narrow, end: wide},
	{name: "clock", what: "the clock of the day is an hour ahead, then right again (of this process)", local: true, pause: true, begin: stepped(time.Hour), end: func(c *campaign, r *round) error { return stepped(0)(c, r.victim) }},
}

// Names are the names of all faults.
func Names() (out []string) {
	for _, f := range faults {
		out = append(out, f.name)
	}
	return out
}

// Known refuses names of no fault.
func Known(names []string) error {
	_, _, err := choose(Options{Faults: names}, pace{}, false)
	return err
}

// choose finds the faults that are asked for. Those above the longest time, and those that a peer rules out, are left out.
func choose(o Options, p pace, peer bool) (list []*fault, out []left, err error) {
	for _, name := range o.Faults {
		if i := slices.IndexFunc(faults, func(f *fault) bool { return f.name == name }); i >= 0 {
			list = append(list, faults[i])
		} else if name == All {
			list = append(list, faults...)
		} else {
			return nil, nil, fmt.Errorf("--chaos %q: want %s, or some of %s", name, All, strings.Join(Names(), ", "))
		}
	}
	list = slices.DeleteFunc(list, func(f *fault) bool {
		switch {
		case f.hold > p.longest:
			out = append(out, left{f.name, fmt.Sprintf("longer than %v: without --smallest and --quick", p.longest)})
		case f.hosts && peer:
			out = append(out, left{f.name, "with --peer: it is made in network namespaces of one host"})
		case f.name == "clock" && !clockWorks():
			out = append(out, left{f.name, "a process has a clock of its own on amd64 only"})
		default:
			return false
		}
		return true
	})
	return list, out, nil
}

// place makes hosts if there may be some. Without, faults that want them are left out.
func place(list []*fault, out []left, o Options, dir string, peer bool) ([]*fault, *hosts.Net, []left) {
	if peer {
		return list, nil, out
	}
	net, err := hostsOf(o, dir)
	if err == nil {
		return list, net, out
	}
	list = slices.DeleteFunc(list, func(f *fault) bool {
		if f.hosts {
			out = append(out, left{f.name, "no hosts of their own: " + err.Error()})
		}
		return f.hosts
	})
	return list, nil, out
}

func clockWorks() bool { return runtime.GOARCH == "amd64" }

func killed(c *campaign, s *seat) error { c.kill(s); return nil }

func renewed(c *campaign, r *round) error { return c.renew(r.victim) }

// replaced starts the node on the host that stands by. Without one, on the same host with other ports.
func replaced(c *campaign, r *round) error {
	if s := r.victim; c.spare != nil {
		s.host, c.spare = c.spare, s.host
	} else {
		r.note = "on the same host with other ports: there is no other"
	}
	return c.renew(r.victim)
}

func stop(d time.Duration) *fault {
	return &fault{name: fmt.Sprintf("stop%d", d/time.Second), what: fmt.Sprintf("the process is stopped for %v", d), local: true, pause: true, hold: d,
		begin: func(_ *campaign, s *seat) error { return s.now().Signal(syscall.SIGSTOP) },
		end:   func(_ *campaign, r *round) error { return r.victim.now().Signal(syscall.SIGCONT) }}
}

func cut(share float64, ways ...hosts.Way) func(*campaign, *seat) error {
	return func(_ *campaign, s *seat) error { return s.host.Drop(share, ways...) }
}

func healed(_ *campaign, r *round) error { return r.victim.host.Heal() }

// filler is a file beside a node's log, as this process sees it.
func filler(s *seat) string {
	return filepath.Join("/proc", fmt.Sprint(s.now().Pid), "root", s.host.Logs(), "filler")
}

// filled fills the disk of a node's log.
func filled(_ *campaign, s *seat) error {
	f, err := os.Create(filler(s))
	if err != nil {
		return err
	}
	defer f.Close()
	for b := make([]byte, 4096); ; {
		if _, err = f.Write(b); err != nil {
			break
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	return nil
}

func emptied(_ *campaign, r *round) error { return os.Remove(filler(r.victim)) }

// narrow lets a process have no more addresses than it has. Memory that a runtime has reserved before, it still takes.
func narrow(_ *campaign, s *seat) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.now().Pid))
	if err != nil {
		return err
	}
	var pages uint64
	if _, err := fmt.Sscan(string(text), &pages); err != nil {
		return err
	}
	return unix.Prlimit(s.now().Pid, unix.RLIMIT_AS, &unix.Rlimit{Cur: pages * uint64(os.Getpagesize()), Max: unix.RLIM_INFINITY}, nil)
}

// wide ends narrow. A process that has died of it is started anew.
func wide(c *campaign, r *round) error {
	m := r.victim.now()
	if err := unix.Prlimit(m.Pid, unix.RLIMIT_AS, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}, nil); err == nil && m.alive() {
		return nil
	}
	r.note = "the process died, and was started anew"
	c.kill(r.victim)
	return c.renew(r.victim)
}

// alive says whether a process runs.
func (m *member) alive() bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.Pid))
	return err == nil && !strings.Contains(string(text), ") Z ")
}

func stepped(by time.Duration) func(*campaign, *seat) error {
	return func(_ *campaign, s *seat) error {
		_, err := subprocess.Call[node.None](s.now().Client, "Step", by, time.Minute)
		return err
	}
}
