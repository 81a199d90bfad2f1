package engine

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"gorail/backend/core"
	"gorail/backend/rlimit"
	"gorail/backend/wire"
)

// How long a link that failed again rests before the next try, and how long a probe may take.
const (
	firstPause   = time.Millisecond
	mostPause    = 500 * time.Millisecond // alone
	firstRest    = 100 * time.Millisecond // with others at work
	mostRest     = 2 * time.Second
	mostUnproved = 10 * time.Second // of a link over which nothing ever came: a firewall, say
	probeTime    = time.Second
)

// others says whether another link of the session works. Under r.mu.
func (r *remote) others(l *link) bool {
	for _, o := range r.links {
		if o != l && o.phase == working {
			return true
		}
	}
	return false
}

// elsewhere says whether a link of another rail of ours works. Under r.mu.
func (r *remote) elsewhere(l *link) bool {
	return slices.ContainsFunc(r.links, func(o *link) bool { return o.rail != l.rail && o.phase == working })
}

// twin says whether another link of the same rail works. Under r.mu.
func (r *remote) twin(l *link) bool {
	return slices.ContainsFunc(r.links, func(o *link) bool { return o != l && o.rail == l.rail && o.phase == working })
}

// hope says whether another link may yet work. Under r.mu.
func (r *remote) hope(l *link) bool {
	for _, o := range r.links {
		if o != l && o.up {
			return true
		}
	}
	return false
}

// rehome sees to it that notifications go out on a link that works, if one does. Under r.mu.
func (r *remote) rehome() {
	if r.home != nil && r.home.phase == working {
		return
	}
	for _, l := range r.links {
		if l.phase == working {
			r.home = l
			r.sess.SetHome(l.l)
			return
		}
	}
}

// owns says that the link is one of the session that is ready: timers and events may come for links of an earlier one. Under r.mu.
func (r *remote) owns(l *link) bool { return r.state == ready && slices.Contains(r.links, l) }

// failed deals with a link that reported an error. Alone it is fenced at once, or, when nothing has gone through since the
// last time, after a pause that doubles: a link that is away for good, and notifications that wait for it, would keep a
// core busy. With others at work it is fenced at once, for them to take over, and rests afterwards.
func (r *remote) failed(l *link, epoch uint64, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.owns(l) || !l.up || epoch != uint64(l.epoch) { // or the endpoint that failed is gone already
		return
	}
	l.fault = cause
	s := l.l.Stats()
	others := r.others(l)
	good := s.Completions - s.Errors
	switch {
	case good > l.good+1 || l.epoch == 0: // a probe alone is no news
		l.good, l.pause = good, 0
	case others:
		l.restLonger()
	default:
		l.pause = min(max(2*l.pause, firstPause), mostPause)
	}
	if others || l.pause == 0 || len(r.revokes) > 0 { // their answer waits for it
		r.fence(l, "completion error")
		return
	}
	r.later(l, l.pause, "completion error")
}

// after runs f later, unless the engine is gone by then.
func (e *Engine) after(d time.Duration, f func()) {
	time.AfterFunc(d, func() {
		if e.enter() {
			defer e.leave()
			f()
		}
	})
}

// later fences a link after a pause unless something else has happened to it by then. Under r.mu.
func (r *remote) later(l *link, pause time.Duration, why string) {
	epoch := l.epoch
	r.e.after(pause, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.owns(l) && l.epoch == epoch {
			r.fence(l, why)
		}
	})
}

// fenceBroken fences those that have stopped. Under r.mu.
func (r *remote) fenceBroken(why string) {
	for _, l := range r.links {
		if l.up && l.phase == working && l.l.Stats().State != core.LinkUp {
			r.fence(l, why)
		}
	}
}

// fence gives up our endpoint and asks the peer to end our access through its own and to open another. With the answer
// what was not complete is replayed, by other links where there are. If the peer does not answer, the control channel
// will tell. Under r.mu.
func (r *remote) fence(l *link, why string) {
	if r.state != ready || l.phase == fencing || l.phase == draining || !l.up {
		return
	}
	r.change()
	l.fenced()
	if l.shared() {
		r.drain(l, why)
		return
	}
	l.enter(fencing)
	r.doubt(l, why)
	if r.e.quiesce(l) != nil {
		r.leak()
	}
	r.rehome()
	var addr []byte
	if err := r.e.renew(l); err == nil {
		addr = l.ep.Addr()
	} else if r.e.log.Error("cannot renew an endpoint", "peer", r.name, "rail", l.rail.Name(), "err", err); !r.hope(l) {
		go r.session().giveUp(err)
		return
	}
	r.e.log.Log(context.Background(), l.level(), "fencing a link", "peer", r.name, "rail", l.rail.Name(), "link", l.num, "reason", why)
	if len(r.pairs) > 1 && !r.twin(l) {
		r.out.Suspect(l.rail.Addr(), "a rail over the same address is fenced: "+why)
	}
	r.out.Fence(r.e.ids.Add(1), uint8(l.num), l.epoch, addr)
}

