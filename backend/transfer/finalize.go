package transfer

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/host"
	"gorail/backend/provider"
	"gorail/backend/region"
)

// A failed transfer gets its status once none of its operations access memory of either side. Operations that fail on a link
// wait in the core for the fence of that link (core/subxfer.c `sub_drop`). If we end the session, they wait for its
// FENCEs. inUse covers local memory only: releases and deregistrations use it, because they do not wait for the peer.

// gpuLook is the time between two looks whether a GPU has ended its copies for a transfer that has failed.
const gpuLook = 20 * time.Millisecond

// ended handles the end of a transfer that failed, or whose end was waited for. A successful transfer may have been posted
// again since.
func (t *Transfer) ended(code int32) {
	if code != 0 && t.gpuBusy() {
		t.tab.Life.After(gpuLook, func() { t.ended(code) })
		return
	}
	if code != 0 {
		t.finalize(code)
	}
	if t.zombie.Load() {
		t.reap()
	}
	if t.inner != nil {
		select {
		case t.inner <- struct{}{}:
		default:
		}
	}
	t.peer.finishRevokes()
}

// finalize gives a failed transfer its final status and logs the reason.
func (t *Transfer) finalize(code int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.freed() || !t.x.NeedsFinalize() {
		return
	}
	if may, changed := t.mayRestart(); may && t.restage(changed) {
		return
	}
	if t.taken = t.taken || t.reason == nil && t.takenBack(); t.taken && !t.zombie.Load() {
		t.peer.Events.Do(t.tab.Life, func() { t.coverTaken(code) }) // the session's lock may be held for seconds
		return
	}
	t.fail(code)
}

// takenBack reports that the core has ended the transfer before TakeBack or leave: it found memory without keys. Under mu.
func (t *Transfer) takenBack() bool {
	_, wire := t.x.Err()
	return wire == syscall.ESTALE && t.inner == nil && t.lost()
}

// lost reports that memory of the transfer is being deregistered here, or that the peer has taken it back. Under mu.
func (t *Transfer) lost() bool {
	t.peer.mu.RLock()
	defer t.peer.mu.RUnlock()
	return t.lacks()
}

// lacks is lost, under Peer.mu.
func (t *Transfer) lacks() bool {
	return slices.ContainsFunc(t.remotes, lacksKeys) || slices.ContainsFunc(t.Locals(), goneHere)
}

// fail stores the status of a transfer that has failed, at once or when it is known that the peer stays. Under mu.
func (t *Transfer) fail(code int32) {
	if code, deferred := t.deferError(code, false); !deferred {
		t.finish(code)
	}
}

// coverTaken starts a transfer again whose memory was deregistered, here or by the peer, over other registrations of that memory. If there
// are none it has failed. Keys of others may be under way: then it waits for them.
func (t *Transfer) coverTaken(code int32) {
	t.tab.Regions.Settle() // others may have the memory
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.freed() || !t.x.NeedsFinalize() {
		return
	}
	again := false
	if hasNotif, msg, ok := t.unsaid(); ok && t.taken && !t.zombie.Load() {
		_ = t.peer.session.Admit(func() (wants []*region.Region) { // an error: the peer is gone, and so is the transfer
			t.peer.mu.Lock()
			defer t.peer.mu.Unlock()
			if again = t.peer.view.Session != 0 && (t.whole() || t.cover(lacksKeys) || t.willCover() || t.ran != nil && t.anew()); again {
				t.sampled = t.x.Posted() // the time of what has failed does not count
				drain := t.drain
				if _, wants = t.startOrWait(hasNotif, msg); drain.After(time.Now()) {
					t.drain = drain // deregistrations still wait together
				}
			}
			return wants
		})
	}
	if !again {
		t.taken = false
		t.fail(code)
	}
}

// unsaid returns the notification of the last run. !ok: parts of it may have gone out. Under mu.
func (t *Transfer) unsaid() (has bool, msg []byte, ok bool) {
	if t.ran != nil {
		return t.hasNotif, t.ran.Msg, true
	}
	return t.x.Message()
}

// anew reports that the peer has other memory at addresses of the transfer, and we ask for its keys.
func (t *Transfer) anew() bool {
	return slices.ContainsFunc(t.remotes, func(g *region.Region) bool { return g.Anew.Load() })
}

// renewed reports that the peer has found other memory at addresses of the transfer since it was started. Under mu.
func (t *Transfer) renewed() bool { return t.anew() || t.backs() != t.began }

// backs is how often the peer had other memory at addresses of the transfer, and gave us new keys.
func (t *Transfer) backs() (n uint32) {
	for _, g := range t.remotes {
		n += g.Back.Load()
	}
	return n
}

// finish stores the status that finalize found, and logs it. Under mu.
func (t *Transfer) finish(code int32) {
	_, wire := t.x.Err()
	why := t.reason
	switch {
	case why != nil && code == int32(errcode.ErrRemoteDisconnect):
		why = errcode.PeerGone.Errorf("%w", why)
	case why != nil:
	case code == int32(errcode.ErrRemoteDisconnect):
		why = errcode.PeerGone.Errorf("the peer has disconnected")
	case wire == syscall.ENOTSUP:
		why = errcode.NoPath.Errorf("%s", t.LastError())
	case wire == syscall.EREMCHG: // an inner transfer, or one that was released meanwhile
		why = errcode.MemoryUnmapped.Errorf("%s", t.LastError())
	case wire == syscall.ESTALE:
		why = errcode.LocalGone.Errorf("a region of the transfer was deregistered")
	case wire == syscall.EFAULT:
		why = errcode.MemoryAbsent.Errorf("registered memory is not mapped, or may not be accessed: of ours %s, or the peer's %s",
			ranges(t.Locals()), ranges(t.remotes))
	case wire != 0:
		why = errcode.RailError.Errorf("%w", host.Advise(wire))
	default:
		why = t.peer.ended()
	}
	switch {
	case t.inner != nil:
		t.why = why
	case !t.zombie.Load():
		t.tab.Log.Error("transfer failed", "peer", t.peer.Name, "status", errcode.Status(code).String(), "reason", why,
			"bytes", t.bytes, "bytes_left", t.bytes-min(t.bytes, t.x.Done()), errcode.Key, errcode.Of(why))
	}
	t.x.Finalize(code)
	t.logPath()
}

