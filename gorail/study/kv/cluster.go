package kv

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"gorail/gorail/door"
	"gorail/gorail/measure"
	"gorail/gorail/study/kv/node"
	"gorail/internal/subprocess"
)

const commandLimit = time.Minute

// cluster is the processes.
type cluster struct {
	prefill, decode []*member
	versions        string
	within          time.Duration // the clocks of members on the peer are known so well at least
}

// member is one process.
type member struct {
	*subprocess.Client
	node.Peer
	remote bool   // on the peer
	clocks clocks // of a remote member, at the beginning and at the end of a phase
}

// cluster starts all nodes, and makes each prefill node and each decode node known to each other.
func (s *study) cluster(shape node.Shape) (*cluster, error) {
	c := &cluster{}
	for i := range s.Prefill + s.Decode {
		in := node.OpenArgs{Backend: s.Backend, Params: s.params, Wheel: s.Wheel, PluginDir: s.PluginDir(s.Backend), Shape: shape, Number: i, Prefills: s.Prefill, Env: map[string]string{}}
		in.Name = fmt.Sprintf("prefill-%d", i)
		if i >= s.Prefill {
			in.Decode, in.Number = true, i-s.Prefill
			in.Name = fmt.Sprintf("decode-%d", in.Number)
		}
		m, err := s.member(in)
		if err != nil {
			c.close()
			return nil, err
		}
		if in.Decode {
			c.decode = append(c.decode, m)
		} else {
			c.prefill = append(c.prefill, m)
		}
		c.versions = m.Versions
	}
	for _, p := range c.prefill {
		for _, d := range c.decode {
			_, err := subprocess.Call[node.None](p.Client, "Load", d.Peer, commandLimit)
			if err == nil {
				_, err = subprocess.Call[node.None](d.Client, "Load", p.Peer, commandLimit)
			}
			if err != nil {
				c.close()
				return nil, fmt.Errorf("%s and %s: %w", p.Name, d.Name, err)
			}
		}
	}
	return c, nil
}

// member starts a process and opens it.
func (s *study) member(in node.OpenArgs) (*member, error) {
	m := &member{remote: in.Decode && s.Peer.Given()}
	var there door.Place
	if m.remote {
		there = s.Peer
	}
	var err error
	if m.Client, m.Peer, err = node.Start(in, there, node.Here); err != nil {
		return nil, err
	}
	return m, nil
}

func (c *cluster) all() []*member { return append(append([]*member{}, c.decode...), c.prefill...) }

// phase runs tasks, by prefill node, and returns all events.
func (c *cluster) phase(tasks [][]node.Task, limit time.Duration) ([]node.Event, error) {
	for _, m := range c.all() { // decode nodes first
		in := node.StartArgs{Limit: limit + m.clocks[0].ahead}
		for i, p := range c.prefill {
			if p == m {
				in.Tasks = tasks[i]
			}
			for _, t := range tasks[i] {
				if c.decode[t.Decode] == m {
					in.Expect += t.N
				}
			}
		}
		if _, err := subprocess.Call[node.None](m.Client, "Start", in, commandLimit); err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	ends := map[*member][]node.Event{}
	var failed error
	stop := func(m *member) {
		got, err := subprocess.Call[node.StopOut](m.Client, "Stop", node.None{}, limit-measure.Now()+commandLimit)
		mu.Lock()
		defer mu.Unlock()
		ends[m] = got.Events
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", m.Name, err))
		}
	}
	for _, m := range c.prefill {
		wg.Go(func() { stop(m) })
	}
	wg.Wait()
	for _, m := range c.decode {
		wg.Go(func() { stop(m) })
	}
	wg.Wait()
	if failed == nil {
		failed = c.compare(1)
	}
	var out []node.Event
	for m, list := range ends {
		for _, e := range list {
			e.At = m.clocks.ours(e.At)
			out = append(out, e)
		}
	}
	return out, failed
}

// compare reads the clocks of all members on the peer: i is 0 at the beginning of a phase, 1 at its end.
func (c *cluster) compare(i int) error {
	for _, m := range c.all() {
		if !m.remote {
			continue
		}
		now, err := compare(func() (time.Duration, error) {
			return subprocess.Call[time.Duration](m.Client, "Clock", node.None{}, commandLimit)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		m.clocks[i] = now
		if i == 0 {
			m.clocks[1] = now
		}
		c.within = max(c.within, now.within)
	}
	return nil
}

func (c *cluster) close() {
	for _, m := range c.all() {
		_, _ = subprocess.Call[node.None](m.Client, "Close", node.None{}, 20*time.Second)
		m.End(5 * time.Second)
	}
	c.prefill, c.decode = nil, nil
}
