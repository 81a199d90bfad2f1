package engine

import (
	"time"

	"gorail/backend/core"
)

// Close ends the engine. It says goodbye to the peers, ends every transfer and frees all resources. It waits for no
// peer.
func (e *Engine) Close() error {
	if e.life.BeginEnd() {
		e.shutdown()
	}
	return nil
}

// workTime limits how long shutdown waits for the engine's own work, which ends by itself. A call of the GPU driver may wait for ever.
const workTime = time.Minute

// quiesceTime limits how long shutdown waits for running calls from outside.
const quiesceTime = 2 * time.Second

// freePatience bounds the end of an engine. The driver frees memory within milliseconds, unless a GPU does not end its work: our copies, or
// a kernel of the application.
const freePatience = 5 * time.Second

// shutdown undoes start, as far as start got.
func (e *Engine) shutdown() {
	if e.socket != nil {
		e.socket.Close()
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
	if e.sharing != nil {
		e.sharing.leave()
	}
	e.staging.Ending()
	quiet := e.life.Wait(workTime) && e.life.Quiesce(quiesceTime)
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
		e.log.Error("shutdown timed out waiting for a registration, a control channel call or a call of the GPU driver; its resources are leaked")
		return
	}
	e.core.DropRails()
	if !e.free() {
		return // the core stays, too: a step that waits may still use it
	}
	e.core.Free()
	e.core = nil
}

// free frees what is registered, the rails and the staging. False: a step waits for a GPU.
func (e *Engine) free() bool {
	if e.regions != nil {
		e.regions.Close() // calls no GPU driver, and may take long: rails unpin memory
	}
	b := core.Bounded{Log: e.log, Until: time.Now().Add(freePatience)}
	e.rails.Close(b.Do)
	b.Do("memory pinned for GPUs, bounce buffers and streams of staging", func() { // last: the rails' driver needs the pins gone
		if e.regions != nil {
			e.regions.UnpinAll()
		}
		e.staging.Close()
	})
	return !b.Late
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
