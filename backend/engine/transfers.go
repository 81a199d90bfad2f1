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
	if err := e.enter(); err != nil {
		return 0, nil, err
	}
	defer e.life.Leave()
	r := e.initiators.Of(name)
	if r == nil {
		return 0, nil, errcode.UnknownPeer.Errorf("prepare: no connection info of agent %q is loaded", name)
	}
	t, err := r.Prep(op, transfer.List{Descs: local}, transfer.List{Descs: remote})
	if err != nil {
		return 0, nil, err
	}
	return t.Handle(), t.Slot().Pointer(), nil
}

// Post starts a transfer. The result is 0 (done) or 1 (in progress). Implements postXfer.
func (e *Engine) Post(handle uint64, hasNotif bool, msg []byte) (int32, error) {
	if err := e.enter(); err != nil {
		return 0, err
	}
	defer e.life.Leave()
	return e.transfers.Post(handle, hasNotif, msg)
}

// Release releases a transfer in any state, also while the engine closes. Implements releaseReqH.
func (e *Engine) Release(handle uint64) error {
	if !e.life.Enter() {
		return nil // the engine has ended every transfer
	}
	defer e.life.Leave()
	return e.transfers.Release(handle)
}

// Estimate returns the expected duration of a transfer. Implements estimateXferCost.
func (e *Engine) Estimate(handle uint64) (duration, margin time.Duration, err error) {
	if err := e.enter(); err != nil {
		return 0, 0, err
	}
	defer e.life.Leave()
	return e.transfers.Estimate(handle)
}
