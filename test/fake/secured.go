package fake

/*
#include "fake.h"
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"sync"

	"gorail/backend/provider"
	"gorail/backend/trust"
)

// securedEndpoint implements provider.Listener. The target's address is its ticket.
type securedEndpoint struct {
	*endpoint

	mu       sync.Mutex
	security []provider.Security // of each call of Secure
}

// Secure implements provider.Listener.
func (e *securedEndpoint) Secure(s provider.Security) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.security = append(e.security, s)
}

// Shut, Ends and Packets implement provider.Listener. The fabric knows the peer without an address, and loses no packet.
func (e *securedEndpoint) Shut()                      {}
func (e *securedEndpoint) Ends() (own, peer string)   { return "", "" }
func (e *securedEndpoint) Unanswered(bool) bool       { return false }
func (e *securedEndpoint) Copying() int               { return 0 }
func (e *securedEndpoint) Packets(bool) (_, _ string) { return "", "" }

// Connect implements provider.Endpoint. Operations fail with EPERM if the ends have different secrets.
func (e *securedEndpoint) Connect(peer []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.security); n != 1 {
		return fmt.Errorf("%w: fake/%s: Connect after %d calls of Secure", provider.ErrEndpoint, e.rail.dev.Name, n)
	}
	s := e.security[0]
	target := e.addr
	if s.Initiator {
		target = peer
	}
	var ticket trust.Ticket
	copy(ticket[:], target)
	proof := C.fake_proof{salt: C.uint64_t(saltOf(s.Keys)), initiator: flag(s.Initiator)}
	secret := s.Link(ticket)
	defer secret.Wipe()
	for i, b := range secret.OpeningMac(nil) {
		proof.secret[i] = C.uint8_t(b)
	}
	return e.connect(peer, proof)
}

// keyedRegion has another key for each session.
type keyedRegion struct{ *region }

// Key implements provider.MR.
func (m keyedRegion) Key(salt provider.Salt) uint64 {
	return m.key ^ saltOf(salt)&(^uint64(0)>>(64-8*m.rail.caps.KeySize))
}

func saltOf(b [16]byte) uint64 { return binary.LittleEndian.Uint64(b[:]) | 1 }
