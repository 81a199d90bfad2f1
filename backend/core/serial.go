package core

import "sync"

// Serial runs functions one after the other, in the order of Do, in its own goroutine. Waiting for one peer thus delays
// no other peer. The zero value is ready; safe for concurrent use.
type Serial struct {
	mu   sync.Mutex
	list []func()
	busy bool // a goroutine runs the list
}

// Do queues f. Once the engine is gone, f is dropped.
func (s *Serial) Do(l *Lifetime, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, f)
	if !s.busy {
		s.busy = true
		go s.run(l)
	}
}

func (s *Serial) run(l *Lifetime) {
	for {
		s.mu.Lock()
		list := s.list
		s.list = nil
		if s.busy = len(list) > 0; !s.busy {
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		for _, f := range list {
			if l.Enter() {
				f()
				l.Leave()
			}
		}
	}
}
