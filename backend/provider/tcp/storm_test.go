package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/access"
	"gorail/backend/provider/fake/drive"
	"gorail/backend/provider/tcp/handshake"
	"gorail/backend/provider/tcp/model"
	"gorail/internal/procstat"
)

// stormFrames is how many frames TestFrameStorm sends. GORAIL_FRAMES sets another number.
func stormFrames(t *testing.T) int {
	t.Helper()
	if s := os.Getenv("GORAIL_FRAMES"); s != "" {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		return n
	}
	if testing.Short() {
		return 20_000
	}
	return 200_000
}

// The storm's memory: three regions, the first and the last up to a page of no one, and buffers of the victim's own.
const (
	stormMem               = 64 << 10
	stormOwn               = 32 << 10 // READ of our own, then receives
	stormOwnEnd            = 40 << 10
	stormReceives          = 4
	stormReceive, stormAsk = 1024, 64 // bytes of a receive; of the READ
)

var stormRegions = [3]struct {
	at, size int
	peers    access.Rights
}{{0, 4096, access.Both}, {12 << 10, 4000, access.Read}, {stormMem - 5000, 5000, access.Write}}

var canary = []byte("\xc5\xd6\xe7\xf8\x89\x9a\xab\xbc") // where no READ may look

// storm is a victim that strangers send frames to: the memory is compared with the model's.
type storm struct {
	*node
	rnd    *rand.Rand
	keys   [3]uint64
	shadow []byte
	posted map[uint64]bool // receives

	frames, changed, conns, before, refused, broken int // before: frames before the MAC
}

// TestFrameStorm: strangers send right, changed and random frames: with the link's secret and without, with keys of regions and
// without. The rail does what the model does. No byte outside what peers may write changes, no byte outside what they may read comes
// back, and afterwards no descriptor and no memory is kept.
//
// Not parallel: it counts descriptors.
func TestFrameStorm(t *testing.T) {
	frames := stormFrames(t)
	s := &storm{rnd: rand.New(rand.NewPCG(7, uint64(frames)))}
	fds, err := procstat.FDs()
	require.NoError(t, err)
	t.Run("storm", func(t *testing.T) {
		s.open(t)
		var rss int64
		for began := time.Now(); s.frames < frames; {
			if s.rnd.IntN(8) == 0 {
				s.unproved()
			}
			s.conversation(s.rnd.IntN(8) > 0)
			if u, err := procstat.Self(); rss == 0 && s.frames > frames/10 {
				require.NoError(t, err)
				rss = u.RSSKiB
			}
			if t.Failed() {
				t.FailNow()
			}
			if s.frames >= frames {
				t.Logf("%d frames over %d connections in %v: %d were changed or random, %d connections broke a rule, %d had a WRITE refused; %d frames before the MAC",
					s.frames, s.conns, time.Since(began).Round(time.Millisecond), s.changed, s.broken, s.refused, s.before)
			}
		}
		u, err := procstat.Self()
		require.NoError(t, err)
		t.Logf("resident memory: %d KiB after a tenth, %d KiB at the end", rss, u.RSSKiB)
		require.Less(t, u.RSSKiB-rss, int64(16<<10), "KiB that were kept")
		require.GreaterOrEqual(t, s.frames, frames)
		require.Positive(t, min(s.changed, s.broken, s.refused, s.before)) // each of them
	})
	require.Eventually(t, func() bool { // the rail is closed; the last stranger's own end may close a moment later
		now, err := procstat.FDs()
		require.NoError(t, err)
		return len(now) <= len(fds)
	}, 10*time.Second, time.Millisecond, "descriptors were kept")
}

func (s *storm) open(t *testing.T) {
	s.node = newNode(t, stormMem, nil)
	for i := 0; i < len(s.mem); i += len(canary) {
		copy(s.mem[i:], canary)
	}
	for i, r := range stormRegions {
		if r.peers.Allow(access.Read) {
			clear(s.mem[r.at:][:r.size])
		}
		s.keys[i] = keyOf(s.register(r.at, r.size, r.peers))
	}
	s.shadow = bytes.Clone(s.mem)
}

// poll takes completions. Receives may be posted again.
func (s *storm) poll() {
	s.node.poll()
	for id := range s.posted {
		if _, ok := s.done[id]; ok {
			delete(s.posted, id)
		}
	}
}

