package session

// An Assembler reassembles the notifications of one sender. Frames may arrive fragmented, out of order and more
// than once. Messages are delivered whole, once, and in the order of their sequence numbers. It does no I/O.
//
// A message is whole when every byte of its body has arrived and a frame of each sub-transfer of its transfer has been
// seen. A sub-transfer is the data on one link. A frame of sub-transfer p arrives after the data of sub-transfer p, so it
// proves those data placed. A notification without a transfer, or with a transfer on one link, counts as one sub-transfer.

import (
	"errors"
	"fmt"
	"slices"
)

// The errors of Add. The frame is refused and the state is unchanged. A sender that causes such an error is broken or
// hostile; the caller should close its connection. A sender that respects its credits cannot cause ErrPending or
// ErrDistance.
var (
	ErrBody     = errors.New("notification body is above the limit")
	ErrRange    = errors.New("notification fragment lies outside its body")
	ErrSubs     = errors.New("notification sub-transfer is not below the number of sub-transfers")
	ErrMismatch = errors.New("notification fragments disagree about size or sub-transfers")
	ErrPending  = errors.New("too many bytes of unfinished notifications")
	ErrDistance = errors.New("notification number is too far ahead")
)

// Limits of one sender. A zero field selects the default.
type Limits struct {
	MaxBody     uint32 // bytes of one body; default 64 MiB
	MaxPending  uint64 // bytes of the messages after the next one, whole bodies and bookkeeping; default 64 MiB
	MaxDistance uint64 // largest distance of a sequence number from the next one; default 65,536
}

// DefaultLimits are the defaults of zero fields.
var DefaultLimits = Limits{MaxBody: 64 << 20, MaxPending: 64 << 20, MaxDistance: 1 << 16}

// overhead is the cost of an unfinished message besides its body, in bytes.
const overhead = 256

// spanSize is the cost of one span of a body, in bytes.
const spanSize = 16

// maxSpans bounds the spans of one body, because adding to them takes time in proportion. The number of fragments in
// flight, and so the number of gaps in a body, is limited by the credits: a few hundred.
const maxSpans = 16 << 10

// Frame is one arrived piece of a message.
type Frame struct {
	Seq     uint64 // the message's number, from 0
	Subs    uint16 // sub-transfers of the message's transfer, >= 1
	Sub     uint16 // the sub-transfer whose data precede this frame, < Subs
	Total   uint32 // bytes of the whole body
	Offset  uint32 // the payload's offset in the body
	Payload []byte // owned by the caller; Add copies it
}

// Message is a whole notification. The receiver owns Body.
type Message struct {
	Seq  uint64
	Body []byte
}

// Counts are counters, and the memory that an assembler holds.
type Counts struct {
	Duplicates uint64 // frames that added nothing to a message that is still held
	Stale      uint64 // frames of messages that were already delivered
	Messages   int    // messages held, whole or not
	Bytes      uint64 // bytes that these messages take when whole, bookkeeping included
}

// Assembler reassembles the notifications of one sender. It is not safe for concurrent use. Make it with New.
type Assembler struct {
	limits Limits
	next   uint64
	held   map[uint64]*message
	counts Counts
}

// message is a message that cannot be delivered yet.
type message struct {
	body body
	subs uint16
	seen []uint64 // one bit for each sub-transfer
	left int      // sub-transfers not seen yet
	have spans
}

func (m *message) whole() bool { return m.left == 0 && m.have.covers(m.body.total) }

// cost counts the whole body from the first frame on, so that an accepted message can always be completed.
func (m *message) cost() uint64 {
	return uint64(m.body.total) + overhead + spanSize*uint64(len(m.have)) + 8*uint64(len(m.seen))
}

