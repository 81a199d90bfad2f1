package engine

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// Close ends the engine: peers are told goodbye, every transfer ends, nothing of ours is left. It waits for no peer.
func (e *Engine) Close() error {
	if e.closed.Swap(true) {
		return nil
	}
	e.shutdown()
	return nil
}

// shutdown undoes start, as far as it got.
func (e *Engine) shutdown() {
	if e.watcher != nil {
		e.watcher.stop()
	}
	if e.sweeper != nil {
		e.sweeper.stop()
	}
	if e.node != nil {
		e.node.Leaving()
	}
	e.farewell()     // first: a peer that hears of the end may free what we have mapped of it
	e.closeTargets() // before they hear goodbye: what they have posted can't land behind their transfers' status
	if e.node != nil {
		e.node.Close()
	}
	e.closeRemotes() // that were made meanwhile
	e.closeTargets()
	e.late.Wait()
	quiet := e.settleDown()
	if e.ev != nil {
		e.ev.Close()
	}
	if e.core == nil {
		return
	}
	e.core.Stop()
	e.writeStats()
	if !quiet {
		e.log.Error("a registration or a call from the control channel did not return: what it may use is left behind")
		return
	}
	e.core.DropRails()
	if e.regions != nil {
		e.regions.Close()
	}
	e.railSet.Close()
	e.stage.close()
	e.core.Free()
	e.core = nil
}

func (e *Engine) closeRemotes() {
	e.mu.Lock()
	remotes := e.remotes
	e.remotes = map[string]*remote{}
	e.mu.Unlock()
	var all sync.WaitGroup
	for _, r := range remotes {
		all.Go(func() { r.close(errors.New("engine closed"), nil) })
	}
	all.Wait()
}

// farewellTime is how long the end of the engine waits for peers to confirm notifications: of the application's last words before it
// destroys the engine. A peer that answers at all does so in a round trip.
const farewellTime = 500 * time.Millisecond

// farewell ends all sessions of ours side by side, once the peers have the notifications that were accepted.
func (e *Engine) farewell() {
	for _, name := range e.names() {
		if r, d := e.unname(name, "engine closed"); r != nil {
			e.late.Go(func() { r.disconnect(d) }) // its lock may be taken for as long as an endpoint of a stopped peer closes
		}
	}
	hurry := time.AfterFunc(farewellTime, func() { close(e.hurry) })
	for _, d := range e.leaving() {
		<-d.ended
	}
	if hurry.Stop() {
		close(e.hurry)
	}
}

// closeTargets ends the access of all peers.
func (e *Engine) closeTargets() {
	e.mu.Lock()
	targets := slices.Collect(maps.Values(e.targets))
	e.mu.Unlock()
	var all sync.WaitGroup
	for _, t := range targets {
		all.Go(t.close)
	}
	all.Wait()
}

func (e *Engine) names() []string {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return slices.Collect(maps.Keys(e.remotes))
}

// leaving are the departures of sessions that no name leads to any more.
func (e *Engine) leaving() []*departure {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return slices.Collect(maps.Values(e.leavers))
}

// sessions are those in which we are the initiator.
func (e *Engine) sessions() []*remote {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return slices.AppendSeq(slices.Collect(maps.Values(e.remotes)), maps.Keys(e.leavers))
}

// enter notes that a registration or a call from the control channel is going on; false: the engine is gone.
func (e *Engine) enter() bool {
	e.life.RLock()
	if e.dead {
		e.life.RUnlock()
		return false
	}
	return true
}

func (e *Engine) leave() { e.life.RUnlock() }

var errClosing = errors.New("the engine is closing")

// settleDown waits, bounded, until no such call is going on, and lets none begin.
func (e *Engine) settleDown() bool {
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Microsecond) {
		if e.life.TryLock() {
			e.dead = true
			e.life.Unlock()
			return true
		}
	}
	return false
}
