package tcp

import (
	"bytes"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/tcp/sock"
	"gorail/internal/pattern"
	"gorail/test/drive"
	"gorail/test/tcpmodel"
)

// TestBrokenRulesPacked: where bodies may be packed the rules are the same, and packed ones have more.
func TestBrokenRulesPacked(t *testing.T) {
	brokenRules(t, newRules(t, Options{Compression: sock.AlwaysPack}), packedRules()...)
}

// packs makes a frame packed. change gets its body of one plain block.
func packs(f *tcpmodel.Frame, change func(body []byte) []byte) {
	f.Flags |= tcpmodel.Packed
	f.Body = change(tcpmodel.PackPlain(f.Body))
	f.Len = uint32(len(f.Body))
}

func packedRules() (out []rule) {
	same := func(body []byte) []byte { return body }
	add := func(name string, change func(body []byte) []byte) {
		out = append(out, one("a packed WRITE with "+name, func(f *tcpmodel.Frame) { packs(f, change) }),
			answerRule("a packed answer with "+name, func(f *tcpmodel.Frame) { packs(f, change) }))
	}
	add("no bytes", func([]byte) []byte { return nil })
	add("half a head", func(b []byte) []byte { return b[:4] })
	add("a head alone", func(b []byte) []byte { return b[:tcpmodel.PackHead] })
	add("no byte behind its block", func(b []byte) []byte { return b[:len(b)-1] })
	add("a block of an unknown kind", func(b []byte) []byte { b[0] = 3; return b })
	add("a plain block with bits", func(b []byte) []byte { b[3] = 1; return b })
	add("a block of codes for too few bytes", func(b []byte) []byte { b[0], b[1], b[3] = 2, 2, 3; return b })
	first := len(out)
	add("two bytes behind its block", func(b []byte) []byte { return append(b, 0) })
	add("a second block", func(b []byte) []byte { return append(b, b...) })
	for i := range out[first:] { // the block before the mistake is placed, where the peer may write
		do := out[first+i].do
		out[first+i].do = func(v *rules, s *hostilePeer) {
			before := bytes.Clone(v.mem)
			do(v, s)
			s.ended()
			copy(v.mem, before)
		}
	}
	long := func(change func(block []byte)) func(v *rules) []tcpmodel.Frame {
		return func(v *rules) []tcpmodel.Frame {
			var p sock.Packer
			text := make([]byte, 4096)
			pattern.Fill(text, pattern.Floats, 0)
			block := make([]byte, sock.PackHead+len(text))
			block = block[:p.Encode(block, text)]
			change(block)
			f := v.write(1, len(text))
			packs(&f, func([]byte) []byte { return append(block, 0) })
			return []tcpmodel.Frame{f}
		}
	}
	out = append(out,
		ends("an exception too many", long(func(b []byte) { b[4]++ })),
		ends("an exception too few", long(func(b []byte) { b[4]-- })),
		ends("another number of bits", long(func(b []byte) { b[3]++ })),
		ends("another width", long(func(b []byte) { b[1] = 3 })),
		one("a packed body of nothing", func(f *tcpmodel.Frame) { packs(f, same); f.Segs[0].Len = 0 }),
		ends("a packed body of more than 1 MiB", func(v *rules) []tcpmodel.Frame {
			f := v.write(1, 64)
			packs(&f, same)
			f.Segs = nil
			for range tcpmodel.MaxBody/wholeLen + 1 {
				f.Segs = append(f.Segs, v.seg(v.whole, 0, wholeLen))
			}
			f.Segments = uint16(len(f.Segs))
			return []tcpmodel.Frame{f}
		}),
		rule{"a packed WRITE with a wrong key", false, func(v *rules, s *hostilePeer) {
			f := v.write(1, 64)
			f.Segs[0].Key++
			packs(&f, same)
			s.send(f, message(2, 8))
			require.Equal(v.t, tcpmodel.Header{Op: tcpmodel.Refused, Status: uint32(syscall.ESTALE), Seq: 1}, s.want(tcpmodel.Refused).Header)
		}},
		rule{"a packed answer", false, func(v *rules, s *hostilePeer) {
			before := bytes.Clone(v.mem)
			id := v.post(s, drive.Read, 64)
			f := tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Answer, ID: s.want(tcpmodel.Read).ID}, bytes.Repeat([]byte{0x55}, 64))
			packs(&f, same)
			s.send(f)
			require.Zero(v.t, v.result(id))
			require.Equal(v.t, bytes.Repeat([]byte{0x55}, 64), v.mem[16<<10:16<<10+64])
			copy(v.mem, before)
		}})
	return out
}
