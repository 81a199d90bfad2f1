package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
	"gorail/backend/wire"
	"gorail/test/fake"
)

// unit is what one side writes at a time: its first frame, in clear, or a record of TLS.
type unit struct {
	toTarget bool
	n        int // of its direction
	at       int // offset in its direction
	b        []byte
}

// middle is a man on the path of the control channel. It may change each unit of the connections.
type middle struct {
	ln     net.Listener
	target string
	blob   []byte // the target's, with the address of middle before or instead of its own

	mu     sync.Mutex
	tamper func(u unit) [][]byte // what goes on instead of the unit, in the order of units of both sides; nil: cut; see pass
	taken  [2][]byte             // bytes of the last connection: from the target, to it
	all    []byte                // bytes of all connections
	conns  []net.Conn
	wg     sync.WaitGroup
}

func pass(u unit) [][]byte { return [][]byte{u.b} }

// between puts a man before an engine. own keeps the engine's own address, too.
func (h *harness) between(a *agent, own bool) *middle {
	h.Helper()
	blob := a.conn()
	m := &middle{target: blob.Control[0], tamper: pass}
	var err error
	m.ln, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(h, err)
	control := []string{m.ln.Addr().String()}
	if own {
		control = append(control, blob.Control[0])
	}
	blob.Control = control
	m.blob, err = blob.Encode()
	require.NoError(h, err)
	m.wg.Go(func() {
		for {
			c, err := m.ln.Accept()
			if err != nil {
				return
			}
			m.wg.Go(func() { m.serve(c) })
		}
	})
	h.Cleanup(func() {
		m.ln.Close()
		m.cut()
		m.wg.Wait()
	})
	return m
}

func (m *middle) keep(c ...net.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns = append(m.conns, c...)
}

func (m *middle) cut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		c.Close()
	}
	m.conns = nil
}

func (m *middle) serve(near net.Conn) {
	far, err := net.Dial("tcp", m.target)
	if err != nil {
		near.Close()
		return
	}
	m.keep(near, far)
	m.mu.Lock()
	m.taken = [2][]byte{}
	m.mu.Unlock()
	m.wg.Go(func() { m.forward(near, far, true) })
	m.forward(far, near, false)
}

// forward passes one direction of a connection on, unit by unit.
func (m *middle) forward(from, to net.Conn, toTarget bool) {
	defer from.Close()
	defer to.Close()
	for u := (unit{toTarget: toTarget}); ; u.n++ {
		var err error
		if u.b, err = readUnit(from, u.n == 0); err != nil {
			return
		}
		m.mu.Lock()
		side := 0
		if toTarget {
			side = 1
		}
		m.taken[side], m.all = append(m.taken[side], u.b...), append(m.all, u.b...)
		list := m.tamper(u)
		m.mu.Unlock()
		if list == nil {
			return
		}
		for _, b := range list {
			if _, err := to.Write(b); err != nil {
				return
			}
		}
		u.at += len(u.b)
	}
}

func readUnit(from net.Conn, frame bool) ([]byte, error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint16(head[3:])) // of a record
	if frame {
		size = int(binary.BigEndian.Uint32(head)) // of a frame
	}
	b := append(head, make([]byte, size)...)
	_, err := io.ReadFull(from, b[5:])
	return b, err
}

// sets changes what the man does.
func (m *middle) sets(tamper func(u unit) [][]byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tamper = tamper
}

// once is a change of the first unit that fits. done is true afterwards.
func once(done *bool, fits func(u unit) bool, change func(u unit) [][]byte) func(u unit) [][]byte {
	return func(u unit) [][]byte {
		if *done || !fits(u) {
			return pass(u)
		}
		*done = true
		return change(u)
	}
}

// watched is a pair with a man between. Its sessions have more than a KiB of frames in each direction.
type watched struct {
	*pair
	h     *harness
	m     *middle
	more  []*memory
	round uint64
}

