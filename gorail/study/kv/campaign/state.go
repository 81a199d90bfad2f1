package campaign

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"gorail/gorail/live"
	"gorail/gorail/measure"
	"gorail/gorail/study/kv/node"
)

// state is what a process holds.
type state struct {
	seat   *seat
	member *member
	before held
	after  held
	took   time.Duration // from the end of the last request until it held no more than before; -1: it still does
}

// held is what a process holds. A number is -1 if it is not known.
type held struct {
	fds, threads, sessions int
	memory                 int64 // bytes without those of files
}

// What a survivor may hold beyond what it held: threads that Go's runtimes keep once they have needed them (at most 4 in two runs of 30 faults;
// a thread for each fault would be more), and memory that allocators keep (at most 6 MiB there).
const (
	moreThreads = 8
	moreMemory  = 16 << 20
)

// more says what a process holds beyond what it held; "": nothing.
func (s *state) more() string {
	a, b := s.after, s.before
	var out []string
	if a.fds > b.fds {
		out = append(out, fmt.Sprintf("%d descriptors", a.fds-b.fds))
	}
	if a.sessions > b.sessions {
		out = append(out, fmt.Sprintf("%d sessions", a.sessions-b.sessions))
	}
	if a.threads > b.threads+moreThreads {
		out = append(out, fmt.Sprintf("%d threads", a.threads-b.threads))
	}
	if a.memory > b.memory+moreMemory {
		out = append(out, fmt.Sprintf("%d MiB", (a.memory-b.memory)>>20))
	}
	return strings.Join(out, ", ")
}

// look reads what the processes hold that live since the beginning: all of them, or those of a list.
func (c *campaign) look(list []state) []state {
	if list == nil {
		for _, s := range c.seats() {
			if m := s.now(); m != nil && !m.remote {
				list = append(list, state{seat: s, member: m, took: -1})
			}
		}
		for i := range list {
			list[i].before = c.holds(list[i].member)
		}
		return list
	}
	for i := range list {
		list[i].after = c.holds(list[i].member)
	}
	return list
}

// holds reads what a process holds.
func (c *campaign) holds(m *member) (h held) {
	h = held{-1, -1, -1, -1}
	_, _ = call[node.None](m, "Settle", node.None{}, 10*time.Second)
	if list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", m.Pid)); err == nil {
		h.fds = len(list)
	}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.Pid))
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		switch key {
		case "Threads":
			_, _ = fmt.Sscan(value, &h.threads)
		case "RssAnon":
			_, _ = fmt.Sscan(value, &h.memory)
			h.memory <<= 10
		}
	}
	engines, err := live.Source{Folder: c.dir + "/s", Agent: m.Name}.Read(context.Background())
	if err != nil || len(engines) != 1 || engines[0].Live == nil {
		return h
	}
	h.sessions = 0
	for _, p := range engines[0].Peers {
		if !p.Ended() {
			h.sessions++
		}
	}
	return h
}

// settled waits until survivors hold no more than before, at most as long as the pace says.
func (c *campaign) settled(ctx context.Context) {
	var survivors []state
	for _, s := range c.states {
		if !s.seat.killed {
			survivors = append(survivors, s)
		}
	}
	c.states = survivors
	began := measure.Now()
	for ctx.Err() == nil {
		c.look(c.states)
		open := false
		for i := range c.states {
			s := &c.states[i]
			switch more := s.more() != ""; {
			case more:
				open, s.took = true, -1
			case s.took < 0:
				s.took = measure.Now() - began
			}
		}
		if !open || measure.Now()-began > c.settle {
			return
		}
		sleep(ctx, 500*time.Millisecond)
	}
}
