package engine

import (
	"errors"

	"gorail/backend/errcode"
	"gorail/backend/option"
	"gorail/backend/region"
	"gorail/backend/wire"
)

// Register registers a local range. Ranges may repeat and overlap. The same range again gives the same region.
//
// A rail that refuses host memory does not fail the call: a failed first registration would poison the agent's metadata
// for every peer. Transfers over such a region fail with the rail's reason. A range that cannot be memory is refused,
// see checkRange. meta may name the access of peers; otherwise that is option remote_access.
func (e *Engine) Register(addr, length, dev uint64, mem int32, meta []byte) (uint64, error) {
	id, _, err := e.RegisterBlob(addr, length, dev, mem, meta, nil)
	return id, err
}

// RegisterBlob is Register that also appends the RegionBlob to a slice.
func (e *Engine) RegisterBlob(addr, length, dev uint64, mem int32, meta, to []byte) (id uint64, blob []byte, err error) {
	if err := e.enter(); err != nil {
		return 0, nil, err
	}
	defer e.life.Leave()
	peers, err := option.RightsOfMeta(meta, e.opt.RemoteAccess)
	if err != nil {
		return 0, nil, e.regions.AdviseRefused(mem, errcode.BadMetaInfo.Errorf("register %#x+%d: %w", addr, length, err))
	}
	r, err := e.regions.RegisterSoon(wire.Range{Addr: addr, Len: length, Dev: dev, Mem: mem}, peers)
	if err != nil {
		return 0, nil, err
	}
	if blob, err = e.appendBlob(to, r); err != nil {
		return 0, nil, errors.Join(err, e.regions.Deregister(r.ID))
	}
	return r.ID, blob, nil
}

// RegionBlob encodes the range, its capability and the engine's id. They never change.
func (e *Engine) RegionBlob(id uint64) ([]byte, error) {
	r := e.regions.Regions.Get(id)
	if r == nil || r.Peer != nil {
		return nil, errcode.UnknownRegion.Errorf("region %#x is not registered", id)
	}
	return e.appendBlob(make([]byte, 0, RegionBlobSize), r)
}

// RegionBlobSize is the size of the largest RegionBlob, in bytes.
const RegionBlobSize = wire.RegionBlobSize

func (e *Engine) appendBlob(to []byte, r *region.Region) ([]byte, error) {
	return wire.RegionBlob{Engine: e.blob.Engine, Addr: r.Addr, Len: r.Len, Dev: r.Dev, Mem: r.Mem, Cap: r.Cap}.Append(to)
}

// Known reports whether a range lies inside a registered region.
func (e *Engine) Known(addr, length, dev uint64, mem int32) (bool, error) {
	return e.regions.Known(wire.Range{Addr: addr, Len: length, Dev: dev, Mem: mem}), nil
}

// Deregister ends a registration. For the last registration of a range:
//   - It revokes the keys of all peers and waits for their answers, cancel_timeout at most. A peer that does not answer
//     loses its endpoint.
//   - It aborts and drains our own transfers that use the range.
//   - It then releases the memory.
//
// An error of a rail means that the memory may still be in use. The registration has ended all the same. Implements
// deregisterMem; the agent ignores the status.
func (e *Engine) Deregister(id uint64) error {
	if !e.life.Enter() {
		return nil // the engine deregisters everything as it closes
	}
	defer e.life.Leave()
	return e.regions.Deregister(id)
}
