package sock_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/option"
	"gorail/backend/provider/tcp/sock"
	"gorail/backend/trust"
	"gorail/internal/pattern"
	"gorail/test/drive"
	"gorail/test/tcpmodel"
)

var salt = sock.Salt{1, 2, 3}

var recordSecret = (&trust.Secret{1}).Link(trust.LinkName{}).Records(trust.ConnNonce{}, trust.ConnNonce{}, 0)

// records seals what a peer sends.
func records() *tcpmodel.Records {
	return &tcpmodel.Records{Secret: recordSecret, Direction: trust.ToTarget}
}

const (
	regionLen = 4096
	fuzzMem   = 32 << 10 // three regions with gaps, then buffers
	buffersAt = 24 << 10
	ownRead   = 1 // number of our READ
	ownBytes  = 64
)

// bench is a rail with a listener whose connections it is fed through.
type bench struct {
	t     testing.TB
	rail  *sock.Rail
	d     drive.Rail
	l     net.Listener
	mem   []byte
	keys  [3]uint64
	packs bool
}

var rights = [3]option.Rights{option.PeersBoth, option.PeersRead, option.PeersWrite}

func newBench(t testing.TB, packs bool) *bench {
	r, err := sock.NewRail(0)
	require.NoError(t, err)
	require.NoError(t, r.Encrypt(""))
	r.Tune(1<<22, 64<<30, 128<<10) // a peer may change its key at any time
	if packs {
		require.NoError(t, r.Pack(sock.AlwaysPack))
		r.TunePacking(1)
	}
	b := &bench{t: t, rail: r, d: drive.New(r.Core()), mem: drive.Alloc(fuzzMem), packs: packs}
	b.l, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	for i, peers := range rights {
		e := []sock.Entry{{Addr: drive.Addr(b.mem) + regionAt(i), Length: regionLen, Key: uint64(100 + i), Peers: peers}}
		r.Register(e)
		require.NoError(t, e[0].Err)
		require.Equal(t, uint32(i), e[0].Number)
		b.keys[i] = keyOf(i)
	}
	t.Cleanup(func() {
		_ = b.l.Close()
		for i := range rights {
			_ = r.Deregister(uint32(i))
		}
		require.NoError(t, r.Free(), "no connection stays")
	})
	return b
}

func regionAt(i int) uint64 { return uint64(2*i)*regionLen + 64 }
func keyOf(i int) uint64    { return sock.SessionKey(salt, uint64(100+i), uint32(i)) }

// pair makes a connection: a conn of the rail, and the other end.
func (b *bench) pair(encrypted bool) (*sock.Conn, *net.TCPConn) {
	conn, err := net.Dial("tcp", b.l.Addr().String())
	require.NoError(b.t, err)
	in, err := b.l.Accept()
	require.NoError(b.t, err)
	raw, err := in.(*net.TCPConn).SyscallConn()
	require.NoError(b.t, err)
	fd := -1
	require.NoError(b.t, raw.Control(func(n uintptr) { fd, err = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0) }))
	require.NoError(b.t, err)
	_ = in.Close()
	c, err := b.rail.NewConn()
	require.NoError(b.t, err)
	if b.packs {
		c.Pack(nil)
	}
	c.Begin(salt)
	if encrypted {
		require.NoError(b.t, c.Encrypt(recordSecret, false))
	}
	require.NoError(b.t, c.Attach(fd))
	_ = conn.(*net.TCPConn).SetLinger(0) // no thousands of ports that wait
	return c, conn.(*net.TCPConn)
}