// conversation is one connection with a proved peer, which knows keys of regions or does not.
func (s *storm) conversation(keys bool) {
	v := s.meet(s.t)
	s.conns++
	defer func() {
		_ = v.c.SetLinger(0) // no thousands of ports that wait
		_ = v.c.Close()
		require.NoError(s.t, v.ep.Close())
		s.until("the end of all operations", func() bool { s.poll(); return len(s.posted) == 0 })
		clear(s.done)
	}()
	end := &model.End{Regions: map[uint32]model.Region{}, Sent: 1, Reads: map[uint32]uint64{1: stormAsk}}
	for i, r := range stormRegions {
		end.Regions[uint32(i)] = model.Region{Key: s.keys[i], Mem: s.shadow[r.at:][:r.size], PeersRead: r.peers.Allow(access.Read),
			PeersWrite: r.peers.Allow(access.Write)}
	}
	s.posted = map[uint64]bool{}
	core, own := v.ep.Core(), drive.Seg{Local: drive.Addr(s.mem) + stormOwn, Len: stormAsk}
	s.until("the connection is there", func() bool { return s.d.RMA(core, drive.Read, s.id(), own) == nil })
	require.NoError(s.t, s.d.RMA(core, drive.Write, s.id(), own))
	v.want(model.Read)
	v.want(model.Write)
	_ = v.c.SetReadDeadline(time.Time{})
	g := &stormPeer{storm: s, proved: keys}
	for range 1 + s.rnd.IntN(64) {
		if !end.Partial() { // else its receive may be taken
			for i := len(s.posted); i < stormReceives; i++ {
				id := s.id()
				at := stormOwn + stormReceive*(1+int(id)%stormReceives)
				require.NoError(s.t, s.d.Recv(core, id, s.mem[at:at+stormReceive], nil))
				s.posted[id] = true
				end.Post(stormReceive)
			}
		}
		text, was := g.chunk(), end.Frames
		want, err := end.Take(text)
		end.Answered()
		s.frames += end.Frames - was
		v.raw(text)
		ended := err != nil || want.Peer != nil
		s.output(v, want, ended)
		s.until("bytes where the model has them", func() bool { return s.same() })
		if want.Refusal != nil {
			s.refused++
		}
		if ended {
			s.broken++
		}
		if ended || want.Refusal != nil {
			return
		}
	}
}

// same compares all memory but the victim's own buffers.
func (s *storm) same() bool {
	return bytes.Equal(s.mem[:stormOwn], s.shadow[:stormOwn]) && bytes.Equal(s.mem[stormOwnEnd:], s.shadow[stormOwnEnd:])
}

// output receives what the rail sends, and compares it with what the model says.
func (s *storm) output(v *stranger, want model.Result, ended bool) {
	raw, err := v.c.SyscallConn()
	require.NoError(s.t, err)
	chunk := make([]byte, 64<<10)
	answers, refusal := want.Answers, want.Refusal
	s.until("answers, a refusal or the end", func() bool {
		s.poll()
		n, rerr := 0, error(nil)
		if v.end == nil {
			require.NoError(s.t, raw.Read(func(fd uintptr) bool { n, rerr = unix.Read(int(fd), chunk); return true }))
		}
		if rerr != nil && !errors.Is(rerr, syscall.EAGAIN) || n == 0 && rerr == nil {
			v.end = io.EOF
		}
		v.buf = append(v.buf, chunk[:max(n, 0)]...)
		require.False(s.t, bytes.Contains(v.buf, canary), "bytes came back that no peer may read")
		for f := v.parse(); f != nil; f = v.parse() {
			switch f.Op {
			case model.Answer:
				require.NotEmpty(s.t, answers, "%+v", f.Header)
				a := answers[0]
				require.Equal(s.t, model.Header{Op: model.Answer, Len: uint32(len(a.Bytes)), ID: a.ID, Status: uint32(a.Status), Ack: f.Ack}, f.Header)
				answers = answers[1:]
			case model.Refused:
				require.NotNil(s.t, refusal, "%+v", f.Header)
				require.Equal(s.t, *refusal, f.Header)
				refusal = nil
			}
			require.LessOrEqual(s.t, f.Ack, want.Ack)
		}
		require.False(s.t, v.end != nil && !ended, "the rail ended a connection that broke no rule: %+v", want)
		return ended && v.end != nil || !ended && len(answers) == 0 && refusal == nil
	})
}

// unproved sends frames over a connection without a valid MAC. It ends without a byte.
func (s *storm) unproved() {
	e := s.target()
	defer e.Close()
	to := addrOf(s.t, e)
	from := net.IPv4(127, 0, 0, byte(2+s.rnd.IntN(200)))
	c := dialAt(s.t, to, from.String())
	_ = c.SetLinger(0)
	opening := handshake.NewOpening(to.Ticket, linkOf(to.Ticket), false)
	switch s.rnd.IntN(4) {
	case 0:
		opening = nil
	case 1:
		opening[s.rnd.IntN(len(opening))] ^= 1 << s.rnd.IntN(8)
	case 2:
		to.Ticket[s.rnd.IntN(16)] ^= 1 << s.rnd.IntN(8)
		opening = handshake.NewOpening(to.Ticket, linkOf(to.Ticket), false)
	default:
		for i := range opening {
			opening[i] = byte(s.rnd.Uint32())
		}
	}
	g := &stormPeer{storm: s, proved: true}
	changed := s.changed
	_, _ = c.Write(append(opening, g.chunk()...)) // it may have ended
	s.changed = changed
	s.before += stormChunk
	silent(s.t, c)
	require.True(s.t, s.same(), "a peer without a MAC has written")
}

