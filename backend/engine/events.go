package engine

import "gorail/backend/core"

// onEvent runs in the only goroutine for events of the core. It passes each event to the layer that owns it. No layer
// waits here.
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
