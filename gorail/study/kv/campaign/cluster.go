package campaign

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"gorail/gorail/door"
	"gorail/gorail/measure"
	"gorail/gorail/study/kv/hosts"
	"gorail/gorail/study/kv/node"
	"gorail/internal/subprocess"
)

// member is one process.
type member struct {
	*subprocess.Client
	node.Peer
	gone   chan struct{} // closed when the study has killed it
	remote bool
}

// start starts all nodes.
func (c *campaign) start() error {
	for i := range c.Prefill + c.Decode {
		s := &seat{kind: "prefill", number: i, up: make(chan struct{})}
		if i >= c.Prefill {
			s.kind, s.number = "decode", i-c.Prefill
			c.decode = append(c.decode, s)
		} else {
			c.prefill = append(c.prefill, s)
		}
		s.name = fmt.Sprintf("%s-%d", s.kind, s.number)
		if c.net != nil {
			s.host = c.net.Hosts[i]
		}
	}
	if c.net != nil {
		c.spare = c.net.Hosts[c.Prefill+c.Decode]
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for _, s := range c.seats() {
		if err := c.otherPorts(s); err != nil {
			return err
		}
		c.lives++
		life := c.lives
		wg.Go(func() {
			if err := c.enter(s, life); err != nil {
				mu.Lock()
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return failed
}

// Ports are below those that kernels give to connections. A campaign has a block of them, which its number as a process chooses.
const (
	firstPort    = 10000
	portsOfBlock = 128
	blocks       = 150
)

// otherPorts gives a seat ports that no node had lately and that nothing listens on.
func (c *campaign) otherPorts(s *seat) error {
	for k := range s.ports {
		var err error
		for range portsOfBlock {
			s.ports[k] = firstPort + os.Getpid()%blocks*portsOfBlock + c.ports%portsOfBlock
			c.ports++
			var l net.Listener
			if l, err = net.Listen("tcp", fmt.Sprint(":", s.ports[k])); err == nil {
				err = l.Close()
				break
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *campaign) seats() []*seat { return append(append([]*seat{}, c.prefill...), c.decode...) }

// renew starts another engine in a seat: another name and other ports, as vLLM's restart has another engine id.
func (c *campaign) renew(s *seat) error {
	s.name, _, _ = strings.Cut(s.name, "+")
	s.name = fmt.Sprintf("%s+%d", s.name, c.lives)
	if err := c.otherPorts(s); err != nil {
		return err
	}
	c.lives++
	return c.enter(s, c.lives)
}

// enter starts the node of a seat.
func (c *campaign) enter(s *seat, life int) error {
	in := node.OpenArgs{Name: s.name, Backend: c.backend, Params: map[string]string{}, Env: map[string]string{}, Wheel: c.Wheel, PluginDir: c.PluginDir(c.backend),
		Shape: c.shape, Decode: s.kind == "decode", Number: s.number, Prefills: c.Prefill, Life: life}
	m := &member{gone: make(chan struct{}), remote: in.Decode && c.Peer.Given()}
	var there door.Place
	exec := node.Here
	if m.remote {
		there = c.Peer
	} else {
		in.Clock = c.clock
		c.settings(s, in)
	}
	if s.host != nil {
		exec = func(o subprocess.Options) (out *subprocess.Client, err error) {
			err = s.host.In(func() (err error) { out, err = node.Here(o); return err })
			return out, err
		}
	}
	var err error
	if m.Client, m.Peer, err = node.Start(in, there, exec); err != nil {
		return err
	}
	if _, err := subprocess.Call[node.None](m.Client, "Serve", node.None{}, time.Minute); err != nil {
		m.End(time.Second)
		return err
	}
	c.versions = m.Versions
	s.take(m)
	return nil
}

// settings are a node's parameters and variables: those of the user, ports that stay, a log on a disk of its own, and a socket to look at it.
func (c *campaign) settings(s *seat, in node.OpenArgs) {
	if c.backend != "GORAIL" {
		if s.host != nil { // as other hosts have it
			in.Env["UCX_TLS"] = "tcp"
			in.Env["UCX_LOG_FILE"], in.Env["UCX_LOG_LEVEL"] = filepath.Join(s.host.Logs(), "log"), "info"
		}
		return
	}
	in.Params["stats_socket"] = filepath.Join(c.dir, "s")
	in.Params["control_port"], in.Params["data_port"] = fmt.Sprint(s.ports[0]), fmt.Sprint(s.ports[1])
	if s.host != nil {
		in.Params["log"], in.Params["log_file"] = "info", filepath.Join(s.host.Logs(), "log")
	}
	for k, v := range c.Params {
		in.Params[k] = v
	}
}

// now is the node of a seat; nil while there is none.
func (s *seat) now() *member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

// wait waits for the node of a seat; nil: ctx has ended.
func (s *seat) wait(ctx context.Context) *member {
	for {
		s.mu.Lock()
		m, up := s.node, s.up
		s.mu.Unlock()
		if m != nil {
			return m
		}
		select {
		case <-up:
		case <-ctx.Done():
			return nil
		}
	}
}

// take gives a seat its node.
func (s *seat) take(m *member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since, s.node = measure.Now(), m
	close(s.up)
}

// kill kills the node of a seat, if there is one.
func (c *campaign) kill(s *seat) {
	s.mu.Lock()
	m := s.node
	if m != nil {
		s.killed, s.node, s.up = true, nil, make(chan struct{})
	}
	s.mu.Unlock()
	if m == nil {
		return
	}
	if m.remote { // it kills itself
		_, _ = subprocess.Call[node.None](m.Client, "Die", node.None{}, 10*time.Second)
	}
	m.Kill()
	close(m.gone)
}

// close ends all nodes. One that hangs is killed.
func (c *campaign) close() {
	var wg sync.WaitGroup
	for _, s := range c.seats() {
		if m := s.now(); m != nil {
			wg.Go(func() { m.End(2 * time.Second) })
		}
	}
	wg.Wait()
}

// hostsOf is how many hosts a campaign needs: one stands by.
func hostsOf(o Options, dir string) (*hosts.Net, error) { return hosts.New(o.Prefill+o.Decode+1, dir) }
