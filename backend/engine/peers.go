package engine

import (
	"bytes"
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
	_, err = e.loadConn(name, raw, blob)
	return err
}

// loadConn finds or makes the session for a blob. One call at a time for a name: two would make two sessions, and the later one would end the
// first with what it had accepted.
func (e *Engine) loadConn(name string, raw []byte, blob wire.ConnBlob) (*remote, error) {
	defer e.loads.lock(name)()
	old := e.named(name)
	if old != nil && bytes.Equal(old.raw, raw) && old.usable() {
		return old, nil
	}
	if old == nil {
		if r := e.back(name, raw); r != nil {
			return r, nil
		}
	}
	r, err := e.newRemote(name, bytes.Clone(raw), blob)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	old, d := e.unnameLocked(name, "replaced by new metadata") // Disconnect may have been there
	e.remotes[name] = r
	e.mu.Unlock()
	if old != nil {
		old.disconnect(d)
	}
	r.connect()
	return r, nil
}

func (e *Engine) named(name string) *remote {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.remotes[name]
}

// remote finds a peer by name; our own name gives the session with ourselves, made on first use. nil: there is none.
func (e *Engine) remote(name string) *remote {
	r := e.named(name)
	if r == nil && name == e.name {
		r, _ = e.loadConn(name, e.conn, e.blob)
	}
	return r
}

// Connect begins to connect to a loaded peer, or to ourselves, and returns.
func (e *Engine) Connect(name string) error {
	if name == e.name {
		return nil // the session with ourselves is made on first use
	}
	r := e.remote(name)
	if r == nil {
		return status.Errorf(status.ErrNotFound, "connect: no connection info of agent %q is loaded", name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reconnect()
	return nil
}

// Disconnect forgets a peer and returns without waiting. Transfers in flight to it end in an error. Notifications that were accepted
// still arrive: the session lives on behind the call until the peer has them, peer_timeout at most.
func (e *Engine) Disconnect(name string) error {
	r, d := e.unname(name, "disconnected by the application")
	if r == nil {
		return status.Errorf(status.ErrNotFound, "disconnect: agent %q is not loaded", name)
	}
	r.disconnect(d)
	return nil
}
