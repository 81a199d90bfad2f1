package wire

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/bits"
)

// A blob is: 'G' 'R', one letter for its kind, the version, CBOR, and the CRC-32C (big endian) of all bytes before
// the checksum.
const (
	kindConn   = 'C'
	kindRegion = 'M'
	headLen    = 4
	sumLen     = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// RailOffer is one rail in a connection blob. It has the constant facts that both sides need to pair their rails.
type RailOffer struct {
	_        struct{} `cbor:",toarray"`
	Index    uint8    // the engine's own rail number
	Fabric   string   // as provider.Device
	Subnet   string   // as provider.Device
	Name     string   // as provider.Device
	Loopback bool     // reachable only from the same network namespace
	Mbps     uint64   // 0 = unknown
	Shard    uint8    // as provider.Device
	Proof    []byte   // from provider.Host; empty for other providers
	Idle     bool     // some of the engine's host memory is not on the rail, and its device may not be open
}

// ConnBlob is the blob that an engine gives to its peers through NIXL's metadata. It stays the same for the engine's
// life.
type ConnBlob struct {
	_       struct{} `cbor:",toarray"`
	Version uint32   // set by Encode
	Engine  EngineID // Pin.Engine()
	Pin     Pin      // of the engine's key
	TLS     bool     // set by Encode. An earlier version had the option tls=off
	Proves  bool     // the engine wants its peers' operator to be proved (package identity)
	Agent   string   // any bytes
	Boot    string   // boot id of the host
	NetNS   uint64   // inode of the network namespace
	Process Process
	Token   Token
	Control []string // "ip:port", best first
	Rails   []RailOffer
	Slice   uint64 // larger regions are registered as several slices, see Range.Slices; 0 = never
	Links   uint8  // the most links that the engine wants on one pair of rails, at least 1
}

// Process names a process uniquely among all processes that a host ever runs. A PID alone is not unique, because the
// host reuses it.
type Process struct {
	_     struct{} `cbor:",toarray"`
	PID   uint32   // in its own pid namespace; 0 = unknown
	NS    uint64   // inode of its pid namespace
	Start uint64   // clock ticks since boot, field 22 of /proc/PID/stat
}

// Encode returns the blob's bytes; equal fields give equal bytes. It returns ErrLimit or ErrFormat for fields that
// DecodeConn would refuse.
func (b ConnBlob) Encode() ([]byte, error) {
	b.Version, b.TLS = Version, true
	return seal(kindConn, &b, b.check)
}

// DecodeConn decodes a connection blob. It returns ErrForeign, ErrKind, ErrCorrupt, ErrVersion, ErrFormat or
// ErrLimit.
func DecodeConn(data []byte) (ConnBlob, error) {
	var b ConnBlob
	if err := open(kindConn, data, &b, b.check); err != nil {
		return ConnBlob{}, fmt.Errorf("connection blob: %w", err)
	}
	return b, nil
}

func (b *ConnBlob) check() error {
	if b.Version != Version {
		return fmt.Errorf("%w: blob version %d, here %d", ErrVersion, b.Version, Version)
	}
	err := firstError(limit("agent name", len(b.Agent), MaxName), limit("boot id", len(b.Boot), MaxText),
		limit("rails", len(b.Rails), MaxRails))
	if err != nil {
		return err
	}
	if !b.TLS {
		return fmt.Errorf("%w: the engine uses no TLS: option tls=off is gone", ErrFormat)
	}
	if b.Engine != b.Pin.Engine() {
		return fmt.Errorf("%w: the engine's id does not belong to its key", ErrFormat)
	}
	if b.Slice != 0 && (b.Slice < MinSlice || b.Slice%SliceUnit != 0) {
		return fmt.Errorf("%w: slices of %d bytes", ErrFormat, b.Slice)
	}
	if err := checkControl(b.Control); err != nil {
		return err
	}
	var seen [256]bool
	for _, r := range b.Rails {
		if err := limit("number of a rail", int(r.Index), MaxRails-1); err != nil {
			return err
		}
		if seen[r.Index] {
			return fmt.Errorf("%w: rail %d appears twice", ErrFormat, r.Index)
		}
		seen[r.Index] = true
		for _, text := range []string{r.Fabric, r.Subnet, r.Name} {
			if err := limit("text of a rail", len(text), MaxText); err != nil {
				return err
			}
		}
		if err := limit("proof of a rail", len(r.Proof), MaxText); err != nil {
			return err
		}
	}
	return nil
}

// seal adds the magic, the kind, the version and the checksum to an encoded blob.
func seal(kind byte, v any, check func() error) ([]byte, error) {
	body, err := marshal(v, check)
	if err != nil {
		return nil, err
	}
	out := append([]byte{'G', 'R', kind, Version}, body...)
	if err := limit("bytes of the blob", len(out)+sumLen, MaxBlob); err != nil {
		return nil, err
	}
	return binary.BigEndian.AppendUint32(out, crc32.Checksum(out, castagnoli)), nil
}

// open checks a blob's magic, version and checksum, and decodes the blob. The checksum is checked before the version,
// so that a flipped bit is reported as ErrCorrupt.
func open(kind byte, data []byte, v any, check func() error) error {
	if foreign(data) {
		return ErrForeign
	}
	if err := limit("bytes", len(data), MaxBlob); err != nil {
		return err
	}
	if len(data) < headLen+sumLen {
		return fmt.Errorf("%w: %d bytes are too few", ErrFormat, len(data))
	}
	body, sum := data[:len(data)-sumLen], binary.BigEndian.Uint32(data[len(data)-sumLen:])
	if crc32.Checksum(body, castagnoli) != sum {
		return ErrCorrupt
	}
	if data[0] != 'G' || data[1] != 'R' || data[2] != kind {
		return fmt.Errorf("%w: starts with %q", ErrKind, data[:3])
	}
	if data[3] != Version {
		return fmt.Errorf("%w: blob version %d, here %d", ErrVersion, data[3], Version)
	}
	return unmarshal(body[headLen:], v, check)
}

// foreign distinguishes another backend's blob from a damaged blob of ours: a foreign one differs by more than one
// bit in its first two bytes.
func foreign(data []byte) bool {
	return len(data) >= 2 && bits.OnesCount8(data[0]^'G')+bits.OnesCount8(data[1]^'R') > 1
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
