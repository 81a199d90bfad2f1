package mover

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"gorail/internal/subprocess"
	"gorail/test/testenv"
)

const (
	envRun  = "GORAIL_TEST_MOVER" // set: this process is a mover
	service = "Mover"             // net/rpc service name
)

// MaybeRun serves commands and exits if the process was started as a mover. Otherwise it returns at once.
func MaybeRun() {
	if os.Getenv(envRun) == "" {
		return
	}
	if err := subprocess.Serve(service, &Server{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(0)
}

// Start starts a process for a mover. attr: its namespaces; nil: ours. The caller ends it.
func Start(env testenv.Env, attr *syscall.SysProcAttr, setenv ...string) (*subprocess.Client, error) {
	return subprocess.Start(subprocess.Options{Attr: attr, Setenv: append([]string{envRun + "=1", "NIXL_PLUGIN_DIR=" + env.PluginDir, "UCX_HANDLE_ERRORS=none"}, setenv...)}, service)
}

// Server has a mover. Its exported methods are the commands.
type Server struct{ a *mover }

// Begin makes the agent and returns what its peers load.
func (s *Server) Begin(in Begin, out *Load) error {
	ready := make(chan error)
	go func() {
		runtime.LockOSThread()
		a, err := newMover(in)
		if err == nil {
			s.a = a
			*out = Load{Engine: in.Engine, Board: in.Board, Size: in.Size, Pid: os.Getpid()}
			for _, p := range a.pieces {
				out.Pieces = append(out.Pieces, Piece{p.desc(), p.mem()})
			}
			out.Blob, err = a.agent.Metadata()
		}
		ready <- err
		if err == nil {
			a.run()
		}
	}()
	return <-ready
}

// do runs f between two turns of the mover.
func (s *Server) do(f func(a *mover) error) (err error) {
	if s.a == nil {
		return errors.New("no mover has begun")
	}
	done := make(chan struct{})
	s.a.queue <- func() { err = f(s.a); close(done) }
	<-done
	return err
}

// Meet loads a peer, or its next life.
func (s *Server) Meet(in Load, _ *bool) error {
	return s.do(func(a *mover) error { return a.meet(in) })
}

// Run begins the schedule, or ends it.
func (s *Server) Run(on bool, _ *bool) error {
	return s.do(func(a *mover) error { a.running = on; return nil })
}

// Busy returns how much is under way.
func (s *Server) Busy(_ bool, out *int) error {
	return s.do(func(a *mover) error { *out = a.busy(); return nil })
}

// Asleep says how much memory of each GPU was taken away.
type Asleep struct{ Bytes map[int]uint64 }

// Sleep unmaps all memory of GPUs that changes, until Wake. Nothing is under way.
func (s *Server) Sleep(_ bool, out *Asleep) error {
	return s.do(func(a *mover) error {
		out.Bytes = map[int]uint64{}
		for _, p := range a.pieces {
			if p.gpu != nil && !p.steady && !p.away && !p.lost {
				a.take(p, change{unmap: true, hold: never})
				out.Bytes[int(p.desc().Dev)] += a.Size
			}
		}
		return nil
	})
}

// Wake puts back what Sleep has unmapped.
func (s *Server) Wake(_ bool, _ *bool) error {
	return s.do(func(a *mover) error {
		for _, p := range a.pieces {
			if p.away && !p.lost {
				a.putBack(p, 1)
			}
		}
		return nil
	})
}

// Finish destroys the agent.
func (s *Server) Finish(_ bool, _ *bool) error {
	return s.do(func(a *mover) error { return a.close() })
}