// NewAssembler makes an assembler that expects message number 0.
func NewAssembler(limits Limits) *Assembler {
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

// Next returns the number of the next message to deliver. All lower ones have been delivered.
func (a *Assembler) Next() uint64 { return a.next }

// Counts returns the counters and the memory held.
func (a *Assembler) Counts() Counts {
	c := a.counts
	c.Messages = len(a.held)
	return c
}

// Pending returns the number of messages held, whole or not.
func (a *Assembler) Pending() int { return len(a.held) }

// Have returns the numbers of the whole messages that wait for earlier ones, ascending.
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

// Forget drops a message that is not whole.
func (a *Assembler) Forget(seq uint64) {
	if m := a.held[seq]; m != nil && !m.whole() {
		a.counts.Bytes -= m.cost()
		delete(a.held, seq)
	}
}

// Add takes one frame and returns the messages that became deliverable, in order: usually none or one. Duplicates and
// stale frames are dropped and counted; they are no error.
func (a *Assembler) Add(f Frame) ([]Message, error) {
	if err := a.check(f); err != nil {
		return nil, err
	}
	if f.Seq < a.next {
		a.counts.Stale++
		return nil, nil
	}
	m := a.held[f.Seq]
	if m == nil && f.Seq == a.next && f.Subs == 1 && int(f.Total) == len(f.Payload) {
		a.next++ // the usual case: the message is complete, so nothing is held
		return a.ready([]Message{{Seq: f.Seq, Body: append([]byte(nil), f.Payload...)}}), nil
	}
	if m != nil && m.whole() {
		a.counts.Duplicates++
		return nil, nil
	}
	if m != nil && (m.body.total != f.Total || m.subs != f.Subs) {
		return nil, fmt.Errorf("%w: message %d has %d bytes in %d sub-transfers, the frame says %d in %d",
			ErrMismatch, f.Seq, m.body.total, m.subs, f.Total, f.Subs)
	}
	if err := a.room(m, f); err != nil {
		return nil, err
	}
	if m == nil {
		m = &message{body: body{total: f.Total}, subs: f.Subs, left: int(f.Subs), seen: make([]uint64, (int(f.Subs)+63)/64)}
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

// check refuses frames that no correct sender sends, regardless of the messages held.
func (a *Assembler) check(f Frame) error {
	switch {
	case f.Total > a.limits.MaxBody:
		return fmt.Errorf("%w: message %d has %d bytes, limit %d", ErrBody, f.Seq, f.Total, a.limits.MaxBody)
	case uint64(f.Offset)+uint64(len(f.Payload)) > uint64(f.Total):
		return fmt.Errorf("%w: message %d: %d bytes at %d of %d", ErrRange, f.Seq, len(f.Payload), f.Offset, f.Total)
	case f.Sub >= f.Subs:
		return fmt.Errorf("%w: message %d: sub-transfer %d of %d", ErrSubs, f.Seq, f.Sub, f.Subs)
	case f.Seq >= a.next && f.Seq-a.next > a.limits.MaxDistance:
		return fmt.Errorf("%w: message %d, next is %d, limit %d", ErrDistance, f.Seq, a.next, a.limits.MaxDistance)
	}
	return nil
}

// room refuses a frame that would need too much memory. The next message itself always has room, because its delivery
// frees the others.
func (a *Assembler) room(m *message, f Frame) error {
	if m != nil && len(m.have) >= maxSpans {
		return fmt.Errorf("%w: message %d is in %d pieces", ErrPending, f.Seq, len(m.have))
	}
	if f.Seq == a.next {
		return nil
	}
	more := uint64(spanSize)
	if m == nil {
		more += uint64(f.Total) + overhead + 8*((uint64(f.Subs)+63)/64)
	}
	if a.counts.Bytes+more > a.limits.MaxPending { //limit:sender_reassembly
		return fmt.Errorf("%w: %d held for %d messages, message %d needs %d more, limit %d",
			ErrPending, a.counts.Bytes, len(a.held), f.Seq, more, a.limits.MaxPending)
	}
	return nil
}

// take copies the frame's payload. It returns false if the frame added nothing.
func (m *message) take(f Frame) bool {
	fresh := false
	if bit := uint64(1) << (f.Sub % 64); m.seen[f.Sub/64]&bit == 0 {
		m.seen[f.Sub/64] |= bit
		m.left--
		fresh = true
	}
	if m.have.add(f.Offset, uint32(len(f.Payload))) {
		m.body.put(f.Offset, f.Payload)
		fresh = true
	}
	return fresh
}

// ready appends to out the whole messages that are next in order, and removes them.
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

// DropPartial drops the messages that are not whole, and returns their number. After a fence the sender may send them
// again with other fragments and other sub-transfers. Whole messages that wait for earlier ones stay.
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

// Advance records that the messages below seq were delivered by other means (the C core delivers messages of one
// fragment). It returns the messages that became deliverable. A seq below Next changes nothing.
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

// blockSize is the unit of allocation for a body, in bytes: twice the size of a fragment.
const blockSize = 4 << 10

// body is the part of a message's body that has arrived. Memory is allocated for bytes that arrive, not for the
// length that a frame claims.
type body struct {
	total  uint32
	blocks map[uint32][]byte // key: offset / blockSize
}

// put copies p to an offset. The bytes lie within total.
func (b *body) put(offset uint32, p []byte) {
	if b.blocks == nil {
		b.blocks = map[uint32][]byte{}
	}
	for len(p) > 0 {
		i := offset / blockSize
		block := b.blocks[i]
		if block == nil {
			block = make([]byte, min(blockSize, b.total-i*blockSize))
			b.blocks[i] = block
		}
		n := copy(block[offset%blockSize:], p)
		offset, p = offset+uint32(n), p[n:]
	}
}

// join returns a body that has arrived completely.
func (b *body) join() []byte {
	if b.total <= blockSize {
		return b.blocks[0]
	}
	out := make([]byte, 0, b.total)
	for i := uint32(0); uint32(len(out)) < b.total; i++ {
		out = append(out, b.blocks[i]...)
		delete(b.blocks, i)
	}
	return out
}

// span is the bytes [from, to) of a body.
type span struct{ from, to uint32 }

// spans are the byte ranges of a body that have arrived: ordered, disjoint and not adjacent. Fragments in order keep
// a single span.
type spans []span

// add adds [offset, offset+n) and reports whether any byte of it is new.
func (s *spans) add(offset, n uint32) bool {
	if n == 0 {
		return false
	}
	add := span{offset, offset + n}
	// the first span that touches or overlaps the new one, and the first after it that does not
	first, _ := slices.BinarySearchFunc(*s, add.from, func(e span, from uint32) int {
		if e.to < from {
			return -1
		}
		return 1
	})
	last := first
	for last < len(*s) && (*s)[last].from <= add.to {
		last++
	}
	if last > first {
		if old := (*s)[first]; old.from <= add.from && old.to >= add.to {
			return false
		}
		add.from = min(add.from, (*s)[first].from)
		add.to = max(add.to, (*s)[last-1].to)
	}
	*s = slices.Replace(*s, first, last, add)
	return true
}

// covers reports whether all bytes [0, total) have arrived.
func (s spans) covers(total uint32) bool {
	return total == 0 || len(s) == 1 && s[0] == span{0, total}
}