func (h *harness) watched(own bool, params ...string) *watched {
	params = append([]string{"peer_timeout", "1s", "connect_timeout", "5s"}, params...)
	a, b := h.agent("ann of the long name", params...), h.agent("bob of the long name", params...)
	w := &watched{h: h, m: h.between(b, own)}
	w.pair = &pair{a: a, b: b, mine: a.memory(64 << 10), theirs: b.memory(64 << 10)}
	for range 120 {
		w.more = append(w.more, b.memory(4096))
	}
	return w
}

// session begins a session and requires that data arrives in the end. A WRITE that reports success is in place.
func (w *watched) session() {
	w.h.Helper()
	w.round++
	require.NoError(w.h, w.a.LoadConn(w.b.name, w.m.blob))
	for _, m := range w.more {
		m.seenBy(w.a)
	}
	theirs := w.theirs.seenBy(w.a)
	w.mine.fill(w.round)
	x := w.a.whole(transfer.Write, w.mine, theirs)
	for n := 0; ; n++ {
		_, err := x.Post()
		require.NoError(w.h, err, "no session is lost for good")
		if x.wait() == done {
			break
		}
		require.Less(w.h, n, 20, "the data never arrives")
	}
	require.True(w.h, string(w.mine.b) == string(w.theirs.b), "success, but the bytes differ")
	x.release()
	require.NoError(w.h, w.a.Disconnect(w.b.name))
}

// lens are the bytes of the last session of each direction.
func (w *watched) lens() (n [2]int) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	return [2]int{len(w.m.taken[0]), len(w.m.taken[1])}
}

// A bit flips at each place of the handshake and of the first KiB of a session, so also in Keys frames. Data arrives all the same.
func TestFlippedBits(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprint("another address ", own), func(t *testing.T) {
			t.Parallel()
			w := onFake(t, fake.TCPCaps()).watched(own)
			w.session()
			var sizes [2]int
			until(t, "a handshake and a KiB", func() bool { sizes = w.lens(); return min(sizes[0], sizes[1]) > 700 })
			flips, missed := 0, 0
			for side, n := range sizes {
				for at := side; at < n; at += rounds(61, 1) {
					hit := false
					w.m.sets(once(&hit, func(u unit) bool { return u.toTarget == (side == 1) && u.at <= at && at < u.at+len(u.b) }, func(u unit) [][]byte {
						u.b[at-u.at] ^= 1 << (at % 8)
						return pass(u)
					}))
					w.session()
					w.m.sets(pass)
					if flips++; !hit {
						missed++
					}
				}
			}
			t.Logf("%d sessions, %d too short for their flip", flips, missed)
			require.Less(t, missed, flips/4, "sessions differ in length by a little")
			require.False(t, w.h.log.has("peer lost"))
		})
	}
}

// disturbances are what a man on the path can do to a record.
var disturbances = map[string]func(u unit) [][]byte{
	"dropped":         func(unit) [][]byte { return [][]byte{} },
	"twice":           func(u unit) [][]byte { return [][]byte{u.b, u.b} },
	"halved":          func(u unit) [][]byte { return [][]byte{u.b[:len(u.b)/2]} },
	"cut":             func(unit) [][]byte { return nil },
	"forged goodbye":  func(u unit) [][]byte { return [][]byte{frame(&wire.Bye{Gone: true}), u.b} },
	"forged reject":   func(u unit) [][]byte { return [][]byte{frame(&wire.Reject{Code: wire.CodeEngine}), u.b} },
	"forged alert":    func(u unit) [][]byte { return [][]byte{{21, 3, 3, 0, 2, 1, 0}, u.b} }, // close_notify, in clear
	"forged record":   func(u unit) [][]byte { return [][]byte{append([]byte{23, 3, 3, 0, 64}, make([]byte, 64)...), u.b} },
	"of another unit": func(u unit) [][]byte { return [][]byte{append(bytes.Clone(u.b), u.b[:len(u.b)/3]...)} },
}

func frame(f wire.Frame) []byte {
	b, err := wire.AppendFrame(nil, f)
	if err != nil {
		panic(err)
	}
	return b
}

