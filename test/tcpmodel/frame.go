// Package tcpmodel has the protocol of the TCP rail in Go: the encoding of frames, and a model of the end that receives them. Tests,
// fuzz targets and hostile peers use it. Package sock is what runs. package tcp's comment has the protocol.
package tcpmodel

import (
	"encoding/binary"
	"slices"
)

// Op is the kind of a frame.
type Op uint8

// The kinds.
const (
	Write Op = 1 + iota
	Send
	Read
	Answer
	Ack
	Refused
	Goodbye
)

// Flags of a frame: it is to be acknowledged at once; the body is packed, or the READ's answer may be.
const (
	Ask    = 1
	Packed = 4
)

// Sizes and bounds of frames.
const (
	HeaderLen     = 32
	SegmentLen    = 24
	WriteSegments = 256     // of one WRITE
	ReadSegments  = 8       // of one READ
	MaxBody       = 1 << 20 // bytes of one frame, header and segments aside
	MaxMessage    = 8 << 10
	MaxReads      = 64      // READs outstanding on a connection
	MaxReadBytes  = 4 << 20 // that they ask for together
	MaxEarly      = 32      // messages that came before their receives
	OffsetBits    = 44      // of an address; the number of the region is above them
)

const magic = 0xa0 // the high half of a header's first byte

// Header is the header of a frame. Fields that a kind does not use are ignored.
type Header struct {
	Op       Op
	Flags    uint8
	Segments uint16
	Len      uint32 // bytes of the body, behind the segments
	ID       uint32 // Read, Answer: the number of the READ. Refused: the index of the segment
	Status   uint32 // Answer, Refused: an errno; 0: success
	Seq      uint64 // Write, Send: the number of the frame, from 1. Refused: the frame that was refused
	Ack      uint64 // all frames up to this number are placed, delivered or refused
}

// Segment is a range of the peer's memory.
type Segment struct {
	Key, Addr uint64
	Len       uint32
}

// At makes an address of the wire.
func At(region uint32, offset uint64) uint64 { return uint64(region)<<OffsetBits | offset }

// Append encodes the header.
func (h Header) Append(b []byte) []byte {
	b = append(b, magic|byte(h.Op), h.Flags)
	b = binary.LittleEndian.AppendUint16(b, h.Segments)
	for _, v := range []uint32{h.Len, h.ID, h.Status} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	b = binary.LittleEndian.AppendUint64(b, h.Seq)
	return binary.LittleEndian.AppendUint64(b, h.Ack)
}

// Append encodes the segment.
func (s Segment) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, s.Key)
	b = binary.LittleEndian.AppendUint64(b, s.Addr)
	b = binary.LittleEndian.AppendUint32(b, s.Len)
	return append(b, 0, 0, 0, 0)
}

// DecodeHeader decodes HeaderLen bytes. ok is false if the first byte is that of no frame.
func DecodeHeader(b []byte) (h Header, ok bool) {
	h = Header{Op: Op(b[0] & 15), Flags: b[1], Segments: binary.LittleEndian.Uint16(b[2:]), Len: binary.LittleEndian.Uint32(b[4:]),
		ID: binary.LittleEndian.Uint32(b[8:]), Status: binary.LittleEndian.Uint32(b[12:]),
		Seq: binary.LittleEndian.Uint64(b[16:]), Ack: binary.LittleEndian.Uint64(b[24:])}
	return h, b[0]&0xf0 == magic && h.Op >= Write && h.Op <= Goodbye
}

// DecodeSegment decodes SegmentLen bytes.
func DecodeSegment(b []byte) Segment {
	return Segment{Key: binary.LittleEndian.Uint64(b), Addr: binary.LittleEndian.Uint64(b[8:]), Len: binary.LittleEndian.Uint32(b[16:])}
}

// Frame is a whole frame.
type Frame struct {
	Header
	Segs []Segment
	Body []byte
}

// Encode encodes a frame as its header says, be that right or wrong.
func (f Frame) Encode() []byte {
	b := f.Append(make([]byte, 0, HeaderLen+len(f.Segs)*SegmentLen+len(f.Body)))
	for _, s := range f.Segs {
		b = s.Append(b)
	}
	return append(b, f.Body...)
}

// New makes a frame whose header counts its segments and its body.
func New(h Header, body []byte, segs ...Segment) Frame {
	h.Segments, h.Len = uint16(len(segs)), uint32(len(body))
	return Frame{h, slices.Clone(segs), body}
}
