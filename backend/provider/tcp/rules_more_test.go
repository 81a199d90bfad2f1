package tcp

import (
	"bytes"
	"fmt"
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/internal/pattern"
	"gorail/test/drive"
	"gorail/test/tcpmodel"
)

func readRules() []rule {
	many := func(n int, size uint32) func(v *rules) []tcpmodel.Frame {
		return func(v *rules) (out []tcpmodel.Frame) {
			for i := range n {
				f := v.read(uint32(i), v.whole, 0, 0)
				f.Segs = nil
				for left := size; left > 0; left -= min(left, wholeLen) {
					f.Segs = append(f.Segs, v.seg(v.whole, 0, min(left, wholeLen)))
				}
				f.Segments = uint16(len(f.Segs))
				out = append(out, f)
			}
			return out
		}
	}
	return []rule{
		ends("a READ with a body", func(v *rules) []tcpmodel.Frame {
			f := v.read(1, v.whole, 0, 64)
			f.Len, f.Body = 64, make([]byte, 64)
			return []tcpmodel.Frame{f}
		}),
		ends("a READ with a body alone", func(*rules) []tcpmodel.Frame {
			return []tcpmodel.Frame{tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Read}, make([]byte, 8))}
		}),
		ends("a READ of nine segments", many(1, 9*wholeLen)),
		ends("a READ of more than 1 MiB", func(v *rules) []tcpmodel.Frame {
			f := v.read(1, v.whole, 0, math.MaxUint32)
			return []tcpmodel.Frame{f}
		}),
		ends("65 READs at once", many(tcpmodel.MaxReads+1, 8)),
		ends("READs of more than 4 MiB at once", many(9, 8*wholeLen)),
		ends("an answer that no one asked for", func(*rules) []tcpmodel.Frame {
			return []tcpmodel.Frame{tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Answer, ID: 1}, make([]byte, 8))}
		}),
		{"64 READs at once", false, func(v *rules, s *hostilePeer) {
			s.send(many(tcpmodel.MaxReads, 8)(v)...)
			for i := range tcpmodel.MaxReads {
				require.Equal(v.t, uint32(i), s.want(tcpmodel.Answer).ID)
			}
		}},
		answerRule("an answer too long", func(f *tcpmodel.Frame) { f.Body, f.Len = append(f.Body, 1), f.Len+1 }),
		answerRule("an answer too short", func(f *tcpmodel.Frame) { f.Body, f.Len = f.Body[1:], f.Len-1 }),
		answerRule("an answer with another number", func(f *tcpmodel.Frame) { f.ID++ }),
		answerRule("an answer with a segment", func(f *tcpmodel.Frame) { f.Segments, f.Segs = 1, []tcpmodel.Segment{{}} }),
		answerRule("a refusal with bytes", func(f *tcpmodel.Frame) { f.Status = uint32(syscall.EACCES) }),
		answerRule("a refusal that says EAGAIN", func(f *tcpmodel.Frame) { f.Status, f.Len, f.Body = uint32(syscall.EAGAIN), 0, nil }),
		answerRule("a refusal that says ECANCELED", func(f *tcpmodel.Frame) { f.Status, f.Len, f.Body = uint32(syscall.ECANCELED), 0, nil }),
		answerRule("a refusal that says 2^32-1", func(f *tcpmodel.Frame) { f.Status, f.Len, f.Body = math.MaxUint32, 0, nil }),
		{"an answer twice", true, func(v *rules, s *hostilePeer) {
			before := bytes.Clone(v.mem)
			id := v.post(s, drive.Read, 64)
			f := tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Answer, ID: s.want(tcpmodel.Read).ID}, bytes.Repeat([]byte{0x77}, 64))
			s.send(f)
			require.Zero(v.t, v.result(id))
			require.Equal(v.t, f.Body, v.mem[16<<10:16<<10+64])
			copy(v.mem, before)
			s.send(f)
		}},
		{"a READ refused", false, func(v *rules, s *hostilePeer) {
			id := v.post(s, drive.Read, 64)
			s.send(tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Answer, ID: s.want(tcpmodel.Read).ID, Status: uint32(syscall.ESTALE)}, nil))
			require.Equal(v.t, syscall.ESTALE, v.result(id))
			id = v.post(s, drive.Write, 8)
			s.send(tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Ack, Ack: s.want(tcpmodel.Write).Seq}, nil))
			require.Zero(v.t, v.result(id), "the connection lives")
		}},
	}
}

