package tcp

import (
	"bytes"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/internal/pattern"
	"gorail/test/drive"
	"gorail/test/tcpmodel"
)

// rules has a victim: a rail with regions, an honest peer, and a hostile peer for one case.
type rules struct {
	*node
	whole, readable, writable, edge, dead provider.MR // readable, writable: by peers only that; edge: up to a page of no one
	honest                                *node
	honestEP, ownEP                       provider.Endpoint
	honestMR                              provider.MR
}

const (
	wholeAt, wholeLen = 64 << 10, 64 << 10
	edgeLen           = 64 << 10
)

func newRules(t *testing.T, o Options) *rules {
	v := &rules{node: newNodeOf(t, nodeMem, o), honest: newNodeOf(t, nodeMem, o)}
	v.readable = v.register(0, 16<<10, option.PeersRead)
	v.writable = v.register(32<<10, 16<<10, option.PeersWrite)
	v.whole = v.register(wholeAt, wholeLen, option.PeersBoth)
	v.edge = v.register(nodeMem-edgeLen, edgeLen, option.PeersBoth)
	v.dead = v.register(wholeAt, wholeLen, option.PeersBoth)
	require.NoError(t, v.dead.Close())
	v.honestMR = v.honest.register(0, nodeMem, option.PeersBoth)
	v.honestEP, v.ownEP = join(t, v.honest, v.node)
	return v
}

// join connects two nodes. The first dials.
func join(t testing.TB, a, b *node) (ea, eb provider.Endpoint) {
	t.Helper()
	open := func(n *node, initiator bool) provider.Endpoint {
		e, err := n.rail.OpenEndpoint()
		require.NoError(t, err)
		e.(provider.Listener).Secure(security(initiator))
		t.Cleanup(func() { require.NoError(t, e.Close()) })
		return e
	}
	ea, eb = open(a, true), open(b, false)
	require.NoError(t, ea.Connect(eb.Addr()))
	require.NoError(t, eb.Connect(ea.Addr()))
	return ea, eb
}

// works checks that the honest peer still reaches the victim.
func (v *rules) works() {
	v.t.Helper()
	copy(v.honest.mem, bytes.Repeat([]byte{byte(v.next)}, 4096))
	id := v.honest.id()
	require.NoError(v.t, v.honest.d.RMA(v.honestEP.Core(), drive.Write, id, drive.Seg{Local: drive.Addr(v.honest.mem),
		Remote: v.whole.Base() + wholeLen - 4096, Len: 4096, Key: keyOf(v.whole)}))
	v.until("a WRITE of the honest peer", func() bool { v.honest.poll(); _, ok := v.honest.done[id]; return ok })
	require.Zero(v.t, v.honest.done[id].Err)
	pattern.Same(v.t, v.honest.mem[:4096], v.mem[wholeAt+wholeLen-4096:wholeAt+wholeLen])
}

func (v *rules) seg(m provider.MR, offset uint64, n uint32) tcpmodel.Segment {
	return tcpmodel.Segment{Key: keyOf(m), Addr: m.Base() + offset, Len: n}
}

// write is a WRITE of one segment that breaks no rule.
func (v *rules) write(seq uint64, n int) tcpmodel.Frame {
	return tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Write, Flags: tcpmodel.Ask, Seq: seq}, bytes.Repeat([]byte{0xee}, n), v.seg(v.whole, 0, uint32(n)))
}

func message(seq uint64, n int) tcpmodel.Frame {
	return tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Send, Flags: tcpmodel.Ask, Seq: seq}, make([]byte, n))
}

func (v *rules) read(id uint32, m provider.MR, offset uint64, n uint32) tcpmodel.Frame {
	return tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Read, ID: id}, nil, v.seg(m, offset, n))
}

