package tcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/internal/pattern"
	"gorail/test/drive"
	"gorail/test/seeds"
)

// The memory of a party: what it sends, two halves that it receives into, and messages.
const (
	half       = 2 << 20
	lowAt      = half // registered on its own, and deregistered in the middle of frames
	highAt     = 2 * half
	messagesAt = 3 * half
	partyMem   = 4 * half
	receives   = 16
	slot       = 8 << 10
)

// party is one of two ends that post and poll by a schedule.
type party struct {
	*node
	rnd       *rand.Rand
	other     *party
	ep        provider.Endpoint
	source    provider.MR // all regions: of this party, for the other
	low, high provider.MR
	fd        atomic.Int32 // of this life's connection
	at        [2]int       // where the next range of low and high begins
	ranges    [2][][2]int  // of operations, in low and high
	posts     []*post      // of this life
	byID      map[uint64]*post
	sent, got uint64 // messages
	proved    int    // of other.posts: those before the last message that came
	failing   bool   // something was ended: operations may fail
	most      int
}

// post is a posted operation.
type post struct {
	id      uint64
	kind    int
	from    []byte   // what is to be there
	to      [][]byte // where
	message uint64
	done    bool
}

func newParty(t *testing.T, rnd *rand.Rand, buffer int, encrypted bool) *party {
	p := &party{rnd: rnd, most: 1 << 20}
	if buffer > 0 {
		p.most = 128 << 10
	}
	p.node = newNodeOf(t, partyMem, Options{Encryption: encrypted, tune: func(fd int) {
		if buffer > 0 {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, buffer)
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, max(buffer, 64<<10)) // a smaller window waits 40 ms for each acknowledgement
		}
		p.fd.Store(int32(fd))
	}})
	if encrypted { // keys change all the time
		p.rail.c.Tune(1+rnd.Uint64N(40), 100<<10, uint32(1+rnd.IntN(128))<<10)
	}
	_, _ = rand.NewChaCha8([32]byte{byte(rnd.Uint32())}).Read(p.mem[:half])
	p.source, p.high = p.register(0, half, option.PeersRead), p.register(highAt, half, option.PeersWrite)
	return p
}

// begin begins a life: new endpoints, and nothing received.
func begin(t *testing.T, a, b *party) {
	for _, p := range []*party{a, b} {
		clear(p.mem[half:])
		p.at, p.ranges, p.posts, p.byID = [2]int{}, [2][][2]int{}, nil, map[uint64]*post{}
		p.sent, p.got, p.proved, p.failing = 0, 0, 0, false
		p.fd.Store(-1)
		var err error
		p.low, err = p.rail.Register(drive.Addr(p.mem)+lowAt, half, 0, option.PeersWrite)
		require.NoError(t, err)
		p.ep, err = p.rail.OpenEndpoint()
		require.NoError(t, err)
		p.ep.(provider.Listener).Secure(security(p == a))
	}
	require.NoError(t, a.ep.Connect(b.ep.Addr()))
	require.NoError(t, b.ep.Connect(a.ep.Addr()))
	for end := time.Now().Add(20 * time.Second); a.fd.Load() < 0 || b.fd.Load() < 0; time.Sleep(100 * time.Microsecond) { // an end that never connects waits
		require.True(t, time.Now().Before(end), "no connection")
	}
	for _, p := range []*party{a, b} {
		for i := range receives {
			require.NoError(t, p.receive(uint64(i)))
		}
	}
}

const receiveID = 1 << 40 // and the slot's number above

// receive posts a receive into a slot.
func (p *party) receive(i uint64) error {
	return p.d.Recv(p.ep.Core(), receiveID+i, p.mem[messagesAt+int(i)*slot:][:slot], nil)
}

// length draws the length of an operation: short ones are likely.
func (p *party) length() int {
	return min(p.most, p.rnd.IntN([]int{1, 64, 4096, 64 << 10, 1<<20 + 1}[p.rnd.IntN(5)]))
}

// room takes a range of low or high; nil: it is full.
func (p *party) room(which, n int) []byte {
	start := p.at[which] + p.rnd.IntN(64)
	if start+n > half {
		return nil
	}
	p.at[which] = start + n
	p.ranges[which] = append(p.ranges[which], [2]int{start, start + n})
	return p.mem[half*(1+which)+start:][:n]
}

func offset(of *party, b []byte) uint64 { return drive.Addr(b) - drive.Addr(of.mem) }