// answerRule answers a READ of the victim's wrongly. The READ ends with the connection.
func answerRule(name string, change func(f *tcpmodel.Frame)) rule {
	return rule{name, true, func(v *rules, s *hostilePeer) {
		id := v.post(s, drive.Read, 64)
		f := tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Answer, ID: s.want(tcpmodel.Read).ID}, bytes.Repeat([]byte{0x77}, 64))
		change(&f)
		s.send(f)
		require.Equal(v.t, syscall.EPROTO, v.result(id))
	}}
}

func ackRules() []rule {
	refused := func(name string, change func(h *tcpmodel.Header)) rule {
		return rule{"REFUSED with " + name, true, func(v *rules, s *hostilePeer) {
			id := v.post(s, drive.Write, 64)
			h := tcpmodel.Header{Op: tcpmodel.Refused, Seq: s.want(tcpmodel.Write).Seq, Status: uint32(syscall.EACCES)}
			change(&h)
			s.send(tcpmodel.New(h, nil))
			require.Equal(v.t, syscall.EPROTO, v.result(id))
		}}
	}
	out := []rule{
		{"an ack of the next frame", true, func(v *rules, s *hostilePeer) {
			id := v.post(s, drive.Write, 64)
			s.send(tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Ack, Ack: s.want(tcpmodel.Write).Seq + 1}, nil))
			require.Equal(v.t, syscall.EPROTO, v.result(id))
		}},
		{"an ack that goes back", true, func(v *rules, s *hostilePeer) {
			for range 2 {
				id := v.post(s, drive.Send, 64)
				s.send(tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Ack, Ack: s.want(tcpmodel.Send).Seq}, nil))
				require.Zero(v.t, v.result(id))
			}
			s.send(tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Ack, Ack: 1}, nil))
		}},
		{"REFUSED of an acknowledged frame", true, func(v *rules, s *hostilePeer) {
			id := v.post(s, drive.Write, 64)
			seq := s.want(tcpmodel.Write).Seq
			s.send(tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Refused, Seq: seq, Ack: seq, Status: uint32(syscall.EACCES)}, nil))
			require.Zero(v.t, v.result(id))
		}},
		{"REFUSED without a frame", true, func(_ *rules, s *hostilePeer) {
			s.send(tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Refused, Seq: 1, Status: uint32(syscall.EACCES)}, nil))
		}},
		refused("seq 0", func(h *tcpmodel.Header) { h.Seq = 0 }),
		refused("a seq never sent", func(h *tcpmodel.Header) { h.Seq++ }),
		refused("seq 2^64-1", func(h *tcpmodel.Header) { h.Seq = math.MaxUint64 }),
		refused("status 0", func(h *tcpmodel.Header) { h.Status = 0 }),
		refused("EAGAIN", func(h *tcpmodel.Header) { h.Status = uint32(syscall.EAGAIN) }),
		refused("ECANCELED", func(h *tcpmodel.Header) { h.Status = uint32(syscall.ECANCELED) }),
		refused("status 2^31", func(h *tcpmodel.Header) { h.Status = 1 << 31 }),
	}
	for _, index := range []uint32{0, 1, math.MaxUint32} {
		out = append(out, rule{fmt.Sprintf("REFUSED with index %d", index), false, func(v *rules, s *hostilePeer) {
			a, b := v.post(s, drive.Write, 64), v.post(s, drive.Send, 64)
			s.send(tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Refused, ID: index, Seq: s.want(tcpmodel.Write).Seq, Status: uint32(syscall.EACCES)}, nil))
			require.Equal(v.t, syscall.EACCES, v.result(a))
			require.Equal(v.t, syscall.ECANCELED, v.result(b))
			s.ended()
		}})
	}
	return out
}

