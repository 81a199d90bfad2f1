package tcpmodel

import (
	"errors"
	"syscall"
)

// Region is a registered range.
type Region struct {
	Key                   uint64 // for the session
	Mem                   []byte
	PeersRead, PeersWrite bool
}

// End models the end of a connection that receives. The caller keeps Sent, Reads and Receives up to date.
type End struct {
	Regions  map[uint32]Region
	Sent     uint64            // numbered frames of ours that are sent
	Reads    map[uint32]uint64 // READs of ours that are not answered: number to bytes
	Packs    bool              // bodies may be packed
	Receives []int             // posted receives: bytes of each
	Frames   int               // that were taken in. The last one may have broken a rule

	acked, got uint64 // numbers of frames: of ours, of the peer's
	asked      int    // READs of the peer's that are not answered
	askedBytes uint64
	early      int
	left       bool // the peer has said goodbye
	refused    bool
	buf        []byte
}

// Result is what an end does with what it received, in order.
type Result struct {
	Messages [][]byte
	Answers  []Asked // to send
	Answered []Frame // answers to READs of ours
	Refusal  *Header // to send; nothing after it is taken in
	Ack      uint64  // frames up to this number are taken in
	Asked    bool    // an acknowledgement is due
	Peer     *Header // the peer has refused a frame of ours: the connection ends
}

// Asked is an answer to a READ of the peer's.
type Asked struct {
	ID     uint32
	Status syscall.Errno
	Bytes  []byte
}

// ErrRule says that the peer has broken a rule: the connection ends.
var ErrRule = errors.New("the peer broke a rule")

// Take takes bytes in, whatever they are cut into. It places bytes of WRITEs in Regions.
func (e *End) Take(b []byte) (r Result, err error) {
	e.buf = append(e.buf, b...)
	for err == nil && !e.refused && r.Peer == nil {
		f, n, ok, bad := e.next()
		if bad != nil {
			e.Frames++
			err = bad
			break
		}
		if !ok {
			e.partial()
			break
		}
		e.Frames++
		err = e.frame(f, &r)
		e.buf = e.buf[n:]
	}
	r.Ack = e.got
	return r, err
}

// next decodes the next frame if it is whole. An error may show before that.
func (e *End) next() (f Frame, n int, ok bool, err error) {
	if len(e.buf) < HeaderLen {
		return f, 0, false, nil
	}
	h, ok := DecodeHeader(e.buf)
	if !ok || e.header(h) != nil {
		return f, 0, false, ErrRule
	}
	f.Header, n = h, HeaderLen+int(h.Segments)*SegmentLen
	if len(e.buf) < n {
		return f, 0, false, nil
	}
	var sum uint64
	for i := range int(h.Segments) {
		s := DecodeSegment(e.buf[HeaderLen+i*SegmentLen:])
		f.Segs = append(f.Segs, s)
		sum += uint64(s.Len)
	}
	packed := h.packed()
	if h.Op == Write && (packed && (sum == 0 || sum > MaxBody) || !packed && sum != uint64(h.Len)) {
		return f, 0, false, ErrRule
	}
	if h.Op == Write && e.check(f.Segs, false) >= 0 { // the body is not waited for
		return f, len(e.buf), true, nil
	}
	if packed {
		if h.Op == Answer {
			sum = e.Reads[h.ID]
		}
		all := n + int(h.Len)
		f.Body, err = Unpacked(e.buf[n:min(all, len(e.buf))], int(h.Len), int(sum))
		e.place(f.Segs, f.Body)
		return f, all, len(e.buf) >= all, err
	}
	if len(e.buf) < n+int(h.Len) {
		return f, 0, false, nil
	}
	f.Body = e.buf[n : n+int(h.Len)]
	return f, n + int(h.Len), true, nil
}

// partial places what has come of a WRITE.
func (e *End) partial() {
	if len(e.buf) < HeaderLen {
		return
	}
	h, _ := DecodeHeader(e.buf)
	n := HeaderLen + int(h.Segments)*SegmentLen
	if h.Op != Write || len(e.buf) < n || h.packed() {
		return
	}
	var segs []Segment
	for i := range int(h.Segments) {
		segs = append(segs, DecodeSegment(e.buf[HeaderLen+i*SegmentLen:]))
	}
	e.place(segs, e.buf[n:])
}

func (e *End) place(segs []Segment, body []byte) {
	for _, s := range segs {
		n := min(int(s.Len), len(body))
		copy(e.memory(s)[:n], body)
		body = body[n:]
	}
}

