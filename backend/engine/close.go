package engine

import "time"

// Close ends the engine: peers are told goodbye, every transfer ends, nothing of ours is left. It waits for no peer.
func (e *Engine) Close() error {
	if e.life.Close() {
		e.shutdown()
	}
	return nil
}

// quiesceTime is how long the end of an engine waits for calls from outside that are going on.
const quiesceTime = 2 * time.Second

// shutdown undoes start, as far as it got.
func (e *Engine) shutdown() {
	if e.watcher != nil {
		e.watcher.stop()
	}
	if e.sweeper != nil {
		e.sweeper.stop()
	}
	e.endSessions()
	e.life.Wait()
	quiet := e.life.Quiesce(quiesceTime)
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
	e.rails.Close()
	e.staging.Close()
	e.core.Free()
	e.core = nil
}

// endSessions ends the sessions of both sides, and the control channel.
func (e *Engine) endSessions() {
	if e.node == nil {
		return
	}
	e.node.Leaving()
	if e.initiators != nil {
		e.initiators.Farewell() // first: a peer that hears of the end may free what we have mapped of it
	}
	e.targets.Close() // before they hear goodbye: what they have posted can't land behind their transfers' status
	e.node.Close()
	if e.initiators != nil {
		e.initiators.Close() // those that were made meanwhile
	}
	e.targets.Close()
}
