package ipc

import (
	"bytes"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// File is the name of a socket in a folder: 128 random bits. Zero: no socket.
type File [16]byte

const suffix = ".sock"

// Name is the name of the file: its host's boot, and the random bits. A folder may be of several hosts or virtual machines, and a
// socket that lives on one refuses connections on the others.
func (f File) Name() string { return bootMark() + hex.EncodeToString(f[:]) + suffix }

// bootMark is the part of the boot id that names of files begin with.
var bootMark = sync.OnceValue(func() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without it the rail has no device
	id, _, _ := strings.Cut(string(b), "-")
	return id + "-"
})

// Place says where a process listens, and the namespaces in which its numbers and names count.
type Place struct {
	Abstract []byte // name in the abstract namespace, with the leading NUL
	File     File   // name in the folder
	NetNS    uint64 // number of the network namespace, which has the abstract name; 0: unknown
	PidNS    uint64 // number of the pid namespace; 0: unknown
	Users    Users  // who may connect
}

// MaxName is the longest socket name that the kernel chooses, with the leading NUL.
const MaxName = 15

// PlaceSize is the size of an encoded Place.
const PlaceSize = 1 + MaxName + 16 + 3*8

// Append appends the encoded Place.
func (p *Place) Append(to []byte) []byte {
	to = append(append(to, byte(len(p.Abstract))), p.Abstract...)
	to = append(append(to, make([]byte, MaxName-len(p.Abstract))...), p.File[:]...)
	to = binary.BigEndian.AppendUint64(to, p.NetNS)
	to = binary.BigEndian.AppendUint64(to, p.PidNS)
	return binary.BigEndian.AppendUint64(to, uint64(p.Users))
}

// Decode reads a Place from the first PlaceSize bytes, which a peer may have written. ok is false unless Append can
// have written them.
func Decode(from []byte) (p Place, ok bool) {
	if len(from) < PlaceSize {
		return p, false
	}
	n := int(from[0])
	if n < 2 || n > MaxName || from[1] != 0 {
		return p, false
	}
	p.Abstract = bytes.Clone(from[1 : 1+n])
	rest := from[1+MaxName:]
	p.File = File(rest)
	p.NetNS, p.PidNS = binary.BigEndian.Uint64(rest[16:]), binary.BigEndian.Uint64(rest[24:])
	users := binary.BigEndian.Uint64(rest[32:])
	p.Users = Users(users)
	return p, users <= uint64(AnyUser) && bytes.Equal(p.Append(nil), from[:PlaceSize])
}

// sameNet reports that a process with this Place has our abstract namespace.
func (p *Place) sameNet() bool { return p.NetNS != 0 && p.NetNS == namespace("net") }

// SamePIDs reports that a process with this Place has our pid namespace.
func (p *Place) SamePIDs() bool { return p.PidNS != 0 && p.PidNS == namespace("pid") }

// here is the Place of this process without sockets.
func here(users Users) Place {
	return Place{NetNS: namespace("net"), PidNS: namespace("pid"), Users: users}
}

// namespace is the number of a namespace of this process; 0: /proc does not show it. No other namespace of the host
// has the number while this one exists.
func namespace(kind string) uint64 {
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/"+kind, &st) != nil {
		return 0
	}
	return st.Ino
}

// TokenSize is the size of a random token.
const TokenSize = 16

// Token is a secret that a connection shows. The log does not show it.
type Token [TokenSize]byte

// String implements fmt.Stringer.
func (Token) String() string { return "(token)" }

// GoString implements fmt.GoStringer.
func (Token) GoString() string { return "(token)" }

// Equal compares two tokens in constant time.
func (t Token) Equal(to Token) bool { return subtle.ConstantTimeCompare(t[:], to[:]) == 1 }
