package worker

import (
	"fmt"
	"time"

	"gorail/nixlapi"
)

// Visit loads a peer's metadata, sends it notifications and forgets it at once, N times. Messages are Prefix and their
// number.
func (s *Server) Visit(in VisitArgs, out *VisitOut) error {
	g, err := s.agent(in.Agent)
	if err != nil {
		return err
	}
	g.do(func() {
		end := time.Now().Add(in.Timeout)
		for range in.N {
			if err := g.visit(in, &out.Accepted, end); err != nil {
				out.Err = nixlError(err)
				return
			}
		}
	})
	return nil
}

// visit is one round. accepted counts the notifications that the agent accepted.
func (g *agent) visit(in VisitArgs, accepted *int, end time.Time) error {
	peer, err := g.a.Load(in.Blob)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	next := func() []byte { return seqMsg(in.Prefix, *accepted) }
	if in.Transfer {
		msg := next()
		x, err := g.a.CreateXferBetween(in.Op, in.Local.Mem, in.Local.Descs(), in.Remote.Mem, in.Remote.Descs(), peer, nixlapi.XferOpts{Backend: g.b, Notif: &msg})
		if err != nil {
			return fmt.Errorf("request: %w", err)
		}
		st := x.Post()
		for st == nixlapi.InProgress && time.Now().Before(end) {
			st = x.Status()
		}
		if st != nixlapi.Success {
			return fmt.Errorf("transfer %d: %v", *accepted, st)
		}
		*accepted++
		if err := x.Release(); err != nil {
			return err
		}
	}
	for range in.Alone {
		if err := g.a.GenNotif(peer, next(), g.b); err != nil {
			return fmt.Errorf("notification %d: %w", *accepted, err)
		}
		*accepted++
	}
	return g.a.Invalidate(peer)
}
