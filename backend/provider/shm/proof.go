package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"gorail/backend/provider"
	"gorail/backend/provider/shm/ipc"
)

// proofLen is the size of a proof: name of our socket, address of the secret bytes, and the bytes.
const proofLen = nameLen + 8 + ipc.TokenSize

// Proof implements provider.Prover. The layout is socket name, address of the secret bytes, the bytes.
func (r *rail) Proof() []byte {
	bytes := r.core.Proof()
	b := appendName(nil, r.listener.Name())
	b = binary.BigEndian.AppendUint64(b, uint64(uintptr(unsafe.Pointer(&bytes[0]))))
	return append(b, bytes...)
}

// Reach implements provider.Prover. The kernel names the process that listens at the proof's socket. process_vm_readv
// of the secret bytes shows that we may read that process's memory. The error says what forbids the access and what
// would help.
func (r *rail) Reach(proof []byte) error {
	if len(proof) != proofLen {
		return fmt.Errorf("%w: proof has %d bytes instead of %d", provider.ErrBadAddress, len(proof), proofLen)
	}
	name, ok := readName(proof)
	if !ok {
		return fmt.Errorf("%w: proof names no socket in the abstract namespace: %x", provider.ErrBadAddress, proof[:nameLen])
	}
	p := ipc.Proof{Name: name, At: binary.BigEndian.Uint64(proof[nameLen:]), Bytes: ipc.Token(proof[nameLen+8:])}
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
	return fmt.Errorf("%s: %w%s", what, e.Errno, accessHint(e.Errno))
}
