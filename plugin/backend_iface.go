package main

import (
	"time"
	"unsafe"
)

// backend is what the exports need of an engine, one method per call. Any method, from any thread, at any time. Errors
// carry their code (backend/status). Slices and strings marked borrowed are C memory: valid during the call only.
type backend interface {
	// Close ends the engine; it waits for nothing of the peers'.
	Close() error

	// Register gives a region id for a local range; meta is the agent's borrowed blob.
	Register(addr, length, dev uint64, mem int32, meta []byte) (uint64, error)
	// RegionBlob gives what peers load: the same bytes for the same range.
	RegionBlob(region uint64) ([]byte, error)
	Deregister(region uint64) error
	// Known tells whether a range is inside a registered region.
	Known(addr, length, dev uint64, mem int32) (bool, error)

	// LoadConn takes a peer's connection blob, borrowed; it does not wait for the peer.
	LoadConn(peer string, blob []byte) error
	// LoadRemote gives a region id for a peer's range; ErrNotFound when the peer's connection blob was never loaded.
	LoadRemote(peer string, addr, length, dev uint64, mem int32, blob []byte) (uint64, error)
	UnloadRemote(region uint64) error
	Connect(peer string) error
	Disconnect(peer string) error

	// Prep makes a transfer; op is 0 READ, 1 WRITE. The lists are borrowed. slot is the C core's gr_xfer.
	Prep(op int, local, remote []Desc, peer string) (xfer uint64, slot unsafe.Pointer, err error)
	// Post starts it: 0 done, 1 in progress. msg is borrowed.
	Post(xfer uint64, hasNotif bool, msg []byte) (int32, error)
	Release(xfer uint64) error
	Estimate(xfer uint64) (duration, margin time.Duration, err error)
	// Notify sends a notification of its own; msg is borrowed.
	Notify(peer string, msg []byte) error
}

// createArgs is what the agent gives to a new engine.
type createArgs struct {
	Agent  string
	Type   string // the name that NIXL loaded the plugin under
	Params map[string]string
}

// created is a new engine: its connection blob, immutable, and the C core (gr_core) that lives until Close returns.
type created struct {
	engine backend
	conn   []byte
	core   unsafe.Pointer
	vram   bool // there is a driver for memory of GPUs
}
