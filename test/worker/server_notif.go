package worker

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"gorail/internal/procstat"
	"gorail/nixlapi"
)

// GenNotif sends Msg, or Count messages with Prefix and their number.
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

// Polling turns polling for notifications in the background on or off.
func (s *Server) Polling(in PollingArgs, out *ErrOut) error {
	g, err := s.agent(in.Agent)
	if err != nil {
		return err
	}
	g.setPolling(in.On, in.Pause)
	return nil
}

// WaitNotifs polls until N notifications have come or the time is up, and returns up to N of them.
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

// Loop posts a request N times, each after the previous has completed. It keeps the agent's thread meanwhile.
func (s *Server) Loop(in LoopArgs, out *LoopResult) error {
	g, x, err := s.xfer(Ref{in.Agent, in.ID})
	if err != nil {
		return err
	}
	all := []*nixlapi.Xfer{x.x}
	for _, id := range slices.Concat(in.Beside, in.Turns) {
		_, more, err := s.xfer(Ref{in.Agent, id})
		if err != nil {
			return err
		}
		all = append(all, more.x)
	}
	if in.Times {
		out.Lat, out.Post = make([]int64, in.N), make([]int64, in.N)
	}
	g.do(func() {
		began, cpu := time.Now(), procstat.CPUTime()
		if len(in.Turns) > 0 {
			x.turns(all, in, out, began.Add(in.Timeout))
		} else if len(in.Beside) > 0 {
			out.Done, x.last = nixlapi.Stream(all, in.N, in.Timeout, cmp.Or(in.Nap, 100*time.Microsecond))
		} else if in.Prefix == "" {
			out.Done, x.last = x.x.Loop(in.N, in.Timeout, out.Lat, out.Post)
		} else {
			out.Done = x.numbered(in, began.Add(in.Timeout))
		}
		out.Wall, out.CPU = time.Since(began), procstat.CPUTime()-cpu
	})
	out.Status = x.last
	if in.Times {
		out.Lat, out.Post = out.Lat[:out.Done], out.Post[:out.Done]
	}
	return nil
}

// turns posts one request after the other, from the first again after the last.
func (x *xfer) turns(all []*nixlapi.Xfer, in LoopArgs, out *LoopResult, end time.Time) {
	for i := range in.N {
		began := time.Now()
		x.last = all[i%len(all)].Post()
		posted := time.Now()
		for x.last == nixlapi.InProgress && time.Now().Before(end) {
			if in.Nap > 0 {
				nap(in.Nap)
			}
			x.last = all[i%len(all)].Status()
		}
		if x.last != nixlapi.Success {
			return
		}
		out.Done++
		if in.Times {
			out.Lat[i], out.Post[i] = int64(time.Since(began)), int64(posted.Sub(began))
		}
	}
}

// numbered posts each time with its own notification.
func (x *xfer) numbered(in LoopArgs, end time.Time) int {
	for i := range in.N {
		msg := seqMsg(in.Prefix, i)
		x.last = x.x.PostWith(&msg)
		for x.last == nixlapi.InProgress && time.Now().Before(end) {
			x.last = x.x.Status()
		}
		if x.last != nixlapi.Success {
			return i
		}
	}
	return in.N
}
