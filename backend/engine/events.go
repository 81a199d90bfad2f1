package engine

import "gorail/backend/core"

// onEvent takes what the core leaves to Go, in the one goroutine for that, and hands it to the layer that it is of. None of them waits.
func (e *Engine) onEvent(ev core.Event) {
	switch ev.Kind {
	case core.EvXfer:
		e.transfers.Event(ev)
	case core.EvLink:
		e.links.Event(ev)
	case core.EvMessage:
		e.targets.Message(ev)
	}
}
