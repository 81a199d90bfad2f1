package plugin

import (
	"time"
	"unsafe"
)

// backend is the part of an engine that the exports use, one method per call. Any method may be called from any thread
// at any time. Errors carry their code (backend/errcode). Borrowed slices and strings are C memory, valid only during
// the call.
type backend interface {
	// Close ends the engine. It waits for no peer.
	Close() error

	// RegisterBlob returns a region id for a local range. meta is the agent's borrowed blob. It appends the blob that peers
	// load to a slice: the same bytes for the same range, at most engine.RegionBlobSize.
	RegisterBlob(addr, length, dev uint64, mem int32, meta, to []byte) (id uint64, blob []byte, err error)
	Deregister(region uint64) error
	// Known reports whether a range is inside a registered region.
	Known(addr, length, dev uint64, mem int32) (bool, error)

	// LoadConn loads a peer's connection blob, borrowed. It does not wait for the peer.
	LoadConn(peer string, blob []byte) error
	// LoadRemote returns a region id for a peer's range, or ErrNotFound if the peer's connection blob was never loaded.
	LoadRemote(peer string, addr, length, dev uint64, mem int32, blob []byte) (uint64, error)
	UnloadRemote(region uint64) error
	Connect(peer string) error
	Disconnect(peer string) error

	// Prep creates a transfer. op is 0 READ, 1 WRITE. The lists are borrowed. slot is the C core's gr_xfer.
	Prep(op int, local, remote []Desc, peer string) (xfer uint64, slot unsafe.Pointer, err error)
	// Post starts a transfer: 0 done, 1 in progress. msg is borrowed.
	Post(xfer uint64, hasNotif bool, msg []byte) (int32, error)
	Release(xfer uint64) error
	Estimate(xfer uint64) (duration, margin time.Duration, err error)
	// Notify sends a notification without a transfer. msg is borrowed.
	Notify(peer string, msg []byte) error
}

// createArgs are the agent's arguments for a new engine.
type createArgs struct {
	Agent  string
	Type   string // the plugin name that NIXL requested
	Params map[string]string
	Lack   string // what the process lacks, so that no engine may start; empty: nothing
}

// created is a new engine, its immutable connection blob, and its C core (gr_core), which lives until Close returns.
type created struct {
	engine backend
	conn   []byte
	core   unsafe.Pointer
	vram   bool // a driver for GPU memory is present
}
