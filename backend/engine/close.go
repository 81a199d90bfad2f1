package engine

import "time"

// Close ends the engine. It says goodbye to the peers, ends every transfer and frees all resources. It waits for no
// peer.
func (e *Engine) Close() error {
	if e.life.Close() {
		e.shutdown()
	}
	return nil
}

// quiesceTime limits how long shutdown waits for running calls from outside.
const quiesceTime = 2 * time.Second

// shutdown undoes start, as far as start got.
func (e *Engine) shutdown() {
	if e.socket != nil {
		e.socket.Close()
	}
	if e.endStats != nil {
		e.endStats()
	}
	if e.watcher != nil {
		e.watcher.stop()
	}
	if e.sweeper != nil {
		e.sweeper.stop()
	}
	if e.regions != nil {
		e.regions.Ending()
	}
	e.endSessions()
	e.staging.Ending()
	e.life.Wait()
	quiet := e.life.Quiesce(quiesceTime)
	if e.ev != nil {
		e.ev.Close()
	}
	if e.core == nil {
		return
	}
	e.core.Stop()
	if e.rails != nil {
		e.writeStats()
	}
	if !quiet {
		e.log.Error("shutdown timed out waiting for a registration or a control channel call; its resources are leaked")
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

// endSessions ends the sessions of both sides and the control channel.
func (e *Engine) endSessions() {
	if e.node == nil {
		return
	}
	e.node.Leaving()
	if e.initiators != nil {
		e.initiators.Farewell() // first: a peer that learns of the end may free memory that we have mapped
	}
	e.targets.Close() // before peers hear goodbye: their posted writes must not land after their transfers have ended
	e.node.Close()
	if e.initiators != nil {
		e.initiators.Close() // sessions made since Farewell
	}
	e.targets.Close()
}
