package engine

import (
	"math"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/peer"
	"gorail/backend/transfer"
	"gorail/backend/trust"
	"gorail/backend/wire"
	"gorail/test/fake"
)

// liar is a hostile target, with a key and a blob of its own. Its data path is an honest engine's: it hands each Hello on to
// that engine, under its own key, and the frames of both sides, and changes some.
type liar struct {
	t      *testing.T
	ln     net.Listener
	honest wire.ConnBlob
	blob   wire.ConnBlob
	key    *trust.Key
	wg     sync.WaitGroup

	mu      sync.Mutex
	change  func(f wire.Frame) []wire.Frame // what the initiator gets instead of a frame
	silent  func(f wire.Frame) bool         // from this frame of the initiator on it gets nothing
	conns   []net.Conn
	session uint64
	victim  *end
}

// end is the liar's end of one session.
type end struct {
	c *peer.SecureConn

	mu  sync.Mutex
	got uint64 // numbered frames received
}

func (e *end) send(frames ...wire.Frame) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range frames {
		_ = wire.WriteFrame(e.c, f)
	}
}

// read returns the next frame that is not for the connection itself.
func (e *end) read() (wire.Frame, error) {
	for {
		f, err := wire.ReadFrame(e.c, 0)
		if err != nil {
			return nil, err
		}
		if ping, ok := f.(*wire.Ping); ok {
			e.send(&wire.Pong{Seq: ping.Seq, Got: e.got})
		} else if wire.Numbered(f) {
			e.got++
			return f, nil
		} else if _, bye := f.(*wire.Bye); bye {
			return f, nil
		}
	}
}

// newLiar makes a target before an honest engine.
func newLiar(t *testing.T, b *agent) *liar {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	k, err := trust.NewKey()
	require.NoError(t, err)
	l := &liar{t: t, ln: ln, honest: b.conn(), key: k}
	l.blob = l.honest
	l.blob.Pin, l.blob.Engine, l.blob.Agent, l.blob.Token[0] = k.Pin, k.Pin.Engine(), "liar", l.blob.Token[0]+1
	l.blob.Control, l.blob.Process = []string{ln.Addr().String()}, wire.Process{}
	l.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			l.keep(c)
			l.wg.Go(func() { l.serve(c) })
		}
	})
	t.Cleanup(l.close)
	return l
}

func (l *liar) close() {
	l.ln.Close()
	l.mu.Lock()
	for _, c := range l.conns {
		c.Close()
	}
	l.mu.Unlock()
	l.wg.Wait()
}

func (l *liar) keep(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, c)
}

// lies sets what the initiator gets from now on.
func (l *liar) lies(change func(f wire.Frame) []wire.Frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.change = change
}

// quiet sets from which frame of the initiator on the liar says nothing.
func (l *liar) quiet(silent func(f wire.Frame) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = silent
}

func (l *liar) instead(f wire.Frame) []wire.Frame {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.change == nil {
		return []wire.Frame{f}
	}
	return l.change(f)
}

func (l *liar) mute(f wire.Frame) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.silent != nil && l.silent(f)
}

func (l *liar) serve(c net.Conn) {
	defer c.Close()
	o, err := peer.Challenge(c)
	if err != nil {
		return
	}
	if why, err := o.ReadOpen(&l.blob); why != nil || err != nil {
		return
	}
	s, err := o.Accept(&l.blob, l.key, nil)
	if err != nil {
		return
	}
	f, err := wire.ReadFrame(s, 0)
	hello, ok := f.(*wire.Hello)
	if err != nil || !ok {
		return
	}
	l.mu.Lock()
	l.session++
	number := l.session
	l.mu.Unlock()
	there := sayHelloAs("liar", l.honest, l.key, number, hello.Offers)
	if there == nil {
		return
	}
	l.keep(there)
	defer there.Close()
	_ = there.SetDeadline(time.Time{})
	f, err = wire.ReadFrame(there, 0)
	if w, ok := f.(*wire.Welcome); ok && err == nil {
		w.Session, w.Agent = hello.Session, "liar"
	}
	near, far := &end{c: s}, &end{c: there.Conn.(*peer.SecureConn)}
	if err != nil || l.mute(hello) {
		_, _ = c.Read(make([]byte, 1)) // until somebody closes it
		return
	}
	near.send(l.instead(f)...)
	l.mu.Lock()
	l.victim = near
	l.mu.Unlock()
	l.wg.Go(func() {
		defer c.Close()
		for {
			f, err := far.read()
			if err != nil {
				return
			}
			if !l.mute(nil) {
				near.send(l.instead(f)...)
			}
		}
	})
	for {
		f, err := near.read()
		if err != nil {
			return
		}
		if !l.mute(f) {
			far.send(f)
		}
	}
}

// deceived is an honest pair, and a session of the pair's initiator with a liar.
type deceived struct {
	*pair
	t            *testing.T
	h            *harness
	l            *liar
	mine, theirs *memory // the buffers of transfers to the liar; mine is the middle of around
	around       *memory
}

const (
	aroundLen = 192 << 10
	middleLen = 64 << 10
)

