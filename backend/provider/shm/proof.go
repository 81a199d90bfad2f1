package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/backend/provider"
	"gorail/backend/provider/shm/ipc"
)

// proofLen is the size of a proof: place of our sockets, address of the secret bytes, and the bytes.
const proofLen = ipc.PlaceSize + 8 + ipc.TokenSize

// Proof implements provider.Host. The layout is place, address of the secret bytes, the bytes.
func (r *rail) Proof() []byte {
	bytes := r.core.Proof()
	b := r.listener.Place().Append(nil)
	b = binary.BigEndian.AppendUint64(b, uint64(uintptr(unsafe.Pointer(&bytes[0]))))
	return append(b, bytes...)
}

// Reach implements provider.Host. The kernel names the user of the process that listens at the proof's place. In our
// namespaces process_vm_readv of the secret bytes shows that we may read that process's memory. In all other cases
// the ring serves the peer, and way says why. The error says what forbids the connection and what would help.
func (r *rail) Reach(proof []byte) (way string, err error) {
	if len(proof) != proofLen {
		return "", fmt.Errorf("%w: proof has %d bytes instead of %d", provider.ErrBadAddress, len(proof), proofLen)
	}
	place, ok := ipc.Decode(proof)
	if !ok {
		return "", fmt.Errorf("%w: proof names no sockets: %x", provider.ErrBadAddress, proof[:ipc.PlaceSize])
	}
	p := ipc.Proof{Place: place, At: binary.BigEndian.Uint64(proof[ipc.PlaceSize:]), Bytes: ipc.Token(proof[ipc.PlaceSize+8:])}
	if err := r.meets(&place); err != nil {
		return "", err
	}
	to, err := p.Reach(r.host)
	switch {
	case err == nil && to.Direct:
		return "", nil
	case err == nil:
		return fmt.Sprintf("ring, mapped where it is a shared memory file (%s)", to.Why+r.advice(to.Errno)), nil
	}
	var e *ipc.Error
	_ = errors.As(err, &e)
	what := e.Step
	if to.PID != 0 {
		what = fmt.Sprintf("%s, process %d", what, to.PID)
	}
	return "", fmt.Errorf("%s: %w%s", what, e.Errno, r.hint(e))
}

// meets says why a peer with this place cannot connect to us.
func (r *rail) meets(peer *ipc.Place) error {
	own := r.listener.Place()
	if own.NetNS == peer.NetNS && own.NetNS != 0 || own.File != (ipc.File{}) {
		return nil
	}
	why := r.noFolder
	if err := r.listener.NotInside(); err != nil {
		why = err
	}
	if why == nil {
		return nil // ipc.Dial has the text
	}
	return fmt.Errorf("the peer is in another network namespace, and we have no socket in a folder: %w", why)
}

// hint is the advice of an error, or what its number says, in parentheses.
func (r *rail) hint(e *ipc.Error) string {
	if e.Advice != "" {
		return " (" + e.Advice + ")"
	}
	return accessHint(e.Errno)
}

// advice says what forbids direct copies.
func (r *rail) advice(errno unix.Errno) string {
	if errno == 0 {
		return ""
	}
	return accessHint(errno)
}