// post posts an operation by chance.
func (p *party) post() {
	p.t.Helper()
	o := &post{id: p.id(), kind: []int{drive.Write, drive.Write, drive.WriteUnsignaled, drive.Read, drive.Send}[p.rnd.IntN(5)]}
	if o.kind == drive.Send {
		p.message(o)
		return
	}
	which, left := p.rnd.IntN(2), p.length()
	var segs []drive.Seg
	for n := 1 + p.rnd.IntN(8); n > 0; n-- {
		size := left
		if n > 1 {
			size = p.rnd.IntN(left + 1)
		}
		left -= size
		from := p.rnd.IntN(half - size + 1)
		into, mr := p.other, []provider.MR{p.other.low, p.other.high}[which]
		if o.kind == drive.Read {
			into, mr = p, p.other.source
		}
		to := into.room(which, size)
		if to == nil {
			return
		}
		s := drive.Seg{Len: uint64(size), Key: keyOf(mr)}
		if o.kind == drive.Read {
			s.Local, s.Remote = drive.Addr(to), mr.Base()+uint64(from)
			o.from = append(o.from, p.other.mem[from:from+size]...)
		} else {
			s.Local, s.Remote = drive.Addr(p.mem)+uint64(from), mr.Base()+offset(into, to)-uint64(half*(1+which))
			o.from = append(o.from, p.mem[from:from+size]...)
		}
		segs, o.to = append(segs, s), append(o.to, to)
	}
	p.posted(o, p.d.RMA(p.ep.Core(), o.kind, o.id, segs...))
}

// message sends one while the other end has a receive for it.
func (p *party) message(o *post) {
	if p.sent-p.other.got >= receives || p.at[0] > half-64 {
		return
	}
	text := p.mem[messagesAt+(receives+int(p.sent%receives))*slot:][:8+p.rnd.IntN(slot-8)]
	for _, m := range p.posts { // its memory is in use
		if m.kind == drive.Send && !m.done && m.message%receives == p.sent%receives {
			return
		}
	}
	binary.LittleEndian.PutUint64(text, p.sent)
	o.message, o.from = p.sent, bytes.Clone(text)
	if p.posted(o, p.d.Send(p.ep.Core(), o.id, text, nil)) {
		p.sent++
	}
}

// posted books a post. EAGAIN: the queue is full.
func (p *party) posted(o *post, err error) bool {
	if err != nil {
		require.True(p.t, p.failing || err == syscall.EAGAIN, "%v", err)
		return false
	}
	p.posts = append(p.posts, o)
	p.byID[o.id] = o
	return true
}

// inPlace checks that an operation's bytes are where they belong.
func (o *post) inPlace(t testing.TB) {
	from := o.from
	for _, to := range o.to {
		pattern.Same(t, from[:len(to)], to, "operation %d, kind %d, of %d bytes", o.id, o.kind, len(o.from))
		from = from[len(to):]
	}
}

// step polls once, and checks what has ended.
func (p *party) step() {
	comps, err := p.d.Poll(64)
	require.NoError(p.t, err)
	for _, c := range comps {
		id := c.ID
		if id >= receiveID {
			p.received(id-receiveID, c)
			continue
		}
		o := p.byID[id]
		require.NotNil(p.t, o, "%d was not posted", id)
		require.False(p.t, o.done, "%d completed twice", id)
		o.done = true
		require.True(p.t, c.Err == 0 || p.failing, "operation %d, kind %d: %v", id, o.kind, c.Err)
		if c.Err == 0 && (o.kind == drive.Write || o.kind == drive.Read) {
			o.inPlace(p.t)
		}
	}
}

// received checks a message, and all WRITEs before it.
func (p *party) received(i uint64, c drive.Comp) {
	if c.Err != 0 {
		require.True(p.t, p.failing, "a receive: %v", c.Err)
		return
	}
	text := p.mem[messagesAt+int(i)*slot:][:c.Len]
	require.Equal(p.t, p.got, binary.LittleEndian.Uint64(text), "messages in order")
	for ; ; p.proved++ {
		o := p.other.posts[p.proved]
		if o.kind == drive.Send && o.message == p.got {
			pattern.Same(p.t, o.from, text, "message %d", p.got)
			break
		}
		if o.kind != drive.Send && o.kind != drive.Read {
			o.inPlace(p.t)
		}
	}
	p.got++
	if err := p.receive(i); err != nil {
		require.True(p.t, p.failing, "%v", err)
	}
}

// idle reports whether all operations have ended.
func (p *party) idle() bool {
	for _, o := range p.posts {
		if !o.done {
			return false
		}
	}
	return true
}

func (p *party) String() string {
	open := map[int]int{}
	for _, o := range p.posts {
		if !o.done {
			open[o.kind]++
		}
	}
	return fmt.Sprintf("open by kind: %v of %d, messages sent %d, got %d", open, len(p.posts), p.sent, p.got)
}

// clean checks that nothing lies outside the ranges of operations, and that sources are what they were.
func (p *party) clean(source []byte) {
	p.t.Helper()
	pattern.Same(p.t, source, p.mem[:half], "the source")
	for which, list := range p.ranges {
		at := 0
		for _, r := range append(list, [2]int{half, half}) {
			gap := p.mem[half*(1+which)+at : half*(1+which)+r[0]]
			require.True(p.t, len(bytes.Trim(gap, "\x00")) == 0, "bytes between %d and %d of half %d", at, r[0], which)
			at = r[1]
		}
	}
}