// newDeceived makes the initiator and the liar. set tells the liar what to do, before the initiator begins to connect.
func newDeceived(t *testing.T, set func(l *liar), params ...string) *deceived {
	return newDeceivedOn(onFake(t, fake.TCPCaps()), set, params...)
}

// newDeceivedOn is newDeceived on a harness.
func newDeceivedOn(h *harness, set func(l *liar), params ...string) *deceived {
	t := h.TB.(*testing.T)
	p := h.pair(64<<10, append([]string{"xfer_timeout", "3s", "cancel_timeout", "200ms", "peer_timeout", "1s", "connect_timeout", "2s"}, params...)...)
	p.works()
	d := &deceived{pair: p, t: t, h: h, l: newLiar(t, p.b), around: p.a.memory(aroundLen).fill(5)}
	raw, err := d.l.blob.Encode()
	require.NoError(t, err)
	set(d.l)
	require.NoError(t, p.a.LoadConn("liar", raw))
	d.mine = &memory{owner: p.a, b: d.around.b[middleLen : 2*middleLen]}
	d.mine.register()
	d.theirs = d.seen(p.b.memory(middleLen))
	return d
}

// seen loads the metadata of memory of the honest engine as the liar's.
func (d *deceived) seen(m *memory) *memory {
	blob, err := wire.DecodeRegion(m.blob)
	require.NoError(d.t, err)
	blob.Engine = d.l.blob.Engine
	raw, err := blob.Encode()
	require.NoError(d.t, err)
	id, err := d.a.LoadRemote("liar", m.addr(), uint64(len(m.b)), 0, 0, raw)
	require.NoError(d.t, err)
	return &memory{owner: m.owner, b: m.b, md: &metaObject{region: id}, blob: raw}
}

// transfer posts to or from the liar, and returns the transfer's end.
func (d *deceived) transfer(op int) int {
	d.t.Helper()
	x := d.a.prep(op, []Desc{d.mine.desc(0, middleLen)}, []Desc{d.theirs.desc(0, middleLen)}, "liar")
	defer x.release()
	if _, err := x.Post(); err != nil {
		return -1
	}
	return x.wait()
}

// tell sends frames to the initiator, as the session's target.
func (d *deceived) tell(frames ...wire.Frame) {
	d.l.mu.Lock()
	e := d.l.victim
	d.l.mu.Unlock()
	e.send(frames...)
}

// lie is one rule that a target breaks. First, if set, holds from the Welcome on; then, if set, comes after a good transfer.
type lie struct {
	name  string
	first func(f wire.Frame) []wire.Frame
	then  func(d *deceived)
	ends  string // why the initiator ends the session; "": it does not
}

func to[T wire.Frame](change func(f T)) func(f wire.Frame) []wire.Frame {
	return func(f wire.Frame) []wire.Frame {
		if f, ok := f.(T); ok {
			change(f)
		}
		return []wire.Frame{f}
	}
}

func told(name, ends string, frames ...wire.Frame) lie {
	return lie{name: name, then: func(d *deceived) { d.tell(frames...) }, ends: ends}
}

