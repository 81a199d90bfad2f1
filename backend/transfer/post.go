package transfer

import (
	"bytes"
	"slices"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/region"
)

// Post starts the transfer. It starts at once if the peer is connected and its keys are known, otherwise later. The result is 0
// or 1 (in progress). Implements postXfer.
func (tab *Table) Post(handle uint64, hasNotif bool, msg []byte) (int32, error) {
	t, err := tab.Get(handle)
	if err != nil {
		return 0, errcode.UnknownTransfer.Errorf("post: %w", err)
	}
	return t.Post(hasNotif, msg)
}

// Post implements Table.Post.
func (t *Transfer) Post(hasNotif bool, msg []byte) (int32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.freed() {
		return 0, errcode.UnknownTransfer.Errorf("post: the transfer was released")
	}
	if !t.x.DropCachedPost() || t.x.Running() || t.x.NeedsFinalize() {
		return 0, errcode.StillPosted.Errorf("post: the transfer is still in flight")
	}
	t.logPath()
	if len(msg) > core.MaxNotif {
		return 0, errcode.NotifTooLong.Errorf("notification of %d bytes: the limit is %d", len(msg), core.MaxNotif)
	}
	gone := t.outdated()
	if gone {
		t.tab.Regions.Settle() // others may have the memory
	}
	p := t.peer
	p.mu.RLock()
	if p.view.Session != 0 && !gone && (t.checked == p.epoch || t.ready()) {
		defer p.mu.RUnlock()
		t.begin(hasNotif)
		t.start(hasNotif, msg)
		if !t.rings { // otherwise it is staged
			t.x.CachePost()
		}
		return t.result()
	}
	no := t.denied()
	p.mu.RUnlock()
	if no != nil {
		return 0, t.deny(no)
	}
	return t.enqueue(hasNotif, msg)
}

// result is the return value of a post: in progress, or success. A failed transfer is in progress until finalize. A READ is in
// progress while Regions.Flushes is set.
func (t *Transfer) result() (int32, error) {
	if t.x.Running() || t.x.NeedsFinalize() || t.op == Read && t.tab.Regions.Flushes.Load() {
		return int32(errcode.InProg), nil
	}
	return int32(errcode.Success), nil
}

func (t *Transfer) begin(hasNotif bool) {
	t.sample()
	t.hasNotif, t.restart = hasNotif, noRestart
	t.reason, t.kept, t.taken, t.ran = nil, false, false, nil
	t.aborted, t.revoked, t.drain = time.Time{}, time.Time{}, time.Time{}
	t.leaked.Store(false)
	t.busy.Store(nil) // the status before has waited for it
	t.x.Start()
	t.tab.records.Begin(t.rec)
}

// start hands the transfer to the core. Under t.mu or with t queued, and under Peer.mu (read lock is enough). The session must
// be ready.
func (t *Transfer) start(hasNotif bool, msg []byte) {
	t.rec.Post()
	t.session, t.began = t.peer.view.Session, t.backs()
	if t.rings {
		tried := LinksUntried
		if t.refused == refusals {
			tried = LinksRefused
		}
		t.stage(hasNotif, msg, tried)
		return
	}
	if t.tab.debug {
		t.unlogged.Store(true)
	}
	t.tab.Core.Post(t.x, t.links, t.near, hasNotif, msg)
}

// stage starts a staged run. Under t.mu or with t queued, and under Peer.mu (read lock is enough). x must run and the session
// must be ready.
func (t *Transfer) stage(hasNotif bool, msg []byte, tried Tried) {
	run := &Run{Transfer: t, HasNotif: hasNotif, Msg: bytes.Clone(msg), Tried: tried, stop: make(chan struct{}), inner: map[*Transfer]struct{}{}}
	main := t.peer.view.Stage(run)
	t.run.Store(run)
	t.sampled = t.x.Posted() // the core's times belong to another run
	t.tab.Life.Go(main)
}

// enqueue keeps the post until the peer is ready, or returns why the peer cannot take it. Under t.mu.
func (t *Transfer) enqueue(hasNotif bool, msg []byte) (int32, error) {
	p, started := t.peer, false
	err := p.session.Admit(func() (wants []*region.Region) {
		p.mu.Lock()
		defer p.mu.Unlock()
		t.cover(goneThere)
		started, wants = t.startOrWait(hasNotif, msg)
		return wants
	})
	switch {
	case err != nil:
		return 0, err
	case started:
		return t.result()
	}
	return int32(errcode.InProg), nil
}

// startOrWait starts the transfer if the peer is ready. Otherwise it returns regions whose keys may help. With the session's lock held,
// under t.mu and Peer.mu.
func (t *Transfer) startOrWait(hasNotif bool, msg []byte) (started bool, wants []*region.Region) {
	p := t.peer
	t.begin(hasNotif)
	t.posted = time.Now()
	if p.view.Session != 0 && t.ready() { // the peer became ready meanwhile
		t.start(hasNotif, msg)
		return true, nil
	}
	t.msg = bytes.Clone(msg)
	p.waiting = append(p.waiting, t)
	if p.view.Session != 0 {
		wants = t.mayCover() // with those of the transfer, which Kick returns, so that all answers are there at once
		for _, list := range [][]*region.Region{t.remotes, wants} {
			for _, g := range list {
				g.Unknown, g.Again = false, g.Asked // the region may have been registered again, also since the peer has answered
			}
		}
	}
	return false, wants
}

// Kick starts waiting transfers that have become ready, and ends those that cannot become ready. It returns regions whose keys the others
// want. With the session's lock held.
func (p *Peer) Kick() (wants []*region.Region) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kick()
}

// kick implements Kick. Under mu.
func (p *Peer) kick() (wants []*region.Region) {
	if p.view.Session == 0 {
		return nil
	}
	seen := map[*region.Region]bool{}
	want := func(list []*region.Region) { // many transfers may wait for the same keys
		for _, g := range list {
			if !g.Keyed && !g.Asked && !seen[g] {
				seen[g], wants = true, append(wants, g)
			}
		}
	}
	keep := p.waiting[:0]
	for _, t := range p.waiting {
		if t.ready() || t.unreachable() != nil && t.cover(goneThere) && t.ready() {
			t.start(t.hasNotif, t.msg)
			t.msg = nil
			continue
		}
		if g := t.unreachable(); g != nil {
			others := slices.DeleteFunc(t.mayCover(), goneThere)
			if len(others) == 0 {
				t.giveUp(g)
				continue
			}
			want(others)
		}
		keep = append(keep, t)
		want(t.remotes)
	}
	clear(p.waiting[len(keep):])
	p.waiting = keep
	return wants
}
