package wire

import "crypto/hmac"

// Mac is an HMAC-SHA256. Package trust computes them.
type Mac [32]byte

// Equal compares in constant time.
func (m Mac) Equal(other Mac) bool { return hmac.Equal(m[:], other[:]) }