// ranges names regions, three at most.
func ranges(list []*region.Region) string {
	var out []string
	for i, g := range list {
		if i == 3 {
			out = append(out, fmt.Sprintf("%d more", len(list)-i))
			break
		}
		out = append(out, fmt.Sprintf("%#x+%d", g.Addr, g.Len))
	}
	return strings.Join(out, ", ")
}

// restage starts a transfer again over bounce buffers, because its links cannot reach the peer's memory, or, if changed, because other
// memory is mapped there now. The next post tries the links again. Under mu. False: the transfer has failed.
func (t *Transfer) restage(changed bool) bool {
	if t.zombie.Load() {
		return false
	}
	p := t.peer
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.view.Session == 0 || p.view.Leaving {
		return false
	}
	tried := LinksRefused
	switch {
	case t.restart == withoutRails:
		tried = LinksUntried
	case t.restart == slowToMap:
		tried = LinksOpening
	case t.restart == renewed || changed:
	default:
		if t.refused++; t.refused == refusals && !t.staged {
			t.staged, t.again = true, time.Now().Add(againAfter)
		}
	}
	t.restart = noRestart
	t.rings, t.checked = true, 0 // the next post checks the links again
	t.x.DropCachedPost()         // a post leaves at once: the transfer has not ended well
	hasNotif, msg, ok := t.x.Message()
	if !ok {
		return false
	}
	t.x.Start()
	t.stage(hasNotif, msg, tried)
	return true
}

// Ran is what a run has done.
type Ran struct {
	Began time.Time
	Done  bool // all bytes are in place, and the notification has gone out
	Said  bool // the notification, or a part of it, may have gone out
	Msg   []byte
}

// EndRun gives a staged transfer its status. err is the reason of its failure, with its status. If memory was deregistered meanwhile, the
// transfer starts again over other registrations of that memory.
func (t *Transfer) EndRun(ran Ran, err error) {
	t.mu.Lock()
	again := false
	code := errcode.Of(err)
	gone := (code == errcode.LocalGone || code == errcode.RemoteGone) && (t.lost() || !t.revoked.IsZero())
	if gone = gone || code == errcode.SessionLost && t.reason == nil && t.renewed(); gone && !t.zombie.Load() { // Renew has stopped a part of the run
		if again = !ran.Said; ran.Done { // nothing is left that needs the memory
			err, again = nil, false
		}
	}
	if err != nil && !again && !t.zombie.Load() {
		t.tab.Log.Error("transfer failed", "peer", t.peer.Name, "status", errcode.StatusOf(err).String(), "reason", err, "bytes", t.bytes, "staged", true,
			errcode.Key, errcode.Of(err))
	}
	if err == nil {
		t.peer.rates.add(t.bytes, time.Since(ran.Began))
	}
	t.unlogged.Store(false)
	t.run.Store(nil)
	end, deferred := int32(errcode.StatusOf(err)), false
	switch t.x.Hold(); {
	case again:
		t.reason, t.taken, t.ran = err, true, &ran
		t.peer.Events.Do(t.tab.Life, func() { t.coverTaken(end) })
	case err != nil:
		end, deferred = t.deferError(end, true)
	}
	if !deferred && !again {
		t.x.Finalize(end)
	}
	t.mu.Unlock()
	if t.zombie.Load() {
		t.reap()
	}
	t.peer.finishRevokes()
}

// Event handles the end of a transfer that the core reports, with its status. The transfer failed, or a caller waits for its
// end.
func (tab *Table) Event(ev core.Event) {
	if t, err := tab.Get(ev.ID); err == nil { // otherwise released and freed meanwhile
		t.peer.ends.Do(tab.Life, func() { t.ended(ev.Code) })
	}
}

// AwaitGPU ends the transfers of GPU memory in flight, because an endpoint was closed while a GPU may still copy for it. Their status
// waits for the GPU, also without limit: until then memory of both sides is in use. With the session's lock held.
func (p *Peer) AwaitGPU(busy *provider.GPUBusy) {
	list := p.tab.active(func(t *Transfer) bool { return t.peer == p && t.gpu })
	for _, t := range list {
		t.waitFor(busy)
	}
	p.Events.Do(p.tab.Life, func() {
		for _, t := range list {
			t.Abort(errcode.RailError.Errorf("a GPU has not ended a copy of the transfer within a second after it was cancelled: %w", busy))
		}
	})
}

// waitFor adds a closed endpoint. The transfer may wait for another one already.
func (t *Transfer) waitFor(busy *provider.GPUBusy) {
	for {
		old, next := t.busy.Load(), busy
		if old != nil {
			next = &provider.GPUBusy{Err: busy.Err, Over: func() bool { return old.Over() && busy.Over() }}
		}
		if t.busy.CompareAndSwap(old, next) {
			return
		}
	}
}

// gpuBusy reports that a GPU may still copy for an endpoint of the transfer that is closed.
func (t *Transfer) gpuBusy() bool {
	b := t.busy.Load()
	if b == nil {
		return false
	}
	if b.Over() {
		t.busy.CompareAndSwap(b, nil)
		return false
	}
	return true
}