// post posts an operation of the victim's to the hostile peer.
func (v *rules) post(s *hostilePeer, kind, n int) (id uint64) {
	v.t.Helper()
	id = v.id()
	seg := drive.Seg{Local: drive.Addr(v.mem) + 16<<10, Remote: tcpmodel.At(3, 0), Len: uint64(n), Key: 9}
	if kind == drive.Send {
		require.NoError(v.t, v.d.Send(s.ep.Core(), id, v.mem[16<<10:16<<10+n], nil))
	} else {
		require.NoError(v.t, v.d.RMA(s.ep.Core(), kind, id, seg))
	}
	return id
}

func (v *rules) result(id uint64) syscall.Errno {
	v.t.Helper()
	v.until("a completion", func() bool { _, ok := v.done[id]; return ok })
	return v.done[id].Err
}

type rule struct {
	name   string
	broken bool // the victim counts a broken rule, and ends the connection
	do     func(v *rules, s *hostilePeer)
}

// ends is a rule whose breach is a list of frames.
func ends(name string, frames func(v *rules) []tcpmodel.Frame) rule {
	return rule{name, true, func(v *rules, s *hostilePeer) { s.send(frames(v)...) }}
}

// one is a rule that a good WRITE, changed, breaks.
func one(name string, change func(f *tcpmodel.Frame)) rule {
	return ends(name, func(v *rules) []tcpmodel.Frame {
		f := v.write(1, 64)
		change(&f)
		return []tcpmodel.Frame{f}
	})
}

// TestBrokenRules: a peer with valid secrets breaks one rule after the other. Its connection ends, or it gets the answer that the
// protocol has for it. No byte of the victim's memory changes, no descriptor stays, and another connection goes on.
func TestBrokenRules(t *testing.T) { // not parallel: it counts the descriptors of the process
	unasked := one("a packed body", func(f *tcpmodel.Frame) { packs(f, func(b []byte) []byte { return b }) })
	brokenRules(t, newRules(t, Options{}), unasked)
}

// TestBrokenRulesEncrypted: inside records the rules are the same.
func TestBrokenRulesEncrypted(t *testing.T) { brokenRules(t, newRules(t, Options{Encryption: true})) }

func brokenRules(t *testing.T, v *rules, cases ...rule) {
	v.works()
	before, fds := bytes.Clone(v.mem), descriptors(t)
	for _, list := range [][]rule{headerRules(), writeRules(), refusals(), readRules(), ackRules(), messageRules(), byeRules()} {
		cases = append(cases, list...)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			v.t, v.honest.t = t, t
			s := v.meet(t)
			defer s.close()
			broken := v.rail.c.Counters().Broken
			c.do(v, s)
			if c.broken {
				s.ended()
				require.Equal(t, broken+1, v.rail.c.Counters().Broken)
				require.NotEqual(t, syscall.EAGAIN, v.d.Recv(s.ep.Core(), v.id(), v.mem[:8], nil), "the end is an error for good")
			} else {
				require.Equal(t, broken, v.rail.c.Counters().Broken)
			}
			copy(before[wholeAt+wholeLen-4096:], v.mem[wholeAt+wholeLen-4096:wholeAt+wholeLen]) // the honest peer's
			pattern.Same(t, before, v.mem, "the victim's memory")
			v.works()
			copy(before[wholeAt+wholeLen-4096:], v.mem[wholeAt+wholeLen-4096:wholeAt+wholeLen])
		})
	}
	v.t, v.honest.t = t, t
	for end := time.Now().Add(10 * time.Second); descriptors(t) > fds; time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(end), "%d descriptors, %d before", descriptors(t), fds)
	}
}

func descriptors(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list)
}