// feed gives a rail bytes of a peer, cut into pieces, and compares what it does with the tcpmodel. Each piece is a record if there is a
// seal.
func (b *bench) feed(receives, cut int, text []byte, seal func(piece []byte) []byte) {
	clear(b.mem)
	for i := range b.mem[:buffersAt] {
		b.mem[i] = byte(i * 7)
	}
	shadow := bytes.Clone(b.mem)
	c, peer := b.pair(seal != nil)
	defer b.finish(c, peer)
	end := &tcpmodel.End{Packs: b.packs, Regions: map[uint32]tcpmodel.Region{}, Sent: 1, Reads: map[uint32]uint64{ownRead: ownBytes}}
	for i := range rights {
		end.Regions[uint32(i)] = tcpmodel.Region{Key: b.keys[i], Mem: shadow[regionAt(i):][:regionLen],
			PeersRead: rights[i].Allow(option.PeersRead), PeersWrite: rights[i].Allow(option.PeersWrite)}
	}
	for i := range receives {
		require.NoError(b.t, b.d.Recv(c.Core(), uint64(10+i), b.mem[buffersAt+1024*(i+1):][:1024], nil))
		end.Receives = append(end.Receives, 1024)
	}
	own := drive.Seg{Local: drive.Addr(b.mem) + buffersAt, Len: ownBytes}
	require.NoError(b.t, b.d.RMA(c.Core(), drive.Read, 1, own))
	require.NoError(b.t, b.d.RMA(c.Core(), drive.Write, 2, own))
	var out []byte
	ended := b.drain(peer, &out, false)
	var want tcpmodel.Result
	var err error
	for len(text) > 0 && err == nil && want.Refusal == nil && want.Peer == nil {
		n := min(cut, len(text))
		piece := text[:n]
		if seal != nil {
			piece = seal(piece)
		}
		_, werr := peer.Write(piece)
		require.NoError(b.t, werr)
		var r tcpmodel.Result
		r, err = end.Take(text[:n])
		end.Answered()
		want.Answers, want.Refusal, want.Peer, want.Ack = append(want.Answers, r.Answers...), r.Refusal, r.Peer, r.Ack
		want.Messages = append(want.Messages, r.Messages...)
		text = text[n:]
		ended = b.drain(peer, &out, err != nil || want.Peer != nil)
	}
	require.Equal(b.t, err != nil || want.Peer != nil, ended, "the connection ends: model %v, %+v", err, want)
	pattern.Same(b.t, shadow[:buffersAt], b.mem[:buffersAt], "the memory differs from the model's")
	if !ended {
		if seal != nil {
			out = b.opened(out)
		}
		b.output(out, want)
	}
}

// opened opens what the rail has sent.
func (b *bench) opened(out []byte) (text []byte) {
	in := &tcpmodel.Records{Secret: recordSecret, Direction: trust.ToInitiator}
	for len(out) > 0 {
		one, rest, err := in.Open(out)
		require.NoError(b.t, err)
		require.NotNil(b.t, one, "half a record")
		text, out = append(text, one...), rest
	}
	return text
}

// drain polls until nothing happens any more, and takes what the rail sends. With wait it polls until the end.
func (b *bench) drain(peer *net.TCPConn, out *[]byte, wait bool) (ended bool) {
	raw, err := peer.SyscallConn()
	require.NoError(b.t, err)
	chunk := make([]byte, 64<<10)
	stop := time.Now().Add(10 * time.Second)
	for quiet := 0; quiet < 3 || wait && time.Now().Before(stop); {
		_, err := b.d.Poll(64)
		require.NoError(b.t, err)
		n := 0
		require.NoError(b.t, raw.Read(func(fd uintptr) bool {
			n, err = unix.Read(int(fd), chunk)
			return true
		}))
		if err != nil && !errors.Is(err, syscall.EAGAIN) || err == nil && n == 0 {
			return true
		}
		quiet++
		if n > 0 {
			*out, quiet = append(*out, chunk[:n]...), 0
		}
	}
	return false
}

// output compares what the rail has sent.
func (b *bench) output(out []byte, want tcpmodel.Result) {
	var ack uint64
	for len(out) > 0 {
		require.GreaterOrEqual(b.t, len(out), tcpmodel.HeaderLen)
		h, ok := tcpmodel.DecodeHeader(out)
		require.True(b.t, ok)
		n := tcpmodel.HeaderLen + int(h.Segments)*tcpmodel.SegmentLen
		body := out[n : n+int(h.Len)]
		require.GreaterOrEqual(b.t, h.Ack, ack)
		ack = h.Ack
		switch h.Op {
		case tcpmodel.Answer:
			require.NotEmpty(b.t, want.Answers)
			a := want.Answers[0]
			if h.Flags&tcpmodel.Packed != 0 {
				var err error
				body, err = tcpmodel.Unpacked(body, len(body), len(a.Bytes))
				require.NoError(b.t, err)
			}
			require.Equal(b.t, tcpmodel.Header{Op: tcpmodel.Answer, Flags: h.Flags & tcpmodel.Packed, Len: h.Len, ID: a.ID, Status: uint32(a.Status), Ack: h.Ack}, h)
			require.Len(b.t, body, len(a.Bytes))
			want.Answers = want.Answers[1:]
		case tcpmodel.Refused:
			require.Equal(b.t, want.Refusal, &h)
			want.Refusal = nil
		}
		out = out[n+int(h.Len):]
	}
	require.Empty(b.t, want.Answers)
	require.Nil(b.t, want.Refusal)
	require.LessOrEqual(b.t, ack, want.Ack)
}

// finish closes both ends. All operations end with that.
func (b *bench) finish(c *sock.Conn, peer *net.TCPConn) {
	_ = peer.Close()
	c.Close()
	for n := 1; n > 0; {
		comps, err := b.d.Poll(64)
		require.NoError(b.t, err)
		n = len(comps)
	}
}