// drain is what takes the fence's place on a shared endpoint: the link stops, and when everything that is posted has
// completed, the transfers of which an operation failed end in an error; the rest goes on. Under r.mu.
func (r *remote) drain(l *link, why string) {
	r.e.log.Info("a rail that cannot be fenced drains", "peer", r.name, "rail", l.rail.Name(), "reason", why)
	l.enter(draining)
	l.epoch++
	l.l.Stop()
	r.rehome()
	epoch := l.epoch
	var look func()
	look = func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case !r.owns(l) || l.epoch != epoch || l.phase != draining:
		case !l.drained():
			r.e.after(time.Millisecond, look)
		default:
			l.l.Settle()
			if err := r.goOn(l, core.Proof{}, nil); err != nil {
				go r.session().giveUp(err)
			}
			r.kick()
		}
	}
	r.e.after(0, look)
}

// Fenced: the target has closed its endpoint; nothing of ours from before can land any more.
func (h initiatorHandler) Fenced(f wire.Fenced) {
	r := h.r
	if !r.e.enter() {
		return
	}
	defer r.e.leave()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != ready || !h.current() || int(f.Rail) >= len(r.links) {
		h.asked.parting.answered(f.ID)
		return
	}
	l := r.links[f.Rail]
	switch {
	case l.epoch != f.Epoch:
	case f.ID == 0: // the target asks for it
		if !l.up {
			r.startLink(l)
		} else if l.phase != fencing {
			r.fence(l, "the peer's endpoint has failed")
		}
	case l.phase == fencing:
		ep, err := l.ep, errors.New("the peer could not open another endpoint")
		if ep == nil {
			err = errors.New("no endpoint could be opened")
		} else if len(f.Addr) > 0 {
			r.mu.Unlock() // on RoCE the kernel may look for the neighbour for a second: posts over other rails go on
			err = r.e.reachFor(ep, f.Addr, []netip.Addr{h.asked.out.Remote()})
			r.mu.Lock()
		}
		if !r.owns(l) || l.phase != fencing || l.epoch != f.Epoch || l.ep != ep {
			return
		}
		l.noteEnds()
		if !l.up {
			r.started(l, err)
			return
		}
		if err := r.goOn(l, core.Proof{Next: f.NextSeq, Have: f.Have}, err); err != nil {
			go h.giveUp(err)
		}
		r.kick()
	}
}

// goOn uses a link again that is quiet now, or lets it rest while others do its work; err says why it can't be used. The
// error given back ends the session. Under r.mu.
func (r *remote) goOn(l *link, proof core.Proof, err error) error {
	r.change()
	if !r.others(l) {
		if err == nil {
			err = l.rebind(proof, !l.proved)
		}
		if err == nil && !l.proved {
			l.enter(probing)
			return nil
		}
		if err == nil {
			l.enter(working)
			r.rehome()
			r.e.log.Info("link renewed", "peer", r.name, "rail", l.rail.Name(), "link", l.num, "epoch", l.epoch)
			return nil
		}
		if !r.hope(l) {
			return err
		}
		r.e.log.Warn("rail rests, and no other works yet", "peer", r.name, "rail", l.rail.Name(), "err", rlimit.Advise(err))
		l.l.Yield(proof) // what has arrived must not be sent again when another comes up first
		l.enter(resting)
		r.later(l, max(l.pause, firstRest), "another try")
		return nil
	}
	l.l.Yield(proof)
	r.e.log.Log(context.Background(), l.level(), "rail rests; others carry its work", "peer", r.name, "rail", l.rail.Name(), "link", l.num, "pause", l.pause, "err", err)
	l.enter(resting)
	epoch := l.epoch
	if err != nil {
		l.restLonger()
		r.later(l, l.pause, "another try")
	} else if l.pause == 0 {
		r.probe(l)
	} else {
		r.e.after(l.pause, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.owns(l) && l.epoch == epoch && l.phase == resting {
				r.probe(l)
			}
		})
	}
	return nil
}
