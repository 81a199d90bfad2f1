package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"gorail/backend/provider"
	"gorail/backend/provider/shm/ipc"
)

// proofLen is that of the name of our socket, of an address, and of the bytes there.
const proofLen = nameLen + 8 + ipc.TokenSize

// Proof implements provider.Prover.
func (r *rail) Proof() []byte {
	bytes := r.core.Proof()
	b := appendName(nil, r.listener.Name())
	b = binary.BigEndian.AppendUint64(b, uint64(uintptr(unsafe.Pointer(&bytes[0]))))
	return append(b, bytes...)
}

// Reach implements provider.Prover: the kernel says which process listens at the socket that the proof names, and process_vm_readv of a few
// bytes shows that we may read it. The error says what forbids it and what would help.
func (r *rail) Reach(proof []byte) error {
	if len(proof) != proofLen {
		return fmt.Errorf("%w: a proof of %d bytes", provider.ErrBadAddress, len(proof))
	}
	name, ok := readName(proof)
	if !ok {
		return fmt.Errorf("%w: a proof that names no socket: %x", provider.ErrBadAddress, proof[:nameLen])
	}
	p := ipc.Proof{Name: name, At: binary.BigEndian.Uint64(proof[nameLen:]), Bytes: [ipc.TokenSize]byte(proof[nameLen+8:])}
	pid, err := p.Reach()
	if err == nil {
		return nil
	}
	var e *ipc.Error
	_ = errors.As(err, &e)
	what := e.Step
	if pid != 0 {
		what = fmt.Sprintf("%s, process %d", what, pid)
	}
	return fmt.Errorf("%s: %w%s", what, e.Errno, why(e.Errno))
}
