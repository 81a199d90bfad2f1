package shm

import "gorail/backend/provider/shm/ipc"

// nameLen is that of the name of a rail's socket in addresses and proofs: how many bytes, and these.
const nameLen = 1 + ipc.MaxName

// appendName appends a name that is at most ipc.MaxName long.
func appendName(to, name []byte) []byte {
	to = append(append(to, byte(len(name))), name...)
	return append(to, make([]byte, ipc.MaxName-len(name))...)
}

// readName is the name in the first nameLen bytes, if it is of a socket in the abstract namespace.
func readName(from []byte) (name []byte, ok bool) {
	n := int(from[0])
	if n < 2 || n > ipc.MaxName || from[1] != 0 {
		return nil, false
	}
	return from[1 : 1+n], true
}