func headerRules() (out []rule) {
	for _, b := range []byte{0, 0xa0, 0xa8, 0xaf, 0xb1, 0x51, 0xff, 'G'} {
		out = append(out, rule{"first byte " + strings.ToUpper(string("0123456789abcdef"[b>>4])+string("0123456789abcdef"[b&15])), true,
			func(v *rules, s *hostilePeer) {
				f := v.write(1, 64).Encode()
				f[0] = b
				s.raw(f)
			}})
	}
	out = append(out,
		one("length of 2^32-1", func(f *tcpmodel.Frame) { f.Len = math.MaxUint32 }),
		one("length of 1 MiB + 1", func(f *tcpmodel.Frame) { f.Len = tcpmodel.MaxBody + 1 }),
		one("length beyond the segments", func(f *tcpmodel.Frame) { f.Len++ }),
		one("length short of the segments", func(f *tcpmodel.Frame) { f.Len-- }),
		one("no segments", func(f *tcpmodel.Frame) { f.Segments, f.Segs = 0, nil }),
		one("257 segments", func(f *tcpmodel.Frame) { f.Segments = tcpmodel.WriteSegments + 1 }),
		one("65535 segments", func(f *tcpmodel.Frame) { f.Segments = math.MaxUint16 }),
		one("seq 0", func(f *tcpmodel.Frame) { f.Seq = 0 }),
		one("seq 2", func(f *tcpmodel.Frame) { f.Seq = 2 }),
		one("seq 2^64-1", func(f *tcpmodel.Frame) { f.Seq = math.MaxUint64 }),
		one("ack 1", func(f *tcpmodel.Frame) { f.Ack = 1 }),
		one("ack 2^64-1", func(f *tcpmodel.Frame) { f.Ack = math.MaxUint64 }),
	)
	for _, op := range []tcpmodel.Op{tcpmodel.Ack, tcpmodel.Refused, tcpmodel.Goodbye} {
		out = append(out, ends("a body without use", func(*rules) []tcpmodel.Frame {
			return []tcpmodel.Frame{tcpmodel.New(tcpmodel.Header{Op: op}, make([]byte, 8))}
		}),
			ends("segments without use", func(v *rules) []tcpmodel.Frame {
				return []tcpmodel.Frame{tcpmodel.New(tcpmodel.Header{Op: op}, nil, v.seg(v.whole, 0, 8))}
			}))
	}
	return out
}

func writeRules() []rule {
	wrap := func(lens ...uint32) rule {
		return ends("segments whose sum wraps", func(v *rules) []tcpmodel.Frame {
			f := v.write(1, 64)
			f.Segs = nil
			for _, n := range lens {
				f.Segs = append(f.Segs, v.seg(v.whole, 0, n))
			}
			f.Segments = uint16(len(f.Segs))
			return []tcpmodel.Frame{f}
		})
	}
	return []rule{
		wrap(math.MaxUint32, 65),
		wrap(1<<31, 1<<31, 64),
		one("a segment of 2^32-8", func(f *tcpmodel.Frame) { f.Segs[0].Len = math.MaxUint32 - 7 }),
		ends("the seq of before", func(v *rules) []tcpmodel.Frame { return []tcpmodel.Frame{message(1, 8), v.write(1, 8)} }),
		ends("a seq left out", func(v *rules) []tcpmodel.Frame { return []tcpmodel.Frame{message(1, 8), v.write(3, 8)} }),
	}
}

