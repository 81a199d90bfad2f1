package shm

import "gorail/backend/provider/shm/ipc"

// nameLen is the size of a socket name in addresses and proofs: one byte with the length, then the name, padded to
// ipc.MaxName.
const nameLen = 1 + ipc.MaxName

// appendName appends a name of at most ipc.MaxName bytes.
func appendName(to, name []byte) []byte {
	to = append(append(to, byte(len(name))), name...)
	return append(to, make([]byte, ipc.MaxName-len(name))...)
}

// readName reads a socket name from the first nameLen bytes. ok is false unless the name is in the abstract
// namespace.
func readName(from []byte) (name []byte, ok bool) {
	n := int(from[0])
	if n < 2 || n > ipc.MaxName || from[1] != 0 {
		return nil, false
	}
	return from[1 : 1+n], true
}