// Each record of a session is dropped, repeated, cut or put behind a forged one, and two records change places. Data arrives all
// the same, and nobody takes the peer for dead.
func TestDisturbedRecords(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		for name, change := range disturbances {
			t.Run(fmt.Sprint(name, ", another address ", own), func(t *testing.T) {
				t.Parallel()
				w := onFake(t, fake.TCPCaps()).watched(own, "connect_timeout", "1s")
				for n := 1; n < 9; n += rounds(5, 1) {
					for side := range 2 {
						hit := false
						w.m.sets(once(&hit, func(u unit) bool { return u.toTarget == (side == 1) && u.n == n }, change))
						w.session()
						require.False(t, w.h.log.has("peer lost"), "record %d, side %d", n, side)
					}
				}
			})
		}
		t.Run(fmt.Sprint("reordered, another address ", own), func(t *testing.T) {
			t.Parallel()
			w := onFake(t, fake.TCPCaps()).watched(own, "connect_timeout", "1s")
			for n := 2; n < 6; n++ {
				w.m.sets(swap(n))
				w.session()
			}
			require.False(t, w.h.log.has("peer lost"))
		})
	}
}

// swap lets record n of the first connection go behind the next one.
func swap(n int) func(u unit) [][]byte {
	var late []byte
	return func(u unit) [][]byte {
		switch {
		case u.toTarget && u.n == n && late == nil:
			late = bytes.Clone(u.b)
			return [][]byte{}
		case u.toTarget && u.n == n+1 && len(late) > 0:
			b := late
			late = []byte{}
			return [][]byte{u.b, b}
		}
		return pass(u)
	}
}

// Nobody begins, ends or continues a session with the bytes of an earlier connection.
func TestReplayedConnection(t *testing.T) {
	t.Parallel()
	w := onFake(t, fake.TCPCaps()).watched(false)
	w.session()
	w.m.mu.Lock()
	earlier := bytes.Clone(w.m.taken[1])
	w.m.mu.Unlock()
	until(t, "the session ends", func() bool { return w.b.node.Stats().In == 0 })
	accepted := w.b.node.Stats().Accepted
	for n := range 5 {
		c, err := net.Dial("tcp", w.m.target)
		require.NoError(t, err)
		_, _ = c.Write(earlier[:len(earlier)-n])
		_, _ = io.Copy(io.Discard, c) // until the target closes it
		c.Close()
	}
	require.Equal(t, accepted, w.b.node.Stats().Accepted)
	require.Zero(t, w.b.sessions())
	w.session()
}

// Who only listens learns no token, no capability, no key and no name. The same search finds the engine's id, which is no secret.
func TestListener(t *testing.T) {
	t.Parallel()
	w := onFake(t, fake.EFACaps()).watched(false)
	w.session()
	token, id, claim := w.b.conn().Token, w.b.conn().Engine, w.b.claim(w.theirs.owned())
	key := binary.LittleEndian.AppendUint64(nil, w.b.regions.RailKeys(w.b.regions.Find(claim), [16]byte{})[0].Key)
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	require.Greater(t, len(w.m.all), 1000)
	require.True(t, bytes.Contains(w.m.all, id[:]), "the target's id is in the Open")
	require.False(t, bytes.Contains(w.m.all, token[:]), "token")
	require.False(t, bytes.Contains(w.m.all, claim.Cap[:]), "capability")
	require.False(t, bytes.Contains(w.m.all, key), "key %x", key)
	require.False(t, bytes.Contains(w.m.all, []byte("ann of the long name")), "initiator's name")
	require.False(t, bytes.Contains(w.m.all, []byte("bob of the long name")), "target's name")
}

// A stranger at one address of the peer answers every Open with a Reject. The session comes about over the other address.
func TestStrangersReject(t *testing.T) {
	t.Parallel()
	w := onFake(t, fake.TCPCaps()).watched(true)
	w.m.sets(func(u unit) [][]byte {
		if !u.toTarget && u.n == 1 {
			return [][]byte{frame(&wire.Reject{Code: wire.CodeEngine, Text: "gone"})}
		}
		return pass(u)
	})
	for range 3 {
		w.session() // over the other address
	}
	require.False(t, w.h.log.has("peer lost"))
}
