package engine

import (
	"errors"

	"gorail/backend/status"
	"gorail/backend/wire"
)

// LoadConn takes a peer's connection blob and begins to connect; the same blob again changes nothing, a different one
// or one of a peer that is dead replaces what we held.
func (e *Engine) LoadConn(name string, raw []byte) error {
	if err := e.usable(); err != nil {
		return err
	}
	blob, err := wire.DecodeConn(raw)
	if errors.Is(err, wire.ErrForeign) {
		return status.Errorf(status.ErrMismatch, "agent %q: %w", name, wire.ErrForeign)
	}
	if err != nil {
		return status.Errorf(status.ErrMismatch, "connection blob of agent %q: %w", name, err)
	}
	_, err = e.initiators.Load(name, raw, blob)
	return err
}

// Connect begins to connect to a loaded peer, or to ourselves, and returns.
func (e *Engine) Connect(name string) error {
	if name == e.name {
		return nil // the session with ourselves is made on first use
	}
	r := e.initiators.Of(name)
	if r == nil {
		return status.Errorf(status.ErrNotFound, "connect: no connection info of agent %q is loaded", name)
	}
	r.Reconnect()
	return nil
}

// Disconnect forgets a peer and returns without waiting. Transfers in flight to it end in an error. Notifications that were accepted
// still arrive: the session lives on behind the call until the peer has them, peer_timeout at most.
func (e *Engine) Disconnect(name string) error { return e.initiators.Disconnect(name) }

// LoadRemote notes a peer's range; its keys are asked for on the control channel in the background. ErrNotFound for a
// peer whose connection info was never loaded, and nothing is created.
func (e *Engine) LoadRemote(name string, addr, length, dev uint64, mem int32, blob []byte) (uint64, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	return e.initiators.LoadRemote(name, addr, length, dev, mem, blob)
}

// UnloadRemote forgets a peer's range; transfers that use it keep what they need. A range of ours (the agent unloads
// its own metadata too) is left alone.
func (e *Engine) UnloadRemote(id uint64) error {
	e.initiators.UnloadRemote(id)
	return nil
}

// Notify sends a notification of its own. It is queued at once, even while the peer is still being connected, up to
// notif_queue bytes a peer; what is accepted arrives unless the peer dies. Implements genNotif.
func (e *Engine) Notify(name string, msg []byte) error {
	if err := e.usable(); err != nil {
		return err
	}
	return e.initiators.Notify(name, msg)
}