const stormChunk = 48 // frames

// stormPeer makes frames that are right up to a change.
type stormPeer struct {
	*storm
	proved   bool // it knows the keys
	seq, ack uint64
}

func (g *stormPeer) chunk() (out []byte) {
	changes := 3 // so that the sum of what READs ask for decides nothing
	for range stormChunk {
		f := g.frame()
		if changes > 0 && g.rnd.IntN(64) == 0 {
			f = g.change(f)
			g.changed++
			changes--
		}
		out = append(out, f...)
	}
	return out
}

func (g *stormPeer) frame() []byte {
	rnd := g.rnd
	if g.ack == 0 && rnd.IntN(64) == 0 {
		g.ack = 1
	}
	kind := rnd.IntN(16)
	segs := make([]model.Segment, 1+rnd.IntN(3))
	for i := range segs {
		k := rnd.IntN(3)
		if kind < 8 {
			k = []int{0, 2}[rnd.IntN(2)]
		}
		n := 1 + rnd.IntN(100)
		segs[i] = model.Segment{Key: g.keys[k], Addr: model.At(uint32(k), uint64(rnd.IntN(stormRegions[k].size-n))), Len: uint32(n)}
		if rnd.IntN(200) == 0 { // to the end of the region, and a byte more or less
			segs[i].Addr = model.At(uint32(k), uint64(stormRegions[k].size-n+rnd.IntN(3)-1))
		}
		if !g.proved {
			segs[i].Key = rnd.Uint64()
		}
	}
	h := model.Header{Ack: g.ack}
	switch {
	case kind < 8 && (g.proved || rnd.IntN(64) == 0):
		g.seq++
		h.Op, h.Flags, h.Seq = model.Write, uint8(rnd.IntN(2)), g.seq
		n := 0
		for _, s := range segs {
			n += int(s.Len)
		}
		return model.New(h, bytes.Repeat([]byte{byte(g.seq) & 0x7f}, n), segs...).Encode()
	case kind < 13:
		h.Op, h.ID = model.Read, rnd.Uint32()
		return model.New(h, nil, segs...).Encode()
	case kind == 13:
		g.seq++
		h.Op, h.Flags, h.Seq = model.Send, uint8(rnd.IntN(2)), g.seq
		return model.New(h, bytes.Repeat([]byte{0x33}, rnd.IntN(stormReceive))).Encode()
	}
	h.Op, h.Seq, h.ID = model.Ack, rnd.Uint64(), rnd.Uint32()
	return model.New(h, nil).Encode()
}

// change changes a frame: a bit, a field, its length, or all of it.
func (g *stormPeer) change(f []byte) []byte {
	rnd := g.rnd
	odd := [...]uint64{0, 1, 2, 4095, 4096, 4097, 1 << 20, 1<<20 + 1, 1 << 31, 1<<32 - 1, 1<<44 - 1, 1 << 44, 1 << 45, 1<<63 - 1, 1 << 63, 1<<64 - 8, 1<<64 - 1, rnd.Uint64()}
	v := odd[rnd.IntN(len(odd))]
	segs := int(binary.LittleEndian.Uint16(f[2:]))
	switch k := rnd.IntN(9); {
	case k == 0:
		f[rnd.IntN(len(f))] ^= 1 << rnd.IntN(8)
	case k == 1:
		f[rnd.IntN(model.HeaderLen)] = byte(v)
	case k == 2:
		binary.LittleEndian.PutUint32(f[4+4*rnd.IntN(3):], uint32(v))
	case k == 3:
		binary.LittleEndian.PutUint64(f[16+8*rnd.IntN(2):], v)
	case k < 7 && segs > 0:
		at := f[model.HeaderLen+model.SegmentLen*rnd.IntN(segs):]
		switch rnd.IntN(4) {
		case 0:
			binary.LittleEndian.PutUint64(at, v)
		case 1:
			binary.LittleEndian.PutUint64(at[8:], v)
		case 2:
			binary.LittleEndian.PutUint32(at[16:], uint32(v))
		default:
			at[8+rnd.IntN(6)] ^= 1 << rnd.IntN(8)
		}
	case k == 7:
		f = f[:rnd.IntN(len(f))]
	default:
		b := make([]byte, rnd.IntN(200))
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		if len(b) > 0 && rnd.IntN(2) == 0 {
			b[0] = 0xa0 | byte(1+rnd.IntN(7))
		}
		f = append(f, b...)
	}
	return f
}
