package worker

import (
	"fmt"
	"time"
)

// GenNotif sends Msg, or Count messages that say Prefix and their number.
func (s *Server) GenNotif(in NotifArgs, out *ErrOut) error {
	return s.onAgent(in.Agent, func(g *agent) {
		for i := range max(in.Count, 1) {
			msg := in.Msg
			if in.Count > 0 {
				msg = seqMsg(in.Prefix, i)
			}
			if err := g.a.GenNotif(in.Peer, msg, g.b); err != nil {
				out.Err = nixlError(err)
				return
			}
		}
	})
}

func seqMsg(prefix string, i int) []byte { return fmt.Appendf(nil, "%s%d", prefix, i) }

// Polling switches polling for notifications in the background on (ID 1) or off.
func (s *Server) Polling(in Ref, out *ErrOut) error {
	g, err := s.agent(in.Agent)
	if err != nil {
		return err
	}
	g.setPolling(in.ID == 1)
	return nil
}

// WaitNotifs polls until N notifications are there or time is up, and returns
// up to N of them.
func (s *Server) WaitNotifs(in WaitArgs, out *NotifOut) error {
	g, err := s.agent(in.Agent)
	if err != nil {
		return err
	}
	g.until(in.Timeout, func() bool {
		if g.inboxLen() < in.N {
			g.poll()
		}
		return g.inboxLen() >= in.N
	})
	out.Notifs = g.take(in.N)
	g.mu.Lock()
	out.Err = g.pollErr
	g.mu.Unlock()
	return nil
}

// Drain keeps the agent's thread busy polling until N notifications came: the
// target of a benchmark.
func (s *Server) Drain(in WaitArgs, out *DrainResult) error {
	return s.onAgent(in.Agent, func(g *agent) {
		began, cpu := time.Now(), cpuTime()
		for end := began.Add(in.Timeout); out.Count < in.N && time.Now().Before(end); {
			for range 64 {
				g.poll()
				if out.Count += len(g.take(1 << 30)); out.Count >= in.N {
					break
				}
			}
		}
		out.Wall, out.CPU = time.Since(began), cpuTime()-cpu
	})
}

// Loop posts a request N times, each after the last has completed, and keeps
// the agent's thread meanwhile.
func (s *Server) Loop(in LoopArgs, out *LoopResult) error {
	g, x, err := s.xfer(Ref{in.Agent, in.ID})
	if err != nil {
		return err
	}
	if in.Times {
		out.Lat, out.Post = make([]int64, 0, in.N), make([]int64, 0, in.N)
	}
	g.do(func() {
		began, cpu := time.Now(), cpuTime()
		x.loop(in, out, began.Add(in.Timeout))
		out.Wall, out.CPU = time.Since(began), cpuTime()-cpu
	})
	return nil
}

func (x *xfer) loop(in LoopArgs, out *LoopResult, end time.Time) {
	for i := range in.N {
		t0 := time.Now()
		if in.Prefix == "" {
			x.last = x.x.Post()
		} else {
			msg := seqMsg(in.Prefix, i)
			x.last = x.x.PostWith(&msg)
		}
		t1 := time.Now()
		for n := 1; !x.last.Failed() && x.last != 0; n++ {
			x.last = x.x.Status()
			if n%256 == 0 && time.Now().After(end) {
				break
			}
		}
		if out.Status = x.last; out.Status != 0 {
			return
		}
		if in.Times {
			out.Lat = append(out.Lat, int64(time.Since(t0)))
			out.Post = append(out.Post, int64(t1.Sub(t0)))
		}
		out.Done++
	}
}
