package statsfile

import (
	"sync"
	"time"
)

// turnsOf lets one user at a time have a path.
type turnsOf struct {
	mu    sync.Mutex
	paths map[string]*turn
}

type turn struct {
	free  chan struct{} // has a value while nobody has the path
	users int           // who have it or wait for it
}

var turns turnsOf

// take waits for the path's turn until late. The caller of a turn calls release once.
func (t *turnsOf) take(path string, late <-chan time.Time) (release func(), ok bool) {
	t.mu.Lock()
	one := t.paths[path]
	if one == nil {
		if t.paths == nil {
			t.paths = map[string]*turn{}
		}
		one = &turn{free: make(chan struct{}, 1)}
		one.free <- struct{}{}
		t.paths[path] = one
	}
	one.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(t.paths, path)
		}
	}
	taken := func() { one.free <- struct{}{}; leave() }
	select {
	case <-one.free: // also when it is late already: a path that is free is never said to be taken
		return taken, true
	default:
	}
	select {
	case <-one.free:
		return taken, true
	case <-late:
		leave()
		return nil, false
	}
}
