package shm

import (
	"context"
	"time"

	"gorail/backend/gpu"
	"gorail/backend/provider/shm/descriptors"
)

// mapTimeout bounds the retries when another importer of the same memory gives up.
const mapTimeout = 5 * time.Second

// open maps the memory with the driver.
func (p *mapping) open() (err error) {
	if !p.Share.Mappable() { // no other process can map it; the owner's process uses it directly on the same GPU
		switch {
		case p.Self && p.Peer == p.Device:
			return nil
		case p.Why != 0:
			return p.Why
		}
		return gpu.BadShare
	}
	if p.driver.Owns(&p.Share) && !p.Self { // a false claim of the peer: the memory would be ours, at an address of the peer's choice
		return gpu.BadShare
	}
	p.at, p.importer, err = p.driver.Map(p.Share, p.Device)
	return err
}

func (p *mapping) unmap() {
	if p.at != nil {
		_ = p.at.Close()
	}
	p.at = nil
}

// opening reports that pieces are missing.
func (p *mapping) opening() bool {
	if p.at == nil {
		return false
	}
	s, _ := p.at.State()
	return s == gpu.MapOpening
}

// err is the error of a failed mapping.
func (p *mapping) err() error {
	if p.at == nil {
		return nil
	}
	_, err := p.at.State()
	return err
}

// await returns when the mapping is complete or has failed; err is the result of open. Another importer of the same
// memory may be cancelled while it fetches the pieces. Then we unmap and open again, and this mapping may become the
// importer.
func (p *mapping) await(ctx context.Context, err error) error {
	if gpu.Is(err, gpu.SamePID) {
		return p.prove(ctx)
	}
	for until := time.Now().Add(mapTimeout); ; {
		if err == nil && p.importer {
			err = p.fetch(ctx)
		}
		for err == nil && p.opening() {
			if !pause(ctx) {
				return gpu.Cancelled
			}
		}
		if err == nil {
			err = p.err()
		}
		if !gpu.Is(err, gpu.Cancelled) || time.Now().After(until) {
			return err
		}
		p.unmap()
		if !pause(ctx) {
			return err
		}
		err = p.open()
	}
}

// pause sleeps one millisecond. False: ctx has ended.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Millisecond):
		return true
	}
}

// proofs is the number of tries to map memory by a proof: the application may write to the memory meanwhile.
const proofs = 3

// prove maps memory whose owner's process number equals ours, by proofs of the owner's.
func (p *mapping) prove(ctx context.Context) (err error) {
	for range proofs {
		proof, why := descriptors.FetchProof(ctx, p.Owner, p.Key)
		if why != nil {
			return why
		}
		if p.at, err = p.driver.MapProved(p.Share, p.Device, proof); !gpu.Is(err, gpu.Unproved) {
			return err
		}
	}
	return err
}

// fetch gets the pieces from the descriptor server of the owner.
func (p *mapping) fetch(ctx context.Context) error {
	err := descriptors.Fetch(ctx, p.Owner, p.Key, p.Share.Pieces(), p.at.Add)
	if err != nil && ctx.Err() == nil {
		p.at.Fail(whyOf(err))
	}
	return err
}
