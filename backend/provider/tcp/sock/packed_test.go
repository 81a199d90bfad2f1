package sock_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"gorail/backend/provider/tcp/sock"
	"gorail/internal/pattern"
	"gorail/test/tcpmodel"
)

// packedSample makes a conversation of packed WRITEs and READs, changed here and there.
func packedSample(rnd *rand.Rand) (out []byte) {
	var p sock.Packer
	seq, mistakes := uint64(0), rnd.IntN(4)
	text, block := make([]byte, regionLen), make([]byte, sock.PackHead+regionLen)
	for range 1 + rnd.IntN(6) {
		i := 2 * rnd.IntN(2) // those that may be written
		n := 1 + rnd.IntN(regionLen)
		seg := tcpmodel.Segment{Key: keyOf(i), Addr: tcpmodel.At(uint32(i), uint64(rnd.IntN(regionLen-n+1+rnd.IntN(2)))), Len: uint32(n)}
		if i == 0 && rnd.IntN(4) == 0 {
			out = append(out, tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Read, ID: rnd.Uint32(), Flags: tcpmodel.Packed}, nil, seg).Encode()...)
			continue
		}
		if rnd.IntN(4) > 0 {
			pattern.Fill(text, pattern.Floats|seq, 0)
		} else {
			clear(text)
		}
		body := tcpmodel.PackPlain(text[:n])
		if rnd.IntN(4) > 0 {
			body = append(bytes.Clone(block[:p.Encode(block, text[:n])]), byte(seq))
		}
		if rnd.IntN(6) == 0 { // its length, or what it stands for, is wrong
			body = body[:len(body)-rnd.IntN(2)]
			seg.Len += uint32(rnd.IntN(3)) - 1
		}
		h := tcpmodel.Header{Op: tcpmodel.Answer, Flags: tcpmodel.Packed, ID: ownRead}
		if rnd.IntN(8) > 0 {
			seq++
			h = tcpmodel.Header{Op: tcpmodel.Write, Flags: tcpmodel.Ask | tcpmodel.Packed, Seq: seq}
			out = append(out, tcpmodel.New(h, body, seg).Encode()...)
			continue
		}
		out = append(out, tcpmodel.New(h, tcpmodel.PackPlain(text[:ownBytes])).Encode()...)
	}
	for range mistakes {
		out[rnd.IntN(len(out))] ^= 1 << rnd.IntN(8)
	}
	return out
}

// TestPackedFrames: packed conversations do in a rail what they do in the tcpmodel.
func TestPackedFrames(t *testing.T) { conversations(t, true, 8, []int{1, 7, 100, 5000}, inClear) }

// TestPackedRecords: the same inside records.
func TestPackedRecords(t *testing.T) { conversations(t, true, 9, []int{3, 7, 100, 5000}, inRecords) }

// FuzzPackedFrames: whatever a peer sends, a rail that unpacks does what the model does, and writes nowhere else.
func FuzzPackedFrames(f *testing.F) {
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 10))
		f.Add(byte(rnd.IntN(256)), packedSample(rnd))
	}
	b := newBench(f, true)
	f.Fuzz(func(t *testing.T, cut byte, text []byte) {
		b.t = t
		text = text[:min(len(text), 16<<10)]
		b.feed(1, max(1+16*int(cut), len(text)/32), text, nil)
	})
}
