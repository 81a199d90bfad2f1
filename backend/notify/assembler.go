// Package notify puts the notifications of one sender back together: frames may arrive fragmented, out of order and
// more than once; messages leave whole, once, in the order of their sequence numbers. It is pure.
//
// A message is whole when every byte of its body is there and each of its parts has been seen. A part is what one link
// carried of the message's transfer; a frame tagged with part p arrived behind the data of p, so it proves p placed.
// A notification without a transfer, or with a transfer on one link, has one part.
package notify

import (
	"errors"
	"fmt"
	"slices"
)

// Errors of Add. The frame is not taken and the state is as before; a sender that causes one is broken or hostile, and
// its connection is best closed. ErrPending and ErrDistance can't happen with a sender that keeps to its credits.
var (
	ErrBody     = errors.New("notification body is above the limit")
	ErrRange    = errors.New("notification fragment lies outside its body")
	ErrParts    = errors.New("notification part number is not below the number of parts")
	ErrMismatch = errors.New("notification fragments disagree about size or parts")
	ErrPending  = errors.New("too many bytes of unfinished notifications")
	ErrDistance = errors.New("notification number is too far ahead")
)

// Limits of one sender. A zero field means the default.
type Limits struct {
	MaxBody     uint32 // bytes of one body; default 64 MiB
	MaxPending  uint64 // bytes of messages behind the next one, whole bodies and bookkeeping; default 64 MiB
	MaxDistance uint64 // how far a sequence number may be ahead of the next one; default 65,536
}

// DefaultLimits are the limits that zero fields stand for.
var DefaultLimits = Limits{MaxBody: 64 << 20, MaxPending: 64 << 20, MaxDistance: 1 << 16}

// overhead is what an unfinished message counts for besides its body, in bytes.
const overhead = 256

// spanSize is what one gap in a body counts for, in bytes.
const spanSize = 16

// maxSpans bounds the pieces of one body: adding to them takes time in proportion. Fragments on the way at once, and so
// holes in a body, are as many as there are credits: a few hundred.
const maxSpans = 16 << 10

// Frame is one arrived piece of a message.
type Frame struct {
	Seq     uint64 // the message's number, from 0
	Parts   uint16 // parts of the message's transfer, >= 1
	Part    uint16 // the part that this frame follows, < Parts
	Total   uint32 // bytes of the whole body
	Offset  uint32 // where the payload belongs in the body
	Payload []byte // the caller's; copied
}

// Message is a whole notification; Body is the receiver's to keep.
type Message struct {
	Seq  uint64
	Body []byte
}

// Counts are what an assembler dropped or holds.
type Counts struct {
	Duplicates uint64 // frames that brought nothing new to a message that is still held
	Stale      uint64 // frames of messages that were delivered before
	Messages   int    // messages held, whole or not
	Bytes      uint64 // bytes that they will take when whole, bookkeeping included
}

// Assembler is the receiving side of one sender. Not safe for concurrent use. Make it with New.
type Assembler struct {
	limits Limits
	next   uint64
	held   map[uint64]*message
	counts Counts
}

// message is one that can't be delivered yet.
type message struct {
	body  body
	parts uint16
	seen  []uint64 // a bit per part
	left  int      // parts not seen yet
	have  spans
}

func (m *message) whole() bool { return m.left == 0 && m.have.covers(m.body.total) }

// cost has the whole body from the first frame on: a message that was let in can be completed.
func (m *message) cost() uint64 {
	return uint64(m.body.total) + overhead + spanSize*uint64(len(m.have)) + 8*uint64(len(m.seen))
}

// New makes an assembler that waits for message number 0.
func New(limits Limits) *Assembler {
	if limits.MaxBody == 0 {
		limits.MaxBody = DefaultLimits.MaxBody
	}
	if limits.MaxPending == 0 {
		limits.MaxPending = DefaultLimits.MaxPending
	}
	if limits.MaxDistance == 0 {
		limits.MaxDistance = DefaultLimits.MaxDistance
	}
	return &Assembler{limits: limits, held: map[uint64]*message{}}
}

// Next is the number of the next message to be delivered: everything below has been.
func (a *Assembler) Next() uint64 { return a.next }

// Counts gives the counters and what is held.
func (a *Assembler) Counts() Counts {
	c := a.counts
	c.Messages = len(a.held)
	return c
}

// Pending is the number of messages held, whole or not.
func (a *Assembler) Pending() int { return len(a.held) }

// Have gives the numbers of the whole messages that wait for earlier ones, ascending.
func (a *Assembler) Have() []uint64 {
	var have []uint64
	for seq, m := range a.held {
		if m.whole() {
			have = append(have, seq)
		}
	}
	slices.Sort(have)
	return have
}

// Forget drops what has arrived of a message that is not whole.
func (a *Assembler) Forget(seq uint64) {
	if m := a.held[seq]; m != nil && !m.whole() {
		a.counts.Bytes -= m.cost()
		delete(a.held, seq)
	}
}

