package week

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"gorail/gorail/study/week/life"
	"gorail/internal/subprocess"
)

// Places at the hub and at the partner: who writes where.
const (
	byMain = iota // the agents that stay
	byVisitor
	byRotating
	byRestarted
)

// slab is how often the hub registers memory and takes it back: the plugin keeps regions in slabs of as many, until all of a slab are gone.
const slab = 32

// start starts a process with agents.
func (x *run) start(agents ...string) (s started) {
	// The caches of threads would count as given out, and fill for long.
	tunables := "GLIBC_TUNABLES=" + strings.TrimPrefix(os.Getenv("GLIBC_TUNABLES")+":glibc.malloc.tcache_count=0", ":")
	if s.Client, s.err = subprocess.Start(subprocess.Options{Args: []string{life.Command}, Setenv: []string{tunables}}, life.Service); s.err != nil {
		return s
	}
	in := x.open
	in.Names = agents
	out, err := subprocess.Call[life.OpenOut](s.Client, "Open", in, limit)
	s.peers, s.err = out.Peers, err
	return s
}

// another starts the next process that will be restarted, under its old name or under a new one, in turn.
func (x *run) another() {
	name := "restarted"
	if x.lives%2 == 1 {
		name = fmt.Sprintf("restarted-%d", x.lives)
	}
	x.lives++
	x.next <- x.start(name)
}

// move counts what a process has moved.
func (x *run) move(c *subprocess.Client, method string, in any, to *long) error {
	out, err := subprocess.Call[life.MoveOut](c, method, in, limit)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.done.Transfers += out.Transfers
	x.done.Bytes += out.Bytes
	if to != nil {
		to.notifs += out.Notifs
	}
	return err
}

// both runs two functions side by side.
func both(a, b func() error) error {
	failed := make(chan error, 1)
	go func() { failed <- b() }()
	return errors.Join(a(), <-failed)
}

// round is one round: everything is done once or more.
func (x *run) round(n int) error {
	hub, partner := x.hub.peers["hub"], x.partner.peers["partner"]
	visitor := x.partner.peers["visitor"]
	turns := up(x.one.transfers, 4*life.Lanes) // two directions, a WRITE and a READ each
	err := both(func() error {
		return x.move(x.hub.Client, "Move", life.MoveArgs{Agent: "hub", Peer: partner, Place: byMain, Turns: turns}, x.partner)
	}, func() error {
		return x.move(x.partner.Client, "Move", life.MoveArgs{Agent: "partner", Peer: hub, Place: byMain, Turns: turns}, x.hub)
	})
	if err != nil {
		return err
	}
	err = both(func() error {
		return x.move(x.hub.Client, "Meet", life.MeetArgs{Agents: []string{"hub"}, Peers: []life.Peer{visitor}, Place: byVisitor, Times: up(x.one.meets, 2)}, x.partner)
	}, func() error {
		return x.move(x.partner.Client, "Meet", life.MeetArgs{Agents: []string{"visitor"}, Peers: []life.Peer{hub}, Place: byVisitor, Times: up(x.one.meets, 2)}, x.hub)
	})
	x.kinds.meets += 2 * up(x.one.meets, 2)
	for left := x.one.agents; left > 0 && err == nil; left -= together {
		err = x.rotate(min(left, together))
	}
	for range x.one.restarts {
		if err == nil {
			err = x.restart(n)
		}
	}
	return err
}

// rotate makes agents with names that no agent had before, lets each move bytes to the hub and the hub to each, and ends them.
func (x *run) rotate(n int) error {
	names := life.Names{Notifs: 1}
	for range n {
		names.Names = append(names.Names, fmt.Sprintf("agent-%d", x.kinds.agents))
		x.kinds.agents++
	}
	peers, err := subprocess.Call[[]life.Peer](x.partner.Client, "Arrive", names, limit)
	if err != nil {
		return err
	}
	err = x.move(x.hub.Client, "Meet", life.MeetArgs{Agents: []string{"hub"}, Peers: peers, Place: byMain, Times: n}, x.partner)
	if err == nil {
		err = x.move(x.partner.Client, "Meet", life.MeetArgs{Agents: names.Names, Peers: []life.Peer{x.hub.peers["hub"]}, Place: byRotating, Times: n, Silent: x.silent}, x.hub)
	}
	if err == nil {
		_, err = subprocess.Call[life.None](x.hub.Client, "Again", life.MoveArgs{Agent: "hub", Turns: slab}, limit)
	}
	if err == nil {
		_, err = subprocess.Call[life.None](x.partner.Client, "Leave", names, limit)
	}
	return err
}

// restart is the life of a process: it moves bytes to the hub, and the hub to it. Then it is killed, or ends. The hub removes it.
func (x *run) restart(n int) error {
	s := <-x.next
	go x.another()
	if s.Client == nil {
		return s.err
	}
	defer s.Kill()
	if s.err != nil {
		return s.err
	}
	p := s.peers[0]
	err := x.move(x.hub.Client, "Move", life.MoveArgs{Agent: "hub", Peer: p, Place: byMain, Turns: 2}, nil)
	if err == nil {
		err = x.move(s.Client, "Move", life.MoveArgs{Agent: p.Name, Peer: x.hub.peers["hub"], Place: byRestarted, Turns: 2, Silent: x.silent}, x.hub)
	}
	if err == nil { // what was sent has left the process: a dead one sends nothing
		_, err = subprocess.Call[life.Held](x.hub.Client, "Hold", life.WantArgs{Notifs: x.hub.notifs}, limit)
	}
	if err != nil {
		return err
	}
	if x.kinds.restarts++; (n+x.kinds.restarts)%2 == 0 {
		_ = s.Signal(syscall.SIGKILL)
		s.Kill()
	} else {
		s.End(10 * time.Second)
	}
	_, err = subprocess.Call[life.None](x.hub.Client, "Forget", life.MoveArgs{Agent: "hub", Peer: p}, limit)
	return err
}