// sample makes a conversation: mostly right frames, changed here and there.
func sample(rnd *rand.Rand) (out []byte) {
	seq, mistakes := uint64(0), rnd.IntN(3)
	for range 1 + rnd.IntN(8) {
		i := rnd.IntN(3)
		seg := tcpmodel.Segment{Key: keyOf(i), Addr: tcpmodel.At(uint32(i), uint64(rnd.IntN(regionLen-100))), Len: uint32(rnd.IntN(100))}
		if rnd.IntN(8) == 0 {
			seg.Addr = tcpmodel.At(uint32(i), regionLen-uint64(seg.Len)+uint64(rnd.IntN(3)))
		}
		var f tcpmodel.Frame
		switch rnd.IntN(7) {
		case 0, 1, 2:
			seq++
			segs := []tcpmodel.Segment{seg, seg}[:1+rnd.IntN(2)]
			f = tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Write, Flags: tcpmodel.Ask, Seq: seq}, bytes.Repeat([]byte{byte(seq)}, len(segs)*int(seg.Len)), segs...)
		case 3:
			seq++
			f = tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Send, Seq: seq}, make([]byte, rnd.IntN(1100)))
		case 4:
			f = tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Read, ID: rnd.Uint32()}, nil, seg)
		case 5:
			f = tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Answer, ID: ownRead}, make([]byte, ownBytes))
		default:
			f = tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Ack + tcpmodel.Op(rnd.IntN(3)), Seq: 1, Status: uint32(syscall.EACCES)}, nil)
		}
		out = append(out, f.Encode()...)
	}
	for range mistakes {
		out[rnd.IntN(len(out))] ^= 1 << rnd.IntN(8)
	}
	return out
}

// conversations feeds a rail by seed: right conversations and changed ones, in pieces. seal puts a piece into records; nil: none.
func conversations(t *testing.T, packs bool, stream uint64, cuts []int, seal func(rnd *rand.Rand) func(piece []byte) []byte) {
	t.Parallel()
	b, sample := newBench(t, packs), sample
	if packs {
		sample = packedSample
	}
	n := uint64(5000)
	switch {
	case testing.Short() && packs: // the model's codec works bit by bit
		n = 150
	case testing.Short():
		n = 500
	}
	for seed := range n {
		rnd := rand.New(rand.NewPCG(seed, stream))
		receives, cut, text := rnd.IntN(4), cuts[rnd.IntN(len(cuts))], sample(rnd)
		t.Logf("seed %d", seed)
		b.feed(receives, cut, text, seal(rnd))
	}
}

// TestRandomFrames: conversations do in a rail what they do in the tcpmodel.
func TestRandomFrames(t *testing.T) {
	conversations(t, false, 3, []int{1, 7, 100, 4000}, inClear)
}

func inClear(*rand.Rand) func([]byte) []byte { return nil }

// TestRandomRecords: the same with records that are cut anywhere, and keys that change.
func TestRandomRecords(t *testing.T) {
	conversations(t, false, 6, []int{3, 7, 100, 4000}, inRecords)
}

func inRecords(rnd *rand.Rand) func([]byte) []byte {
	r := records()
	return func(piece []byte) []byte { return r.Seal(piece, rnd.IntN(9) == 0) }
}

// FuzzFrames: whatever a peer sends, a rail does what the model does, and writes nowhere else.
func FuzzFrames(f *testing.F) {
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		f.Add(byte(rnd.IntN(4)), byte(rnd.IntN(256)), sample(rnd))
	}
	b := newBench(f, false)
	f.Fuzz(func(t *testing.T, receives, cut byte, text []byte) {
		b.t = t
		text = text[:min(len(text), 16<<10)]
		b.feed(int(receives)%4, max(1+16*int(cut), len(text)/32), text, nil)
	})
}

// FuzzRecords: whatever a peer sends instead of records, or inside them, a rail lives.
func FuzzRecords(f *testing.F) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		f.Add(byte(rnd.IntN(256)), seed%2 == 0, sample(rnd))
	}
	b := newBench(f, false)
	f.Fuzz(func(t *testing.T, cut byte, whole bool, text []byte) {
		b.t = t
		text = text[:min(len(text), 16<<10)]
		if whole {
			r := records()
			b.feed(2, max(1+16*int(cut), len(text)/32), text, func(piece []byte) []byte { return r.Seal(piece, false) })
			return
		}
		before := bytes.Clone(b.mem)
		c, peer := b.pair(true)
		defer b.finish(c, peer)
		_, err := peer.Write(text)
		require.NoError(t, err)
		var out []byte
		b.drain(peer, &out, false)
		require.Empty(t, out)
		pattern.Same(t, before, b.mem)
	})
}
