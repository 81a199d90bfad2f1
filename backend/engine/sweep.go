package engine

import "time"

func startSweeper(e *Engine) *sweeper {
	s := &sweeper{e, make(chan struct{}), make(chan struct{})}
	go s.run()
	return s
}

func (s *sweeper) stop() {
	close(s.quit)
	<-s.done
}

func (s *sweeper) run() {
	defer close(s.done)
	o := &s.e.opt
	tick := time.NewTicker(min(250*time.Millisecond, max(time.Millisecond, min(o.XferTimeout, o.CancelTimeout, o.RailTimeout)/4)))
	defer tick.Stop()
	for {
		select {
		case <-s.quit:
			return
		case <-tick.C:
			if s.e.transfers.ActiveLen() > 0 {
				s.e.transfers.Sweep()
			}
			s.e.rails.Warnings()
			s.e.initiators.Watch()
		}
	}
}
