package engine

import (
	"errors"
	"fmt"

	"gorail/backend/errcode"
	"gorail/backend/wire"
)

// LoadConn loads a peer's connection blob and begins to connect. The same blob again changes nothing. A different blob,
// or the blob of a dead peer, replaces the old one.
func (e *Engine) LoadConn(name string, raw []byte) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.life.Leave()
	blob, err := wire.DecodeConn(raw)
	if errors.Is(err, wire.ErrForeign) {
		return errcode.ForeignBlob.Errorf("agent %q: %w", name, wire.ErrForeign)
	}
	if errors.Is(err, wire.ErrVersion) {
		e.refused.Add(1)
	}
	if err != nil {
		return errcode.BadBlob.Errorf("connection blob of agent %q: %w", name, err)
	}
	if err := e.fits(name, &blob); err != nil {
		return errcode.PeerOptions.Errorf("agent %q: %w", name, err)
	}
	_, err = e.initiators.Load(name, raw, blob)
	return err
}

// fits compares what a peer demands of connections with our options. A certificate is for the name inside the metadata.
func (e *Engine) fits(name string, peer *wire.ConnBlob) error {
	if e.opt.CertifiedNames && peer.Agent != name {
		return fmt.Errorf("metadata is of agent %q: refused by option peer_names=certified", peer.Agent)
	}
	return e.operator.Meet(peer.Proves)
}

// Connect begins to connect to a loaded peer, or to this agent, and returns.
func (e *Engine) Connect(name string) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.life.Leave()
	if name == e.name {
		return nil // the session with this agent itself is made on first use
	}
	r := e.initiators.Of(name)
	if r == nil {
		return errcode.UnknownPeer.Errorf("connect: no connection info of agent %q is loaded", name)
	}
	r.Reconnect()
	return nil
}

// Disconnect forgets a peer and returns without waiting. Transfers in flight to the peer end in an error. Accepted
// notifications still arrive: the session stays in the background until the peer has them, peer_timeout at most.
func (e *Engine) Disconnect(name string) error {
	if !e.life.Enter() {
		return nil // the engine forgets all peers as it closes
	}
	defer e.life.Leave()
	return e.initiators.Disconnect(name)
}

// LoadRemote records a peer's range. Its keys are requested on the control channel in the background. LoadRemote
// returns ErrNotFound, and creates nothing, if the peer's connection info was never loaded.
func (e *Engine) LoadRemote(name string, addr, length, dev uint64, mem int32, blob []byte) (uint64, error) {
	if err := e.enter(); err != nil {
		return 0, err
	}
	defer e.life.Leave()
	return e.initiators.LoadRemote(name, addr, length, dev, mem, blob)
}

// UnloadRemote forgets a peer's range. Transfers that use the range keep its keys. A range of this agent stays: the
// agent unloads its own metadata too.
func (e *Engine) UnloadRemote(id uint64) error {
	if !e.life.Enter() {
		return nil // as Disconnect
	}
	defer e.life.Leave()
	e.regions.Unloading()
	e.initiators.UnloadRemote(id)
	return nil
}

// Notify sends a notification without a transfer. The notification is queued at once, even while the peer is
// connecting. The queue holds up to notif_queue bytes per peer. An accepted notification arrives unless the peer dies.
// Implements genNotif.
func (e *Engine) Notify(name string, msg []byte) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.life.Leave()
	return e.initiators.Notify(name, msg)
}
