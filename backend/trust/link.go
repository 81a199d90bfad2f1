package trust

import (
	"gorail/backend/wire"
)

// Ticket admits data connections of one link and epoch. The target draws it, and sends it inside the control channel.
type Ticket [16]byte

// LinkName identifies a link of a session and its epoch. Both ends know all of it.
type LinkName struct {
	Fabric                    string
	InitiatorRail, TargetRail uint8
	InitiatorID, TargetID     uint64 // wire.EndpointOffer.ID
	Epoch                     uint32
	Ticket                    Ticket
}

// LinkSecret is the secret of one link and epoch. After a fence the link has another one.
type LinkSecret struct{ secret Secret }

// Link derives the secret of a link from the secret of its session. The caller wipes it.
func (s *Secret) Link(n LinkName) *LinkSecret {
	l := &LinkSecret{}
	take(l.secret[:], expand(s, len(l.secret), "link", []byte(n.Fabric), []byte{n.InitiatorRail, n.TargetRail}, u64(n.InitiatorID),
		u64(n.TargetID), u64(uint64(n.Epoch)), n.Ticket[:]))
	return l
}

// String hides the secret from logs.
func (LinkSecret) String() string { return "(secret)" }

// GoString hides the secret from %#v.
func (LinkSecret) GoString() string { return "(secret)" }

// Wipe overwrites the secret. See Secret.Wipe.
func (l *LinkSecret) Wipe() {
	if l != nil {
		l.secret.Wipe()
	}
}

// KeySalt makes the keys of regions that the target gives out differ between sessions. It stays the same when the session
// is resumed.
func (s *Secret) KeySalt() [16]byte { return [16]byte(expand(s, 16, "region keys")) }

// ConnNonce makes the keys of one data connection unique.
type ConnNonce [16]byte

// OpeningMac proves that the initiator of the link sent an opening, which has its nonce in it.
func (l *LinkSecret) OpeningMac(opening []byte) wire.Mac { return mac(l.secret[:], "opening", opening) }

// AcceptMac proves that the target of the link has accepted that opening.
func (l *LinkSecret) AcceptMac(opening []byte, nonce ConnNonce) wire.Mac {
	return mac(l.secret[:], "accept", opening, nonce[:])
}

// Direction of records on a data connection.
type Direction byte

// The directions.
const (
	ToTarget Direction = iota
	ToInitiator
)

// RecordSecret is the secret of the records of one data connection.
type RecordSecret struct{ secret Secret }

// Records derives the secret of the records of a connection, which is the index-th of the link. No two connections share
// one. The caller wipes it.
func (l *LinkSecret) Records(initiator, target ConnNonce, index uint8) *RecordSecret {
	r := &RecordSecret{}
	take(r.secret[:], expand(&l.secret, len(r.secret), "records", initiator[:], target[:], []byte{index}))
	return r
}

// String hides the secret from logs.
func (RecordSecret) String() string { return "(secret)" }

// GoString hides the secret from %#v.
func (RecordSecret) GoString() string { return "(secret)" }

// Wipe overwrites the secret. See Secret.Wipe.
func (r *RecordSecret) Wipe() {
	if r != nil {
		r.secret.Wipe()
	}
}

// Bytes is the secret for code that derives the keys itself, as Key does.
func (r *RecordSecret) Bytes() *[32]byte { return (*[32]byte)(&r.secret) }

// MostRecords is the number of records under one key: AES-GCM's bound for records of 16 KiB is 2^24.5.
const MostRecords = 1 << 24

// RecordKey is a key of AES-256-GCM and the base of its nonces.
type RecordKey struct {
	Key [32]byte
	IV  [12]byte
}

// String hides the key from logs.
func (RecordKey) String() string { return "(secret)" }

// GoString hides the key from %#v.
func (RecordKey) GoString() string { return "(secret)" }

// Wipe overwrites the key. See Secret.Wipe.
func (k *RecordKey) Wipe() {
	if k != nil {
		clear(k.Key[:])
		clear(k.IV[:])
	}
}

// Key derives the key of one direction and generation. Generations begin at 0; a new one begins before MostRecords. The
// caller wipes the key.
func (r *RecordSecret) Key(d Direction, generation uint32) *RecordKey {
	k := &RecordKey{}
	of := func(to []byte, label string) {
		take(to, expand(&r.secret, len(to), label, []byte{byte(d)}, u64(uint64(generation))))
	}
	of(k.Key[:], "key")
	of(k.IV[:], "iv")
	return k
}
