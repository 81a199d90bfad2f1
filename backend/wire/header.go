package wire

import (
	"encoding/binary"
	"fmt"
)

// The header of a message on a link: 40 bytes, little endian. A structure of the C core has the same layout.
const (
	HeaderSize = 40

	OffMagic   = 0  // u16
	OffVersion = 2  // u8
	OffKind    = 3  // u8
	OffSubs    = 4  // u16
	OffSub     = 6  // u16
	OffSeq     = 8  // u64
	OffTotal   = 16 // u32
	OffOffset  = 20 // u32
	OffCount   = 24 // u32
	OffSum     = 28 // u32, reserved: 0
	OffTo      = 32 // u64
)

// Values of the header's first fields.
const (
	Magic         = 0x5247 // "GR"
	HeaderVersion = 4
)

// Kind is the type of a message on a link.
type Kind uint8

// The kinds of messages.
const (
	KindNotif  Kind = 1 // a fragment of a notification, or a whole one
	KindCredit Kind = 2 // receive buffers were posted again; or the answer to a probe
	KindSkip   Kind = 3 // the sender dropped this notification; the receiver skips its number
	KindProbe  Kind = 4 // asks for an answer, which proves that messages pass in both directions
)

// Header is a message's header. Fields that a kind does not use are zero.
type Header struct {
	Kind   Kind
	Subs   uint16 // notif: number of the transfer's sub-transfers, >= 1
	Sub    uint16 // notif: the sub-transfer whose data precede this message, < Subs
	Seq    uint64 // notif, skip: number of the notification; probe: its own number, from 1; credit: number of the answered probe, 0: none
	Total  uint32 // notif: bytes of the whole body
	Offset uint32 // notif: the payload's offset in the body
	Count  uint32 // notif, skip, probe: slot of the link, from 0; credit: the receiver has consumed all slots below it
	To     uint64 // the receiver's number of the link: peers may share an endpoint
}

// Put writes the header to the first HeaderSize bytes of dst. dst must have that length.
func (h Header) Put(dst []byte) {
	_ = dst[HeaderSize-1]
	binary.LittleEndian.PutUint16(dst[OffMagic:], Magic)
	dst[OffVersion] = HeaderVersion
	dst[OffKind] = byte(h.Kind)
	binary.LittleEndian.PutUint16(dst[OffSubs:], h.Subs)
	binary.LittleEndian.PutUint16(dst[OffSub:], h.Sub)
	binary.LittleEndian.PutUint64(dst[OffSeq:], h.Seq)
	binary.LittleEndian.PutUint32(dst[OffTotal:], h.Total)
	binary.LittleEndian.PutUint32(dst[OffOffset:], h.Offset)
	binary.LittleEndian.PutUint32(dst[OffCount:], h.Count)
	binary.LittleEndian.PutUint32(dst[OffSum:], 0)
	binary.LittleEndian.PutUint64(dst[OffTo:], h.To)
}

// ParseMessage splits a received message into header and payload (a slice of msg). It returns ErrFormat, ErrKind or
// ErrVersion.
func ParseMessage(msg []byte) (Header, []byte, error) {
	if len(msg) < HeaderSize {
		return Header{}, nil, fmt.Errorf("%w: message of %d bytes, shorter than its header of %d", ErrFormat, len(msg), HeaderSize)
	}
	if m := binary.LittleEndian.Uint16(msg[OffMagic:]); m != Magic {
		return Header{}, nil, fmt.Errorf("%w: message starts with %#04x", ErrKind, m)
	}
	if v := msg[OffVersion]; v != HeaderVersion {
		return Header{}, nil, fmt.Errorf("%w: message version %d, here %d", ErrVersion, v, HeaderVersion)
	}
	h := Header{
		Kind:   Kind(msg[OffKind]),
		Subs:   binary.LittleEndian.Uint16(msg[OffSubs:]),
		Sub:    binary.LittleEndian.Uint16(msg[OffSub:]),
		Seq:    binary.LittleEndian.Uint64(msg[OffSeq:]),
		Total:  binary.LittleEndian.Uint32(msg[OffTotal:]),
		Offset: binary.LittleEndian.Uint32(msg[OffOffset:]),
		Count:  binary.LittleEndian.Uint32(msg[OffCount:]),
		To:     binary.LittleEndian.Uint64(msg[OffTo:]),
	}
	payload := msg[HeaderSize:]
	if err := h.check(uint64(len(payload))); err != nil {
		return Header{}, nil, err
	}
	if binary.LittleEndian.Uint32(msg[OffSum:]) != 0 {
		return Header{}, nil, fmt.Errorf("%w: reserved field is set", ErrFormat)
	}
	return h, payload, nil
}

func (h Header) check(payload uint64) error {
	switch h.Kind {
	case KindNotif:
		if h.Sub >= h.Subs {
			return fmt.Errorf("%w: sub-transfer %d of %d", ErrFormat, h.Sub, h.Subs)
		}
		if uint64(h.Offset)+payload > uint64(h.Total) {
			return fmt.Errorf("%w: %d bytes at %d of %d", ErrFormat, payload, h.Offset, h.Total)
		}
	case KindSkip:
		if h.Subs != 1 || h.Sub != 0 || h.Total != 0 || payload != 0 {
			return fmt.Errorf("%w: skip message", ErrFormat)
		}
	case KindProbe:
		if h.Seq == 0 || h.Subs != 0 || h.Sub != 0 || h.Total != 0 || h.Offset != 0 || payload != 0 {
			return fmt.Errorf("%w: probe message", ErrFormat)
		}
	case KindCredit:
		if h.Subs != 0 || h.Sub != 0 || h.Total != 0 || h.Offset != 0 || payload != 0 {
			return fmt.Errorf("%w: credit message", ErrFormat)
		}
	default:
		return fmt.Errorf("%w: message of kind %d", ErrKind, h.Kind)
	}
	return nil
}
