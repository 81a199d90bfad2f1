package engine

import (
	"time"
	"unsafe"

	"gorail/backend/errcode"
	"gorail/backend/transfer"
)

// Desc is one element of a descriptor list. MDRegion is the offset of the region id in the shim's metadata object.
type Desc = transfer.Desc

const MDRegion = transfer.MDRegion

// Prep validates and plans a transfer. It returns the transfer's handle and the slot that the shim reads. Implements
// prepXfer.
func (e *Engine) Prep(op int, local, remote []Desc, name string) (uint64, unsafe.Pointer, error) {
	if err := e.usable(); err != nil {
		return 0, nil, err
	}
	r := e.initiators.Of(name)
	if r == nil {
		return 0, nil, errcode.UnknownPeer.Errorf("prepare: no connection info of agent %q is loaded", name)
	}
	t, err := e.transfers.Prep(op, transfer.List{Descs: local}, transfer.List{Descs: remote}, r.Peer())
	if err != nil {
		return 0, nil, err
	}
	return t.Handle(), t.Slot().Pointer(), nil
}

// Post starts a transfer. The result is 0 (done) or 1 (in progress). Implements postXfer.
func (e *Engine) Post(handle uint64, hasNotif bool, msg []byte) (int32, error) {
	return e.transfers.Post(handle, hasNotif, msg)
}

// Release releases a transfer in any state. Implements releaseReqH.
func (e *Engine) Release(handle uint64) error { return e.transfers.Release(handle) }

// Estimate returns the expected duration of a transfer. Implements estimateXferCost.
func (e *Engine) Estimate(handle uint64) (duration, margin time.Duration, err error) {
	return e.transfers.Estimate(handle)
}