// TestSchedules: two ends post, poll, close, deregister and lose connections by seed. Each operation ends once; success means that
// the bytes are there; a message means that all WRITEs before it are; nothing lands after Close or Deregister.
func TestSchedules(t *testing.T) {
	t.Parallel()
	for seed := range seeds.Count(t, 8, 300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { schedule(t, seed, false) })
	}
}

// TestSchedulesEncrypted: the same with records.
func TestSchedulesEncrypted(t *testing.T) {
	t.Parallel()
	for seed := range seeds.Count(t, 4, 300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { schedule(t, seed, true) })
	}
}

func schedule(t *testing.T, seed uint64, encrypted bool) {
	rnd := rand.New(rand.NewPCG(seed, 17)) // the schedule; what the network does between is its own
	buffer := []int{0, 1, 16 << 10, 1 << 10}[seed%4]
	a, b := newParty(t, rnd, buffer, encrypted), newParty(t, rnd, buffer, encrypted)
	a.other, b.other = b, a
	sources := [2][]byte{bytes.Clone(a.mem[:half]), bytes.Clone(b.mem[:half])}
	for range 4 {
		life(t, rnd, a, b)
		a.clean(sources[0])
		b.clean(sources[1])
	}
}

// life is that of one connection.
func life(t *testing.T, rnd *rand.Rand, a, b *party) {
	begin(t, a, b)
	both := [2]*party{a, b}
	fault, when := rnd.IntN(5), rnd.IntN(200)
	for i := range 200 {
		p := both[rnd.IntN(2)]
		if rnd.IntN(3) > 0 {
			p.post()
		} else {
			p.step()
		}
		if i == when {
			strike(t, fault, p)
		}
	}
	for end := time.Now().Add(10 * time.Second); !a.idle() || !b.idle() || !a.failing && (a.got < b.sent || b.got < a.sent); {
		require.True(t, time.Now().Before(end), "operations or messages that do not end: fault %d; %s; %s", fault, a, b)
		a.step()
		b.step()
	}
	for _, p := range both {
		require.NoError(t, p.ep.Close())
		p.failing = true
	}
	for range 4 {
		a.step()
		b.step()
	}
	for _, p := range both {
		require.NoError(t, p.low.Close())
	}
}

// strike lets something happen to one end.
func strike(t *testing.T, fault int, p *party) {
	if fault > 2 {
		return
	}
	p.failing, p.other.failing = true, true
	switch fault {
	case 0: // nothing is touched after Close
		require.NoError(t, p.ep.Close())
		before := bytes.Clone(p.mem[:messagesAt])
		for range 30 {
			p.step()
			p.other.step()
		}
		pattern.Same(t, before, p.mem[:messagesAt], "memory changed after Close")
		require.True(t, p.idle(), "after Close all operations have ended")
		p.ep, _ = p.rail.OpenEndpoint() // for what the schedule still posts
	case 1: // nothing lands after Deregister
		require.NoError(t, p.low.Close())
		before := bytes.Clone(p.mem[lowAt : lowAt+half])
		reads := false
		for _, o := range p.posts { // READs of its own go on
			reads = reads || o.kind == drive.Read && !o.done
		}
		for range 30 {
			p.step()
			p.other.step()
		}
		require.True(t, reads || bytes.Equal(before, p.mem[lowAt:lowAt+half]), "memory changed after Deregister")
	case 2: // the network ends the connection
		_ = unix.Shutdown(int(p.fd.Load()), unix.SHUT_RDWR)
	}
}

// TestBothWays: both ends post 64 MiB before either polls.
func TestBothWays(t *testing.T) {
	t.Parallel()
	a, b := newNode(t, 64<<20, nil), newNode(t, 64<<20, nil)
	ma, mb := a.register(0, 64<<20, option.PeersBoth), b.register(0, 64<<20, option.PeersBoth)
	ea, eb := join(t, a, b)
	for i := range 64 {
		id := uint64(i)
		seg := drive.Seg{Local: drive.Addr(a.mem) + id<<20, Remote: mb.Base() + id<<20, Len: 1 << 20, Key: keyOf(mb)}
		require.NoError(t, a.d.RMA(ea.Core(), drive.Write, id, seg))
		seg = drive.Seg{Local: drive.Addr(b.mem) + id<<20, Remote: ma.Base() + id<<20, Len: 1 << 20, Key: keyOf(ma)}
		require.NoError(t, b.d.RMA(eb.Core(), drive.Write, id, seg))
	}
	a.until("64 MiB each way", func() bool { b.poll(); return len(a.done) == 64 && len(b.done) == 64 })
	for id := range uint64(64) {
		require.Zero(t, a.done[id].Err)
		require.Zero(t, b.done[id].Err)
	}
}
