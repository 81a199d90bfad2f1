package tcp

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/access"
	"gorail/backend/provider/fake/drive"
	"gorail/backend/provider/tcp/handshake"
	"gorail/internal/pattern"
	"gorail/test/seeds"
)

// meddler stands between two rails. It lets the proofs through, then changes bits, and cuts.
type meddler struct {
	l  *net.TCPListener
	to string
	wg sync.WaitGroup
}

func newMeddler(t *testing.T, to netip.AddrPort, seed uint64) *meddler {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	m := &meddler{l: l, to: to.String()}
	m.wg.Go(func() { m.run(seed) })
	return m
}

func (m *meddler) run(seed uint64) {
	for {
		c, err := m.l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", m.to)
		if err != nil {
			_ = c.Close()
			continue
		}
		m.wg.Go(func() { pass(out, c, handshake.OpeningLen, rand.New(rand.NewPCG(seed, 1))) })
		m.wg.Go(func() { pass(c, out, handshake.AnswerLen, rand.New(rand.NewPCG(seed, 2))) })
	}
}

// pass copies the first bytes as they are. Of the rest it changes a bit here and there, and ends somewhere.
func pass(to, from net.Conn, first int, rnd *rand.Rand) {
	defer to.Close()
	defer from.Close()
	if _, err := io.CopyN(to, from, int64(first)); err != nil {
		return
	}
	rate := []int{200, 2000, 50_000}[rnd.IntN(3)] // bytes between two changes
	left, next := 1000+rnd.IntN(400_000), rnd.IntN(rate)
	b := make([]byte, 1+rnd.IntN(9000))
	for left > 0 {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		for ; next < n; next += 1 + rnd.IntN(2*rate) {
			b[next] ^= 1 << rnd.IntN(8)
		}
		next -= n
		left -= n
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

func (m *meddler) close() {
	_ = m.l.Close()
	m.wg.Wait()
}

// TestFlippedFrames: bits change on the way, and connections are cut. Both ends live, each operation ends once, and no byte outside
// the regions and what READs and messages are received into changes.
func TestFlippedFrames(t *testing.T) {
	t.Parallel()
	for seed := range seeds.Count(t, 20, 500) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { flipped(t, seed, false) })
	}
}

// TestFlippedRecords: the same with records.
func TestFlippedRecords(t *testing.T) {
	t.Parallel()
	for seed := range seeds.Count(t, 20, 500) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { flipped(t, seed, true) })
	}
}

const (
	flipSource, flipRegion, flipInto, flipMessages = 0, 64 << 10, 128 << 10, 160 << 10 // in a node's memory; behind is nothing
	flipEnd                                        = 224 << 10
)

func flipped(t *testing.T, seed uint64, encrypted bool) {
	rnd := rand.New(rand.NewPCG(seed, 9))
	var connected atomic.Int32
	count := func(int) { connected.Add(1) }
	o := Options{Encryption: encrypted, tune: count}
	a, b := newNodeOf(t, nodeMem, o), newNodeOf(t, nodeMem, o)
	nodes := [2]*node{a, b}
	for _, n := range nodes {
		_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(n.mem)
	}
	before := bytes.Clone(a.mem)
	ma, mb := a.register(flipRegion, 60<<10, access.Both), b.register(flipRegion, 60<<10, access.Both)
	regions := [2]uint64{mb.Base(), ma.Base()} // of the other
	keys := [2]uint64{keyOf(mb), keyOf(ma)}
	m := newMeddler(t, b.rail.at.Load().listener.Addr(), seed)
	defer m.close()
	open := func(n *node) *endpoint {
		e, err := n.rail.OpenEndpoint()
		require.NoError(t, err)
		e.(*endpoint).Secure(security(n == a))
		return e.(*endpoint)
	}
	eps := [2]*endpoint{open(a), open(b)}
	to := addrOf(t, eps[1])
	to.At = m.l.Addr().(*net.TCPAddr).AddrPort()
	require.NoError(t, eps[0].Connect(to.Encode()))
	require.NoError(t, eps[1].Connect(eps[0].Addr()))
	for end := time.Now().Add(20 * time.Second); connected.Load() < 2; time.Sleep(100 * time.Microsecond) {
		require.True(t, time.Now().Before(end), "the proofs pass as they are")
	}
	posted := 0
	post := func(i int) error {
		n, core := nodes[i], eps[i].Core()
		base, size := drive.Addr(n.mem), uint64(rnd.IntN(16<<10))
		seg := drive.Seg{Local: base + flipSource + uint64(rnd.IntN(32<<10)), Remote: regions[i] + uint64(rnd.IntN(40<<10)), Len: size, Key: keys[i]}
		at := flipMessages + rnd.IntN(7)*slot
		switch rnd.IntN(4) {
		case 0:
			return n.d.RMA(core, drive.Write, n.id(), seg)
		case 1:
			seg.Local = base + flipInto + uint64(rnd.IntN(16<<10))
			return n.d.RMA(core, drive.Read, n.id(), seg)
		case 2:
			return n.d.Send(core, n.id(), n.mem[:size%slot], nil)
		}
		return n.d.Recv(core, n.id(), n.mem[at:at+slot], nil)
	}
	for end := time.Now().Add(300 * time.Millisecond); posted < 400 && time.Now().Before(end); { // a length that grew may leave both waiting
		i := rnd.IntN(2)
		if int(nodes[i].next)-len(nodes[i].done) > 24 {
			i = 1 - i
		}
		if int(nodes[i].next)-len(nodes[i].done) > 24 { // both wait
		} else if err := post(i); err == nil {
			posted++
		} else {
			nodes[i].next-- // nothing was posted
			if err != syscall.EAGAIN {
				break // the end of the connection
			}
		}
		a.poll()
		b.poll()
	}
	require.Positive(t, posted)
	for _, e := range eps {
		require.NoError(t, e.Close())
	}
	for range 20 {
		a.poll()
		b.poll()
	}
	for i, n := range nodes {
		require.Len(t, n.done, int(n.next), "each operation of node %d ends once", i)
		for _, part := range [][2]int{{0, flipRegion}, {flipRegion + 60<<10, flipInto}, {flipEnd, nodeMem}} {
			pattern.Same(t, before[part[0]:part[1]], n.mem[part[0]:part[1]], "node %d: bytes from %d to %d", i, part[0], part[1])
		}
	}
}