var lies = []lie{
	told("keys that nobody asked for", "not outstanding", &wire.Keys{ID: 99, Entries: wire.KeyEntries{{Known: true, Region: 1, Rails: []wire.RailKey{{Key: 7}}}}}),
	told("no keys", "not outstanding", &wire.Keys{}),
	told("a hello", "sent a frame of type hello", &wire.Hello{}),
	told("a welcome", "sent a frame of type welcome", &wire.Welcome{}),
	told("a reject", "sent a frame of type reject", &wire.Reject{Code: wire.CodeEngine}),
	told("a resumed", "sent a frame of type resumed", &wire.Resumed{}),
	told("a request for keys", "sent a frame of type keys-req", &wire.KeysReq{}),
	told("a fence", "sent a frame of type fence", &wire.Fence{}),
	told("an impossible count", "more than were sent", &wire.Pong{Got: 1 << 40}),
	told("an impossible count in a ping", "more than were sent", &wire.Ping{Got: math.MaxUint64}),
	told("more rails", "", &wire.Wider{}, &wire.Wider{Rails: []wire.Rail{{Number: 0}, {Number: 63}, {Number: 255}}}),
	told("fabric handles that nobody asked for", "", &wire.Handles{ID: 1, List: make([]byte, wire.HandleSize)}, &wire.Handles{}),
	told("a copied without a copy", "", &wire.Copied{ID: 1}, &wire.Copied{ID: 2, Text: "no"}),
	told("a ring that nobody asked for", "", &wire.Ring{ID: 1, Range: wire.Claim{Range: wire.Range{Addr: 4096, Len: 1 << 20}}, Slot: 4096}),
	told("snapshots that nobody asked for", "", &wire.Snapshot{State: wire.SnapshotServing, Links: []wire.LinkView{{State: wire.LinkStopped, Bytes: 1 << 63}}},
		&wire.Snapshot{ID: 1, State: wire.SnapshotNone, Sessions: 1 << 31}),
	told("a drained without a drain", "", &wire.Drained{}, &wire.Drained{Next: math.MaxUint64}),
	told("a fenced without a fence", "", &wire.Fenced{ID: 7, Epoch: 0, NextSeq: math.MaxUint64}, &wire.Fenced{ID: 7, Rail: 200},
		&wire.Fenced{ID: 7, Epoch: math.MaxUint32, Have: []uint64{9, 3, 3}}, &wire.Fenced{Epoch: 77}),
	{name: "a flood of revokes", then: func(d *deceived) {
		for i := range uint64(2000) {
			d.tell(&wire.Revoke{ID: i, Regions: []uint64{i, i << 32, i<<32 | i}})
		}
		d.tell(&wire.Revoke{ID: 1, Regions: make([]uint64, wire.MaxRevoke)})
	}},
	{name: "a flood of requests for fences", then: func(d *deceived) {
		for i := range uint32(50) {
			d.tell(&wire.Fenced{Epoch: i})
		}
	}},
	{name: "fewer offers", first: to(func(w *wire.Welcome) { w.Offers = nil }), ends: "0 endpoints, we offered 1"},
	{name: "more offers", first: to(func(w *wire.Welcome) { w.Offers = append(w.Offers, w.Offers...) }), ends: "2 endpoints, we offered 1"},
	{name: "an empty offer", first: to(func(w *wire.Welcome) { w.Offers[0].Addr = nil }), ends: "could not open its endpoint"},
	{name: "an offer of garbage", first: to(func(w *wire.Welcome) { w.Offers[0].Addr = []byte("garbage") })},
	{name: "a welcome to another session", first: to(func(w *wire.Welcome) { w.Session++ }), ends: "instead of a welcome"},
	{name: "the last numbers", first: to(func(w *wire.Welcome) { w.NextSeq, w.Have = math.MaxUint64-3, []uint16{1, 65535} })},
	{name: "more keys than asked for", first: to(func(k *wire.Keys) { k.Entries = append(k.Entries, k.Entries...) }), ends: "not outstanding"},
	{name: "wrong keys", first: to(func(k *wire.Keys) {
		for i := range k.Entries {
			for j := range k.Entries[i].Rails {
				k.Entries[i].Rails[j].Key ^= 0x5555
			}
		}
	})},
	{name: "keys beyond the memory", first: to(func(k *wire.Keys) {
		for i := range k.Entries {
			for j := range k.Entries[i].Rails {
				k.Entries[i].Rails[j].Base += 1 << 40
			}
		}
	})},
	{name: "keys of no rail", first: to(func(k *wire.Keys) {
		for i := range k.Entries {
			k.Entries[i].Rails = []wire.RailKey{{Rail: 63, Key: 1}}
		}
	})},
	{name: "no region known", first: to(func(k *wire.Keys) { clear(k.Entries) })},
}

// A target breaks one rule after the other. The initiator ends that session and names the cause, or goes on with it. Its other
// session goes on, and its memory outside of the transfer stays as it is.
func TestHostileTarget(t *testing.T) {
	t.Parallel()
	for _, k := range lies {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			d := newDeceived(t, func(l *liar) { l.lies(k.first) })
			if k.first == nil {
				require.Equal(t, done, d.transfer(transfer.Write))
				require.Equal(t, string(d.mine.b), string(d.theirs.b))
			}
			before := string(d.around.b)
			if k.then != nil {
				k.then(d)
			}
			d.works()
			ended := d.transfer(transfer.Write) // its end, not its outcome: the target may spoil its own memory
			require.NotEqual(t, inProg, ended)
			require.True(t, before == string(d.around.b), "a WRITE has changed local memory")
			if k.ends != "" {
				until(t, "the log names the cause", func() bool { return d.h.log.has("level=WARN", "liar", k.ends) })
			} else if k.then != nil {
				require.Equal(t, done, ended, "the session goes on")
			}
			d.works()
			_ = d.transfer(transfer.Read)
			require.True(t, before[:middleLen] == string(d.around.b[:middleLen]) && before[2*middleLen:] == string(d.around.b[2*middleLen:]),
				"a READ has changed memory outside of the transfer")
			d.works()
		})
	}
}

// A target falls silent at each step. The transfer to it ends in time, and other sessions go on.
func TestSilentTarget(t *testing.T) {
	t.Parallel()
	for name, silent := range map[string]func(f wire.Frame) bool{
		"after the hello":          func(wire.Frame) bool { return true },
		"after the welcome":        func(f wire.Frame) bool { _, hello := f.(*wire.Hello); return !hello },
		"after a request for keys": since[*wire.KeysReq](),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDeceived(t, func(l *liar) { l.quiet(silent) })
			before := string(d.around.b)
			start := time.Now()
			require.Negative(t, d.transfer(transfer.Read))
			require.Less(t, time.Since(start), 30*time.Second)
			require.True(t, before == string(d.around.b))
			d.works()
		})
	}
}

// since is true from the first frame of a type on.
func since[T wire.Frame]() func(f wire.Frame) bool {
	seen := false
	return func(f wire.Frame) bool {
		if _, is := f.(T); is {
			seen = true
		}
		return seen
	}
}