// header checks what the header alone shows.
func (e *End) header(h Header) error {
	bad := e.left || h.Len > MaxBody || h.Ack < e.acked || h.Ack > e.Sent || h.packed() && (!e.Packs || h.Len == 0)
	switch h.Op {
	case Write:
		bad = bad || h.Seq != e.got+1 || h.Segments > WriteSegments || h.Len > 0 && h.Segments == 0
	case Send:
		bad = bad || h.Seq != e.got+1 || h.Segments > 0 || h.Len > MaxMessage || len(e.Receives) > 0 && int(h.Len) > e.Receives[0] ||
			len(e.Receives) == 0 && e.early >= MaxEarly
	case Read:
		bad = bad || h.Len > 0 || h.Segments > ReadSegments
	case Answer:
		want, ok := e.Reads[h.ID]
		bad = bad || !ok || h.Segments > 0 || h.Status != 0 && (h.Len > 0 || !status(h.Status)) || h.Status == 0 && !h.packed() && uint64(h.Len) != want || h.packed() && want == 0
	case Refused:
		bad = bad || h.Segments > 0 || h.Len > 0 || h.Seq != h.Ack+1 || h.Seq > e.Sent || !status(h.Status)
	default:
		bad = bad || h.Segments > 0 || h.Len > 0
	}
	if bad {
		return ErrRule
	}
	e.acked = h.Ack
	return nil
}

// packed reports whether the body is packed.
func (h Header) packed() bool {
	return h.Flags&Packed != 0 && (h.Op == Write || h.Op == Answer && h.Status == 0)
}

// status reports whether a peer may give this status.
func status(s uint32) bool {
	e := syscall.Errno(s)
	return e == syscall.EACCES || e == syscall.ESTALE || e == syscall.EFAULT
}

func (e *End) frame(f Frame, r *Result) error {
	switch f.Op {
	case Write:
		if i := e.check(f.Segs, false); i >= 0 {
			r.Refusal = &Header{Op: Refused, ID: uint32(i), Status: uint32(e.find(f.Segs[i], false)), Seq: f.Seq, Ack: e.got}
			e.refused = true
			return nil
		}
		e.place(f.Segs, f.Body)
	case Send:
		r.Messages = append(r.Messages, f.Body)
		if len(e.Receives) > 0 {
			e.Receives = e.Receives[1:]
		} else {
			e.early++
		}
	case Read:
		return e.read(f, r)
	case Answer:
		delete(e.Reads, f.ID)
		r.Answered = append(r.Answered, f)
	case Refused:
		r.Peer = &f.Header
	case Goodbye:
		e.left = true
	}
	if f.Op == Write || f.Op == Send {
		e.got = f.Seq
		r.Asked = r.Asked || f.Flags&Ask != 0
	}
	return nil
}

func (e *End) read(f Frame, r *Result) error {
	a := Asked{ID: f.ID}
	var sum uint64
	for _, s := range f.Segs {
		sum += uint64(s.Len)
	}
	if sum > MaxBody || e.asked >= MaxReads || e.asked > 0 && e.askedBytes+sum > MaxReadBytes {
		return ErrRule
	}
	e.asked++
	e.askedBytes += sum
	if i := e.check(f.Segs, true); i >= 0 {
		a.Status = e.find(f.Segs[i], true)
	} else {
		for _, s := range f.Segs {
			a.Bytes = append(a.Bytes, e.memory(s)...)
		}
	}
	r.Answers = append(r.Answers, a)
	return nil
}

// Post posts a receive. A message that came before it goes there.
func (e *End) Post(n int) {
	if e.early > 0 {
		e.early--
		return
	}
	e.Receives = append(e.Receives, n)
}

// Partial reports whether a frame is there in part.
func (e *End) Partial() bool { return len(e.buf) > 0 }

// Answered says that all READs of the peer's are answered.
func (e *End) Answered() { e.asked, e.askedBytes = 0, 0 }

// check returns the first segment that is refused, or -1.
func (e *End) check(segs []Segment, read bool) int {
	for i, s := range segs {
		if e.find(s, read) != 0 {
			return i
		}
	}
	return -1
}

// find says why a segment is refused; 0: it is not.
func (e *End) find(s Segment, read bool) syscall.Errno {
	g, ok := e.Regions[uint32(s.Addr>>OffsetBits)]
	off, size := s.Addr&(1<<OffsetBits-1), uint64(len(g.Mem))
	switch {
	case !ok || g.Key != s.Key:
		return syscall.ESTALE
	case read && !g.PeersRead, !read && !g.PeersWrite:
		return syscall.EACCES
	case off > size || uint64(s.Len) > size-off:
		return syscall.EFAULT
	}
	return 0
}

func (e *End) memory(s Segment) []byte {
	off := s.Addr & (1<<OffsetBits - 1)
	return e.Regions[uint32(s.Addr>>OffsetBits)].Mem[off : off+uint64(s.Len)]
}