// refusals: a range that is not the peer's to write. The connection takes in nothing any more; a message behind it neither.
func refusals() (out []rule) {
	add := func(name string, status syscall.Errno, index uint32, segs func(v *rules) []tcpmodel.Segment) {
		out = append(out, rule{"WRITE with " + name, false, func(v *rules, s *hostilePeer) {
			v.recv(s, 64)
			list := segs(v)
			total := 0
			for _, g := range list {
				total += int(g.Len)
			}
			s.send(tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Write, Flags: tcpmodel.Ask, Seq: 1}, bytes.Repeat([]byte{0xee}, total), list...), message(2, 8), v.write(3, 8))
			f := s.want(tcpmodel.Refused)
			require.Equal(v.t, tcpmodel.Header{Op: tcpmodel.Refused, ID: index, Status: uint32(status), Seq: 1}, f.Header)
			s.send(v.write(2, 8), tcpmodel.New(tcpmodel.Header{Op: 15}, nil))
			for range 20 {
				s.look()
			}
			require.Nil(v.t, s.parse(), "after a refusal")
		}})
		out = append(out, rule{"READ with " + name, false, func(v *rules, s *hostilePeer) {
			list := segs(v)
			for i := range list {
				if list[i].Key == keyOf(v.readable) {
					list[i] = v.seg(v.writable, 0, 8)
				}
			}
			s.send(tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Read, ID: 77}, nil, list...), v.read(78, v.readable, 1, 100))
			f := s.want(tcpmodel.Answer)
			require.Equal(v.t, tcpmodel.Header{Op: tcpmodel.Answer, ID: 77, Status: uint32(status)}, f.Header)
			f = s.want(tcpmodel.Answer)
			require.Equal(v.t, uint32(78), f.ID, "the connection lives")
			require.Equal(v.t, v.mem[1:101], f.Body)
		}})
	}
	of := func(change func(v *rules, g *tcpmodel.Segment)) func(v *rules) []tcpmodel.Segment {
		return func(v *rules) []tcpmodel.Segment {
			g := v.seg(v.whole, 0, 64)
			change(v, &g)
			return []tcpmodel.Segment{g}
		}
	}
	add("a wrong key", syscall.ESTALE, 0, of(func(_ *rules, g *tcpmodel.Segment) { g.Key ^= 1 << 63 }))
	add("a key of 0", syscall.ESTALE, 0, of(func(_ *rules, g *tcpmodel.Segment) { g.Key = 0 }))
	add("the key of the table", syscall.ESTALE, 0, of(func(v *rules, g *tcpmodel.Segment) { g.Key = v.whole.(*region).key }))
	add("another session's key", syscall.ESTALE, 0, of(func(v *rules, g *tcpmodel.Segment) { g.Key = v.whole.Key([16]byte{1}) }))
	add("another region's key", syscall.ESTALE, 0, of(func(v *rules, g *tcpmodel.Segment) { g.Key = keyOf(v.edge) }))
	add("a dead region", syscall.ESTALE, 0, of(func(v *rules, g *tcpmodel.Segment) { *g = v.seg(v.dead, 0, 64) }))
	add("a region that never was", syscall.ESTALE, 0, of(func(_ *rules, g *tcpmodel.Segment) { g.Addr = tcpmodel.At(1<<20-1, 0) }))
	add("the next region", syscall.ESTALE, 0, of(func(_ *rules, g *tcpmodel.Segment) { g.Addr += 1 << tcpmodel.OffsetBits }))
	add("the wrong right", syscall.EACCES, 0, of(func(v *rules, g *tcpmodel.Segment) { *g = v.seg(v.readable, 0, 64) }))
	add("one byte beyond the end", syscall.EFAULT, 0, of(func(v *rules, g *tcpmodel.Segment) { *g = v.seg(v.edge, edgeLen-63, 64) }))
	add("an offset at the end", syscall.EFAULT, 0, of(func(v *rules, g *tcpmodel.Segment) { *g = v.seg(v.edge, edgeLen, 1) }))
	add("nothing beyond the end", syscall.EFAULT, 0, of(func(v *rules, g *tcpmodel.Segment) { *g = v.seg(v.edge, edgeLen+1, 0) }))
	add("the largest offset", syscall.EFAULT, 0, of(func(v *rules, g *tcpmodel.Segment) { *g = v.seg(v.edge, 1<<tcpmodel.OffsetBits-8, 64) }))
	add("a good segment before a bad one", syscall.EFAULT, 1, func(v *rules) []tcpmodel.Segment {
		return []tcpmodel.Segment{v.seg(v.whole, 0, 64), v.seg(v.edge, edgeLen-1, 2)}
	})
	add("the last of eight bad", syscall.ESTALE, 7, func(v *rules) []tcpmodel.Segment {
		var list []tcpmodel.Segment
		for range 8 {
			list = append(list, v.seg(v.whole, 0, 8))
		}
		list[7].Key++
		return list
	})
	return out
}

// recv posts a receive of the victim's.
func (v *rules) recv(s *hostilePeer, n int) (id uint64) {
	v.t.Helper()
	id = v.id()
	require.NoError(v.t, v.d.Recv(s.ep.Core(), id, v.mem[16<<10:16<<10+n], nil))
	return id
}
