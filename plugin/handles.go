package plugin

import (
	"sync"
	"sync/atomic"

	"gorail/backend/engine"
	"gorail/backend/errcode"
)

// handles maps integers held by C to engines. A handle is {generation, index+1}. 0 is never a handle, and a handle of a
// destroyed engine gives an error instead of another engine. Lookups take no lock.
type handles struct {
	mu    sync.Mutex // serializes writers
	slots atomic.Pointer[[]engineSlot]
}

type engineSlot struct {
	generation uint32
	engine     *engine.Engine // nil: free
}

// add assigns a handle to an engine.
func (h *handles) add(e *engine.Engine) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	slots := h.copy()
	index := 0
	for index < len(slots) && slots[index].engine != nil {
		index++
	}
	if index == len(slots) {
		slots = append(slots, engineSlot{})
	}
	slots[index].generation++
	slots[index].engine = e
	h.slots.Store(&slots)
	return uint64(slots[index].generation)<<32 | uint64(index+1)
}

// get returns the engine of a live handle.
func (h *handles) get(handle uint64) (*engine.Engine, error) {
	if slots := h.slots.Load(); slots != nil {
		if i := uint32(handle) - 1; uint64(i) < uint64(len(*slots)) {
			if s := (*slots)[i]; s.engine != nil && uint64(s.generation) == handle>>32 {
				return s.engine, nil
			}
		}
	}
	return nil, errcode.BadHandle.Errorf("engine handle %#x is not alive", handle)
}

// remove invalidates a handle and returns its engine. Only one of two concurrent calls gets the engine.
func (h *handles) remove(handle uint64) (*engine.Engine, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e, err := h.get(handle)
	if err != nil {
		return nil, err
	}
	slots := h.copy()
	slots[uint32(handle)-1].engine = nil
	h.slots.Store(&slots)
	return e, nil
}

// copy returns a slice that readers do not see yet.
func (h *handles) copy() []engineSlot {
	if old := h.slots.Load(); old != nil {
		return append([]engineSlot(nil), *old...)
	}
	return nil
}
