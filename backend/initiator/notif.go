package initiator

import (
	"bytes"
	"errors"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
)

// Notify sends a notification without a transfer. It queues the notification at once, even while the peer is still
// connecting, up to notif_queue bytes a peer. An accepted notification arrives unless the peer dies. Implements
// genNotif.
func (s *Sessions) Notify(name string, msg []byte) error {
	if len(msg) > core.MaxNotif {
		return errcode.NotifTooLong.Errorf("notification of %d bytes: the limit is %d", len(msg), core.MaxNotif)
	}
	r := s.Of(name)
	if r == nil {
		return errcode.UnknownPeer.Errorf("notify: no connection info of agent %q is loaded", name)
	}
	r.mu.RLock()
	if r.state == ready && r.leaving == nil {
		defer r.mu.RUnlock()
		return r.send(msg)
	}
	r.mu.RUnlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.postable(); err != nil {
		return err
	}
	if r.state == ready {
		return r.send(msg)
	}
	if size := notifCost(msg); r.notifLen > 0 && r.notifLen+size > r.s.Options.NotifQueue {
		return r.full(len(msg))
	}
	r.notifLen += notifCost(msg)
	if !r.keptUntil.IsZero() {
		r.keptUntil = time.Now().Add(r.s.Options.PeerTimeout)
	}
	r.notifs = append(r.notifs, core.Taken{Body: bytes.Clone(msg)})
	return nil
}

func (r *Session) full(n int) error {
	return errcode.NotifQueueFull.Errorf("notification of %d bytes to peer %q refused: the queue limit of %d bytes would be exceeded, and the peer takes none in (option notif_queue)",
		n, r.name, r.s.Options.NotifQueue)
}

// send queues the message on the notification link. Under mu.
func (r *Session) send(msg []byte) error {
	err := r.notifLink.Core.Notify(msg)
	if errors.Is(err, core.ErrFull) {
		return r.full(len(msg))
	}
	if err != nil {
		return errcode.NotifRefused.Errorf("notify peer %q: %w", r.name, err)
	}
	return nil
}
