package plugin

import (
	"unsafe"

	"gorail/backend/engine"
)

// createArgs are the agent's arguments for a new engine.
type createArgs struct {
	Agent  string
	Type   string // the plugin name that NIXL requested
	Params map[string]string
	Lack   string // what the process lacks, so that no engine may start; empty: nothing
}

// created is a new engine, its immutable connection blob, and its C core (gr_core), which lives until Close returns.
type created struct {
	engine *engine.Engine
	conn   []byte
	core   unsafe.Pointer
	vram   bool // a driver for GPU memory is present
}
