package main

import (
	"fmt"
	"os"

	"gorail/test/testenv"
	"gorail/test/worker"
)

// scope is the testing.TB of one pair of processes: a failure ends only it.
type scope struct{ cleanup []func() }

type failure struct{ error }

var _ testenv.TB = (*scope)(nil)

func (s *scope) Helper()                           {}
func (s *scope) Cleanup(f func())                  { s.cleanup = append(s.cleanup, f) }
func (s *scope) Logf(format string, args ...any)   { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (s *scope) Skipf(format string, args ...any)  { s.Fatalf(format, args...) }
func (s *scope) Fatalf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// within runs f and then what it left to clean up.
func within(f func(t *scope)) (err error) {
	s := &scope{}
	defer func() {
		for i := len(s.cleanup) - 1; i >= 0; i-- {
			s.cleanup[i]()
		}
		switch r := recover().(type) {
		case nil:
		case failure:
			err = r.error
		default:
			panic(r)
		}
	}()
	f(s)
	return nil
}

// setting is what one pair of processes is made with.
type setting struct {
	backend  string
	progress bool
}

// each runs f once per repeat, progress setting and backend, with the backends
// next to each other, so that the machine's moods meet all of them.
func (c *config) each(f func(s setting, t *scope)) {
	for i := range c.repeat {
		for _, pt := range c.progress {
			for _, b := range c.backends {
				s := setting{b, pt == "1"}
				fmt.Fprintf(os.Stderr, "repeat %d of %d, %s, progress thread %s\n", i+1, c.repeat, c.title(b), pt)
				if err := within(func(t *scope) { f(s, t) }); err != nil {
					fmt.Fprintf(os.Stderr, "%s: %v\n", c.title(b), err)
				}
			}
		}
	}
}

func (c *config) worker(t *scope, s setting) *worker.Worker {
	o := worker.Options{Env: c.envOf(s.backend)}
	if s.backend == "UCX" && c.tls != "" {
		o.Setenv = []string{"UCX_TLS=" + c.tls}
	}
	return worker.Start(t, o)
}

func (c *config) agent(w *worker.Worker, s setting, name string) *worker.Agent {
	return w.Agent(worker.AgentConfig{Name: name, Backend: s.backend, ProgThread: s.progress})
}

// pair makes two processes with size registered bytes each.
func (c *config) pair(t *scope, s setting, size uint64) (ini, tgt *worker.Agent, a, b *worker.Buf) {
	ini, tgt = c.agent(c.worker(t, s), s, "initiator"), c.agent(c.worker(t, s), s, "target")
	a, b = ini.Buffer(size, 1), tgt.Buffer(size, 2)
	ini.Learn(tgt)
	return ini, tgt, a, b
}