func messageRules() []rule {
	flood := func(n int) func(*rules) []tcpmodel.Frame {
		return func(*rules) (out []tcpmodel.Frame) {
			for i := range n {
				out = append(out, message(uint64(i)+1, 8))
			}
			return out
		}
	}
	return []rule{
		ends("a message of 8 KiB + 1", func(*rules) []tcpmodel.Frame { return []tcpmodel.Frame{message(1, tcpmodel.MaxMessage+1)} }),
		ends("a message with a segment", func(v *rules) []tcpmodel.Frame {
			f := message(1, 64)
			f.Segments, f.Segs = 1, []tcpmodel.Segment{v.seg(v.whole, 0, 64)}
			return []tcpmodel.Frame{f}
		}),
		ends("33 messages without receives", flood(tcpmodel.MaxEarly+1)),
		{"a message longer than the receive", true, func(v *rules, s *hostilePeer) {
			id := v.recv(s, 64)
			s.send(message(1, 65))
			require.Equal(v.t, syscall.EPROTO, v.result(id))
		}},
		{"32 messages without receives", false, func(v *rules, s *hostilePeer) {
			s.send(flood(tcpmodel.MaxEarly)(v)...)
			require.Equal(v.t, uint64(tcpmodel.MaxEarly), s.acked(tcpmodel.MaxEarly))
			s.close()
		}},
		{"messages that came before the end", false, func(v *rules, s *hostilePeer) {
			s.send(flood(2)(v)...)
			require.Equal(v.t, uint64(2), s.acked(2))
			require.NoError(v.t, s.c.Close())
			id := v.post(s, drive.Read, 8)
			require.NotZero(v.t, v.result(id))
			keep := bytes.Clone(v.mem)
			for range 2 { // acknowledged messages are delivered
				require.Zero(v.t, v.result(v.recv(s, 64)))
			}
			require.Error(v.t, v.d.Recv(s.ep.Core(), v.id(), v.mem[:64], nil))
			copy(v.mem, keep)
		}},
	}
}

// acked receives frames until one acknowledges n.
func (s *hostilePeer) acked(n uint64) (got uint64) {
	s.t.Helper()
	for got < n {
		f := s.frame()
		require.NotNil(s.t, f, "the connection ended: %v", s.end)
		got = f.Ack
	}
	return got
}

func byeRules() []rule {
	bye := tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Goodbye}, nil)
	out := []rule{
		{"a goodbye, and no more", false, func(v *rules, s *hostilePeer) {
			s.send(bye)
			require.NoError(v.t, s.c.Close())
			id := v.post(s, drive.Read, 8)
			require.Equal(v.t, syscall.ECONNRESET, v.result(id))
		}},
	}
	for name, f := range map[string]func(v *rules) tcpmodel.Frame{
		"WRITE":   func(v *rules) tcpmodel.Frame { return v.write(1, 8) },
		"SEND":    func(*rules) tcpmodel.Frame { return message(1, 8) },
		"READ":    func(v *rules) tcpmodel.Frame { return v.read(1, v.whole, 0, 8) },
		"goodbye": func(*rules) tcpmodel.Frame { return bye },
		"ACK":     func(*rules) tcpmodel.Frame { return tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Ack}, nil) },
	} {
		out = append(out, ends("a "+name+" after goodbye", func(v *rules) []tcpmodel.Frame { return []tcpmodel.Frame{bye, f(v)} }))
	}
	return out
}

// TestCutFrames: a frame is cut off after each of its bytes. What was placed is a beginning of the frame's bytes.
func TestCutFrames(t *testing.T) {
	t.Parallel()
	v := newRules(t, Options{})
	body := bytes.Repeat([]byte{0xee}, 40)
	write := tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Write, Flags: tcpmodel.Ask, Seq: 1}, body, v.seg(v.whole, 100, 24), v.seg(v.edge, edgeLen-16, 16))
	step := 1
	if testing.Short() {
		step = 5
	}
	for _, f := range []tcpmodel.Frame{write, message(1, 20), v.read(1, v.whole, 0, 8), tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Goodbye}, nil)} {
		text := f.Encode()
		for cut := 0; cut < len(text); cut += step {
			before := bytes.Clone(v.mem)
			s := v.meet(t)
			v.recv(s, 64)
			s.raw(text[:cut])
			require.NoError(t, s.c.CloseWrite())
			s.ended()
			placed := max(0, cut-tcpmodel.HeaderLen-2*tcpmodel.SegmentLen)
			if f.Op == tcpmodel.Write {
				copy(before[wholeAt+100:], body[:min(24, placed)])
				copy(before[nodeMem-16:], body[min(24, placed):placed])
			}
			pattern.Same(t, before, v.mem, "%d of %d bytes", cut, len(text))
			clear(v.mem)
			s.close()
		}
	}
	v.works()
}
