// Package transports is the study of transports: tcp against what else there is between the same pair of processes.
package transports

import (
	"context"
	"runtime"
	"slices"

	"gorail/gorail/doctor"
	"gorail/gorail/doctor/machine"
	"gorail/gorail/measure"
	"gorail/gorail/result"
	"gorail/gorail/study/env"
)

// study is one run.
type study struct {
	*env.Env
	fabrics     []string     // GORAIL's, tcp first
	alone, busy *measure.Run // without and with a background load
}

// Run measures, and fills in the result.
func Run(ctx context.Context, e *env.Env, r *result.Result) error {
	s := &study{Env: e, fabrics: []string{"tcp"}}
	r.Checks = append(r.Checks, env.Quiet())
	if err := s.find(r); err != nil {
		return err
	}
	subjects := s.subjects()
	c := e.Config(subjects, s.points())
	if !e.Peer.Given() {
		c.Subjects = append(slices.Clone(subjects), measure.Subject{Title: measure.TCP})
	}
	r.Setup = e.Setup(c)
	s.alone = e.Bench(ctx, c, r)
	if ctx.Err() == nil {
		stop := load()
		c = e.Config(subjects, s.points())
		s.busy = e.Bench(ctx, c, r)
		stop()
	}
	s.fill(r)
	return ctx.Err()
}

// find looks for fabrics beside tcp, and takes what doctor says about them.
func (s *study) find(r *result.Result) error {
	host := machine.Here(s.Version, nil)
	rails, err := env.Rails(host)
	if err != nil {
		return err
	}
	env.TakeChecks(doctor.Run(host), []string{"devices", "links", "rails"}, r)
	for _, d := range rails.Now {
		if d.Host && s.Peer.Given() || slices.Contains(s.fabrics, d.Fabric) {
			continue
		}
		s.fabrics = append(s.fabrics, d.Fabric)
	}
	return nil
}

// title names a fabric in tables.
func title(fabric string) string {
	if fabric == "sm" {
		return "GORAIL shm"
	}
	return "GORAIL " + fabric
}

// subjects are GORAIL's fabrics, then UCX as it is, and held to tcp.
func (s *study) subjects() (out []measure.Subject) {
	for _, f := range s.fabrics {
		out = append(out, measure.Subject{Title: title(f), Backend: "GORAIL", Params: map[string]string{"provider": f}})
	}
	if !s.Has("UCX") {
		return out
	}
	out = append(out, measure.Subject{Title: "UCX", Backend: "UCX"})
	if !s.Peer.Given() { // the variables of the peer's processes are set where they are started
		out = append(out, measure.Subject{Title: "UCX tcp", Backend: "UCX", Env: map[string]string{"UCX_TLS": "tcp"}})
	}
	return out
}

const (
	little = 4 << 10
	medium = 1 << 20
)

func (s *study) points() (out []measure.Point) {
	for _, op := range []string{"WRITE", "READ"} {
		for _, n := range []uint64{little, medium, s.large()} {
			if s.Effort == env.Smallest && (op == "READ" || n == medium) {
				continue
			}
			out = append(out, measure.Point{Op: op, Block: n, Batch: 1, Depth: 1, Threads: 1})
		}
	}
	return out
}

func (s *study) large() uint64 { return env.Pick(s.Env, uint64(64<<20), 16<<20, 4<<20) }

// load keeps all cores busy until the returned function is called: a thread for each core multiplies.
func load() (stop func()) {
	end, n := make(chan struct{}), runtime.NumCPU()
	ended := make(chan struct{}, n)
	old := runtime.GOMAXPROCS(n + 2) // the study's own goroutines go on
	for range n {
		go func() {
			defer func() { ended <- struct{}{} }()
			for x := uint64(1); ; {
				for range 1 << 16 {
					x = x*6364136223846793005 + 1442695040888963407
				}
				select {
				case <-end:
					runtime.KeepAlive(x)
					return
				default:
				}
			}
		}()
	}
	return func() {
		close(end)
		for range n {
			<-ended
		}
		runtime.GOMAXPROCS(old)
	}
}
