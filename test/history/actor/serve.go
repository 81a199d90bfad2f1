package actor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"gorail/internal/subprocess"
)

const (
	envRun  = "GORAIL_TEST_ACTOR" // set: this process is an actor
	service = "Actor"             // net/rpc service name
)

// MaybeRun serves commands and exits if the process was started as an actor. Otherwise it returns at once.
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

// Server has an actor. Its exported methods are the commands.
type Server struct{ a *actor }

// Begin makes the agent and returns what its peers load.
func (s *Server) Begin(in Begin, out *Load) error {
	ready := make(chan error)
	go func() {
		runtime.LockOSThread()
		a, err := newActor(in)
		if err == nil {
			s.a = a
			out.Engine, out.Arena, out.Base = in.Engine, in.Arena, desc(a.mem.b).Addr
			out.Blob, err = a.agent.Metadata()
		}
		ready <- err
		if err == nil {
			a.run()
		}
	}()
	return <-ready
}

// do runs f between two turns of the actor.
func (s *Server) do(f func(a *actor) error) (err error) {
	if s.a == nil {
		return errors.New("no actor has begun")
	}
	done := make(chan struct{})
	s.a.queue <- func() { err = f(s.a); close(done) }
	<-done
	return err
}

// Meet loads a peer, or its next life.
func (s *Server) Meet(in Load, _ *bool) error {
	return s.do(func(a *actor) error { return a.meet(in) })
}

// Run begins the schedule, or ends it.
func (s *Server) Run(on bool, _ *bool) error {
	return s.do(func(a *actor) error { a.running = on; return nil })
}

// TakeBack takes back the region of an initiator's life that has ended, and registers it again.
func (s *Server) TakeBack(of TakeBack, _ *bool) error {
	return s.do(func(a *actor) error {
		r := a.regions[a.regionOf(of.Engine)]
		a.putBack(r)
		a.take(r, 0)
		a.until(time.Now().Add(of.Hold))
		a.putBack(r)
		return nil
	})
}

// until polls until a time.
func (a *actor) until(end time.Time) {
	for now := time.Now(); now.Before(end); now = time.Now() {
		_ = a.hear()
		a.poll(now)
		time.Sleep(time.Millisecond)
	}
}

// Busy returns how much is under way.
func (s *Server) Busy(_ bool, out *int) error {
	return s.do(func(a *actor) error { *out = a.busy(); return nil })
}

// Finish looks at all memory for the last time and destroys the agent.
func (s *Server) Finish(_ bool, _ *bool) error {
	return s.do(func(a *actor) error { a.verifyAll(); return a.close() })
}