// Add takes one frame and gives the messages that it made deliverable, in order; usually none or one. Duplicates and
// stale frames are dropped and counted, without an error.
func (a *Assembler) Add(f Frame) ([]Message, error) {
	if err := a.check(f); err != nil {
		return nil, err
	}
	if f.Seq < a.next {
		a.counts.Stale++
		return nil, nil
	}
	m := a.held[f.Seq]
	if m == nil && f.Seq == a.next && f.Parts == 1 && int(f.Total) == len(f.Payload) {
		a.next++ // the usual case: nothing to keep
		return a.ready([]Message{{Seq: f.Seq, Body: append([]byte(nil), f.Payload...)}}), nil
	}
	if m != nil && m.whole() {
		a.counts.Duplicates++
		return nil, nil
	}
	if m != nil && (m.body.total != f.Total || m.parts != f.Parts) {
		return nil, fmt.Errorf("%w: message %d has %d bytes in %d parts, the frame says %d in %d",
			ErrMismatch, f.Seq, m.body.total, m.parts, f.Total, f.Parts)
	}
	if err := a.room(m, f); err != nil {
		return nil, err
	}
	if m == nil {
		m = &message{body: body{total: f.Total}, parts: f.Parts, left: int(f.Parts), seen: make([]uint64, (int(f.Parts)+63)/64)}
		a.held[f.Seq] = m
	} else {
		a.counts.Bytes -= m.cost()
	}
	if !m.take(f) {
		a.counts.Duplicates++
	}
	a.counts.Bytes += m.cost()
	return a.ready(nil), nil
}

// check refuses frames that no right sender makes, whatever the state.
func (a *Assembler) check(f Frame) error {
	switch {
	case f.Total > a.limits.MaxBody:
		return fmt.Errorf("%w: message %d has %d bytes, limit %d", ErrBody, f.Seq, f.Total, a.limits.MaxBody)
	case uint64(f.Offset)+uint64(len(f.Payload)) > uint64(f.Total):
		return fmt.Errorf("%w: message %d: %d bytes at %d of %d", ErrRange, f.Seq, len(f.Payload), f.Offset, f.Total)
	case f.Part >= f.Parts:
		return fmt.Errorf("%w: message %d: part %d of %d", ErrParts, f.Seq, f.Part, f.Parts)
	case f.Seq >= a.next && f.Seq-a.next > a.limits.MaxDistance:
		return fmt.Errorf("%w: message %d, next is %d, limit %d", ErrDistance, f.Seq, a.next, a.limits.MaxDistance)
	}
	return nil
}

// room refuses a frame that would hold too much memory. The next message itself always has room: it frees the rest.
func (a *Assembler) room(m *message, f Frame) error {
	if m != nil && len(m.have) >= maxSpans {
		return fmt.Errorf("%w: message %d is in %d pieces", ErrPending, f.Seq, len(m.have))
	}
	if f.Seq == a.next {
		return nil
	}
	more := uint64(spanSize)
	if m == nil {
		more += uint64(f.Total) + overhead + 8*((uint64(f.Parts)+63)/64)
	}
	if a.counts.Bytes+more > a.limits.MaxPending {
		return fmt.Errorf("%w: %d held for %d messages, message %d needs %d more, limit %d",
			ErrPending, a.counts.Bytes, len(a.held), f.Seq, more, a.limits.MaxPending)
	}
	return nil
}

// take copies the frame in; false when it brought nothing new.
func (m *message) take(f Frame) bool {
	fresh := false
	if bit := uint64(1) << (f.Part % 64); m.seen[f.Part/64]&bit == 0 {
		m.seen[f.Part/64] |= bit
		m.left--
		fresh = true
	}
	if m.have.add(f.Offset, uint32(len(f.Payload))) {
		m.body.put(f.Offset, f.Payload)
		fresh = true
	}
	return fresh
}

// ready moves whole messages from the front of the line to out.
func (a *Assembler) ready(out []Message) []Message {
	for {
		m := a.held[a.next]
		if m == nil || !m.whole() {
			return out
		}
		a.counts.Bytes -= m.cost()
		delete(a.held, a.next)
		out = append(out, Message{Seq: a.next, Body: m.body.join()})
		a.next++
	}
}

// DropPartial forgets the messages that are not whole, so that the sender may lay them out anew (other fragments, other
// parts) after a fence; whole ones that wait for their turn stay. It gives the number forgotten.
func (a *Assembler) DropPartial() int {
	n := 0
	for seq, m := range a.held {
		if !m.whole() {
			a.counts.Bytes -= m.cost()
			delete(a.held, seq)
			n++
		}
	}
	return n
}

// Advance says that the messages below seq were delivered by other means (the C core delivers those of one fragment),
// and gives what became deliverable. A seq below Next changes nothing.
func (a *Assembler) Advance(seq uint64) []Message {
	if seq <= a.next {
		return nil
	}
	for s, m := range a.held {
		if s < seq {
			a.counts.Bytes -= m.cost()
			delete(a.held, s)
		}
	}
	a.next = seq
	return a.ready(nil)
}
