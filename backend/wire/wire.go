// Package wire has every encoding that another process reads: the two blobs in NIXL's metadata, the frames of the
// control channel, and the header of messages on the links. The package keeps no state.
//
// All decoders are strict: they accept exactly the bytes that the encoders produce (one encoding for each value),
// within limits. They never panic. Blobs and frames are CBOR (RFC 8949, core deterministic, structures as arrays). A
// blob ends in a CRC-32C.
package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/fxamacker/cbor/v2"
)

// Version is the version of the blobs and of the control channel. Both sides must have the same version.
const Version = 15

// The errors of the decoders, wrapped with details. Encoders return ErrLimit and ErrFormat for values that a decoder
// would refuse.
var (
	ErrCorrupt = errors.New("corrupt: the checksum does not match")
	ErrForeign = errors.New("the peer's backend under this name is not GORAIL: it must be on both sides")
	ErrKind    = errors.New("unexpected data")
	ErrVersion = errors.New("version mismatch: install the same GORAIL on both sides")
	ErrFormat  = errors.New("malformed")
	ErrLimit   = errors.New("above a limit")
)

// EngineID is the id of one engine of one process: the first half of its Pin.
type EngineID [16]byte

// Pin identifies the key of an engine: the SHA-256 of the key's SubjectPublicKeyInfo.
type Pin [32]byte

// Engine returns the id of the engine with this key.
func (p Pin) Engine() EngineID { return EngineID(p[:16]) }

// String returns the id in hexadecimal.
func (e EngineID) String() string { return hex.EncodeToString(e[:]) }

// Token is the secret in a connection blob. An engine that has the token may connect.
type Token [32]byte

// String hides the token from logs.
func (Token) String() string { return "(token)" }

// GoString hides the token from %#v.
func (Token) GoString() string { return "(token)" }

// Nonce makes a handshake unique.
type Nonce [32]byte

// Limits of the encoded values.
const (
	MaxName     = 4096     // bytes of an agent's name
	MaxText     = 1024     // bytes of any other text
	MaxControl  = 64       // control addresses of an engine
	MaxRails    = 64       // rails of an engine
	MaxAddr     = 1024     // bytes of an endpoint address
	MaxRanges   = 512      // ranges of a KeysReq and entries of a Keys; the answer fits a frame
	MaxKeyRails = MaxRails // rails of a KeyEntry
	MaxRevoke   = 1 << 16  // regions of a Revoke
	MaxHave     = 1 << 14  // notifications of a Fenced or a Welcome
	MaxBody     = 1 << 20  // bytes of a frame's body
	MaxBlob     = 64 << 10 // bytes of a blob
	MaxChain    = 4        // certificates of an Identity
	MaxCert     = 16 << 10 // bytes of one, and of a signature
)

var (
	encMode = must(encOptions().EncMode())
	decMode = must(cbor.DecOptions{
		DupMapKey:        cbor.DupMapKeyEnforcedAPF,
		IndefLength:      cbor.IndefLengthForbidden,
		TagsMd:           cbor.TagsForbidden,
		UTF8:             cbor.UTF8DecodeInvalid, // agents' names may have any bytes
		MaxArrayElements: MaxRevoke,
		MaxMapPairs:      16,
		MaxNestedLevels:  8,
	}.DecMode())
)

func encOptions() cbor.EncOptions {
	o := cbor.CoreDetEncOptions()
	o.NilContainers = cbor.NilContainerAsEmpty
	o.IndefLength = cbor.IndefLengthForbidden
	o.TagsMd = cbor.TagsForbidden
	return o
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // the options are constant: every test would find an error
	}
	return v
}

// marshal encodes a value. check is its method: it returns ErrLimit or ErrFormat.
func marshal(v any, check func() error) ([]byte, error) {
	if err := check(); err != nil {
		return nil, err
	}
	return encMode.Marshal(v)
}

// unmarshal decodes into v, whose method check is. It accepts only the encoding that marshal produces: no null for a number, no long form.
func unmarshal(data []byte, v any, check func() error) (err error) {
	defer func() {
		if p := recover(); p != nil { // would end the host process
			err = fmt.Errorf("%w: panic in the decoder: %v", ErrFormat, p)
		}
	}()
	if err = decMode.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if err = check(); err != nil {
		return err
	}
	again, err := encMode.Marshal(v)
	if err != nil || !bytes.Equal(again, data) {
		return fmt.Errorf("%w: not in canonical form", ErrFormat)
	}
	return nil
}

// limit returns ErrLimit if n is above most.
func limit(what string, n, most int) error {
	if n > most {
		return fmt.Errorf("%w: %s: %d, at most %d", ErrLimit, what, n, most)
	}
	return nil
}
