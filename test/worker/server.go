package worker

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"gorail/nixlapi"
)

// Server holds a worker's objects. Its exported methods are the commands.
type Server struct {
	wheel string

	mu     sync.Mutex // guards the fields below
	lib    *nixlapi.Lib
	next   int
	agents map[int]*agent
	bufs   map[int]memory
	gpu    GPU // nil: not used yet
}

func newServer(wheel string) *Server {
	return &Server{wheel: wheel, agents: map[int]*agent{}, bufs: map[int]memory{}}
}

func callOf(err error) string {
	var e *nixlapi.Error
	if errors.As(err, &e) {
		return e.Call
	}
	return err.Error()
}

func (s *Server) id() int { s.next++; return s.next }

func (s *Server) agent(id int) (*agent, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g, ok := s.agents[id]; ok {
		return g, nil
	}
	return nil, fmt.Errorf("no agent %d", id)
}

func (s *Server) xfer(r Ref) (*agent, *xfer, error) {
	g, err := s.agent(r.Agent)
	if err != nil {
		return nil, nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if x, ok := g.xfers[r.ID]; ok {
		return g, x, nil
	}
	return nil, nil, fmt.Errorf("no request %d", r.ID)
}

// Agent creates an agent and its backend.
func (s *Server) Agent(in AgentArgs, out *AgentOut) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lib == nil {
		lib, err := nixlapi.Open(s.wheel)
		if err != nil {
			return err
		}
		s.lib = lib
	}
	g := newAgentLoop(in.Cfg.Concurrent)
	var err error
	g.do(func() {
		g.a, err = s.lib.NewAgent(in.Cfg.Name, nixlapi.Config{
			ProgThread: in.Cfg.ProgThread, ProgDelayUs: uint64(in.Cfg.ProgDelay.Microseconds()), Sync: in.Cfg.Sync,
		})
		if err != nil || in.Cfg.Backend == "" {
			return
		}
		if g.b, err = g.a.CreateBackend(in.Cfg.Backend, in.Cfg.Params); err != nil {
			_ = g.a.Close()
		}
	})
	if err != nil {
		out.Err = nixlError(err)
		return nil
	}
	out.ID = s.id()
	s.agents[out.ID] = g
	g.do(func() { out.Thread = unix.Gettid() })
	return nil
}

// CloseAgent releases the agent's requests and destroys it.
func (s *Server) CloseAgent(in Ref, out *ErrOut) error {
	g, err := s.agent(in.Agent)
	if err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.agents, in.Agent)
	s.mu.Unlock()
	out.Err = nixlError(g.close())
	return nil
}

// Shutdown destroys every agent.
func (s *Server) Shutdown(in Ref, out *ErrOut) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, g := range s.agents {
		if err := g.close(); err != nil {
			out.Err = nixlError(err)
		}
		delete(s.agents, id)
	}
	return nil
}

// Inherited executes a program and tells which descriptors it has of this process, besides the standard ones. A unix
// socket is marked as one.
func (s *Server) Inherited(in Ref, out *[]string) error {
	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return err
	}
	text, err := exec.Command("/bin/ls", "-l", "/proc/self/fd/").Output()
	for _, line := range strings.Split(string(text), "\n") {
		w := strings.Fields(line)
		if len(w) < 3 || w[len(w)-2] != "->" {
			continue
		}
		to, number := w[len(w)-1], w[len(w)-3]
		if strings.HasSuffix(to, "/fd") || slices.Contains([]string{"0", "1", "2"}, number) {
			continue
		}
		if inode := strings.Trim(to, "socket:[]"); to != inode && strings.Contains(string(sockets), " "+inode+"\n") {
			to += " unix"
		}
		*out = append(*out, number+" -> "+to)
	}
	return err
}

// SettledStats is ProcessStats after a collection.
func (s *Server) SettledStats(in Ref, out *Stats) error {
	debug.FreeOSMemory()
	return s.ProcessStats(in, out)
}

// ProcessStats reads the state of the process.
func (s *Server) ProcessStats(in Ref, out *Stats) error {
	st, err := selfStats()
	*out = st
	return err
}
