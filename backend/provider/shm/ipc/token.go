package ipc

import "crypto/subtle"

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
