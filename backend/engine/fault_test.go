package engine

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/transfer"
	"gorail/internal/pattern"
	"gorail/test/drive"
	"gorail/test/fake"
	"gorail/test/tcpmodel"
)

// failAt makes the n-th work request on the agent's rail fail. On an ordered fabric the failure breaks the endpoint.
func (h *harness) failAt(a *agent, n int) {
	a.rail().Script(fake.Script{FailAt: uint64(n), FailErrno: syscall.EIO, FailBreaks: h.caps.Ordered})
}

// The n-th work request of a transfer fails. It carries data or a fragment of the notification. The link is fenced, and
// unproved work requests are posted again. The application gets its bytes, and the notification once.
func TestReplay(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		p := h.pair(1 << 20) // 8 chunks
		var all []*request
		for op := range 2 {
			all = append(all, p.a.whole(op, p.mine, p.theirs))
		}
		text := string(body(9000, 1)) // 5 fragments
		for i, x := range all {
			for n := 1; n <= 14; n++ {
				p.mine.fill(uint64(n))
				p.theirs.fill(uint64(n + 100))
				h.failAt(p.a, n)
				x.post(text)
				s := inProg
				until(h, fmt.Sprintf("work request %d: the transfer ends and its notification arrives", n), func() bool {
					s = x.check()
					return s != inProg && len(p.b.take()) > 0
				})
				require.Equal(h, done, s)
				require.True(h, len(p.b.got) == 1 && p.b.got[0] == "ann:"+text)
				p.b.got = nil
				p.same()
			}
			require.True(h, h.log.has("fencing a link", "bob", "completion error"), i)
		}
		h.failAt(p.a, 0)
		p.b.quiet()
		require.EqualValues(h, 28, p.b.core.Counters()["notifs_received"])
		require.Positive(h, p.a.core.Counters()["replayed_batches"])
		require.Positive(h, p.a.core.Counters()["replayed_parts"], "the old name")
	})
}

// The peer's credits are lost. Notifications go on.
func TestReplayCredits(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		p := h.pair(4096)
		for round := range 6 {
			h.failAt(p.b, 1)
			var want []string
			for i := range 100 {
				text := fmt.Sprint(round, ".", i)
				require.NoError(h, p.a.Notify("bob", []byte(text)))
				want = append(want, "ann:"+text)
			}
			p.b.expect(want...)
		}
	})
}

// All work requests fail. The transfer fails after a few attempts, and the log has the reason. The next transfer works.
func TestRepeatedErrors(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		p := h.pair(1 << 20)
		x, y := p.a.whole(transfer.Write, p.mine, p.theirs), p.a.whole(transfer.Read, p.mine, p.theirs)
		p.a.connected("bob") // else the connection would fail
		for i, z := range []*request{x, y, x} {
			p.a.rail().Down(syscall.EIO)
			z.post("n").fails(errcode.ErrBackend)
			p.a.rail().Up()
			require.True(h, h.log.has("transfer failed", "bob", "input/output error", "bytes_left=1048576"), h.log)
			p.mine.fill(uint64(i))
			z.run("m")
			p.b.expect("ann:m")
			p.same()
		}
	})
}

// The other endpoint of the only link takes no receives. The session ends, and its transfers with it; the next post begins another one.
func TestRebindFails(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	p := h.pair(1 << 20)
	x := p.a.whole(transfer.Write, p.mine, p.theirs)
	p.a.connected("bob")
	p.b.connected("ann") // its endpoints post receives, too
	for i := range 3 {
		p.a.rail().Script(fake.Script{FailAt: 1, FailErrno: syscall.EIO, FailBreaks: true, RecvErrno: syscall.ENOMEM})
		x.post("n").fails(errcode.ErrBackend)
		require.True(t, h.log.has("session with a peer suspended", "bob", "cannot allocate memory"), h.log)
		p.mine.fill(uint64(i))
		x.run("m")
		p.b.expect("ann:m")
		p.same()
	}
}

// The only rail goes down and comes back. Transfers posted before fail. Transfers posted later succeed.
func TestLinkLoss(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		p := h.pair(4 << 20)
		for i, end := range []*agent{p.a, p.b} {
			p.a.connected("bob")
			p.b.rail().Stall()
			x := p.a.whole(transfer.Write, p.mine.fill(uint64(i)), p.theirs).post("x")
			end.rail().Down(syscall.ENETDOWN)
			p.b.rail().Release()
			x.fails(errcode.ErrBackend)
			require.True(h, h.log.has("transfer failed", "bob", "network is down"), h.log)
			require.NoError(h, p.a.Notify("bob", []byte("waits")))
			end.rail().Up()
			p.b.expect("ann:waits")
			x.run("y")
			p.b.expect("ann:y")
			p.same()
		}
	})
}

// Execution and completion in random order, with delays and refused posts.
func TestUnordered(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.EFACaps())
	p := h.pair(512 << 10)
	x, y := p.a.whole(transfer.Write, p.mine, p.theirs), p.a.whole(transfer.Read, p.mine, p.theirs)
	for seed := range uint64(50) {
		p.a.rail().Script(fake.Script{ReorderSeed: seed + 1, Delay: int(seed % 3), PerPoll: int(seed % 4), EagainEvery: int(seed%5) * 3})
		p.b.rail().Script(fake.Script{ReorderSeed: seed + 99})
		var want []string
		for i := range 40 {
			text := fmt.Sprint(seed, ".", i, string(body(int(seed)*100*i%5000, i)))
			require.NoError(t, p.a.Notify("bob", []byte(text)))
			want = append(want, "ann:"+text)
		}
		p.b.expect(want...)
		for i, z := range []*request{x, y} {
			p.mine.fill(seed)
			p.theirs.fill(seed + uint64(i))
			text := string(body(int(seed)*300, i))
			z.post(text)
			p.b.expect("ann:" + text)
			if i == 0 { // the notification proves the data
				p.same()
			}
			require.Equal(t, done, z.wait())
			p.same()
		}
	}
}

// flipper is a man on the path of data. He changes one bit of the first connection's bytes towards the target.
type flipper struct {
	provider.Provider
	t           testing.TB
	at          int64 // the byte
	connections atomic.Int32
	flipped     atomic.Bool
}

type flippedRail struct {
	provider.Rail
	provider.Reporter
	f *flipper
}

type flippedEndpoint struct {
	provider.Endpoint
	provider.Listener
	f *flipper
}

func (f *flipper) Open(d provider.Device) (provider.Rail, error) {
	r, err := f.Provider.Open(d)
	if err != nil {
		return nil, err
	}
	return flippedRail{r, r.(provider.Reporter), f}, nil
}

func (r flippedRail) OpenEndpoint() (provider.Endpoint, error) {
	ep, err := r.Rail.OpenEndpoint()
	if err != nil {
		return nil, err
	}
	return flippedEndpoint{ep, ep.(provider.Listener), r.f}, nil
}

// Addr is the endpoint's address with the man's in it.
func (e flippedEndpoint) Addr() []byte {
	a := e.Endpoint.Addr()
	at, ok := tcpmodel.Listens(a)
	require.True(e.f.t, ok)
	return tcpmodel.ListensAt(a, e.f.listen(at))
}

func (f *flipper) listen(to netip.AddrPort) netip.AddrPort {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to.String())
			if err != nil {
				_ = c.Close()
				continue
			}
			go f.pass(out, c, f.connections.Add(1) == 1)
			go f.pass(c, out, false)
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func (f *flipper) pass(to, from net.Conn, flip bool) {
	defer to.Close()
	defer from.Close()
	if flip {
		if _, err := io.CopyN(to, from, f.at); err != nil {
			return
		}
		one := make([]byte, 1)
		if _, err := io.ReadFull(from, one); err != nil {
			return
		}
		one[0] ^= 4
		f.flipped.Store(true)
		if _, err := to.Write(one); err != nil {
			return
		}
	}
	_, _ = io.Copy(to, from)
}

// A bit that changes on the way ends the connection. Over the next one the transfer succeeds, and the bytes are right. A warning
// says what happened.
func TestFlippedRecordIsReplayed(t *testing.T) {
	t.Parallel()
	for _, at := range []int64{1000, 300_000, 2 << 20} {
		h := onTCP(t)
		f := &flipper{t: t, at: at}
		h.params = append(h.params, "encryption", "on", "tcp_threads", "1")
		a := h.agent("alice")
		h.wrap = func(p provider.Provider) provider.Provider { f.Provider = p; return f }
		b := h.agent("bob")
		h.wrap = nil
		loadBoth(a, b)
		from, to := a.memory(4<<20).fill(1), b.memory(4<<20).fill(2)
		r := a.whole(transfer.Write, from, to.seenBy(a))
		r.post("moved")
		require.Equal(t, done, r.wait())
		pattern.Same(t, from.b, to.b)
		require.True(t, f.flipped.Load())
		require.Greater(t, f.connections.Load(), int32(1), "another connection was made")
		until(t, "a warning", func() bool { return h.log.has("was changed on the way") })
	}
}

// wrongKeys is a provider whose rails return a wrong key for the region at *bad.
type wrongKeys struct {
	provider.Provider
	bad *uint64 // the region's address
}

type wrongKeyRail struct {
	provider.Rail
	bad *uint64
}

type wrongKeyMR struct{ provider.MR }

func (p wrongKeys) Open(d provider.Device) (provider.Rail, error) {
	r, err := p.Provider.Open(d)
	return wrongKeyRail{r, p.bad}, err
}

func (r wrongKeyRail) Register(addr, length, key uint64, peers option.Rights) (provider.MR, error) {
	mr, err := r.Rail.Register(addr, length, key, peers)
	if err == nil && addr == *r.bad {
		mr = wrongKeyMR{mr}
	}
	return mr, err
}

func (m wrongKeyMR) Key(s provider.Salt) uint64 { return m.MR.Key(s) ^ 0x55 }

// TestWrongKey posts transfers with a wrong key, which breaks the endpoints of both sides. Such a transfer fails. Another transfer
// on the same rail is replayed and ends well, and so do later ones. GORAIL_TEST_VERBS: the test uses the host's devices.
func TestWrongKey(t *testing.T) {
	t.Parallel()
	h := onDevices(t)
	var bad uint64
	h.wrap = func(p provider.Provider) provider.Provider { return wrongKeys{p, &bad} }
	p := h.pair(8 << 20)
	p.a.whole(transfer.Write, p.mine, p.theirs).run("first")
	p.b.expect("ann:first")
	theirs := drive.Alloc(1 << 20)
	bad = drive.Addr(theirs)
	wrong := &memory{owner: p.b, b: theirs}
	wrong.register()
	wrong = wrong.seenBy(p.a)
	for i, op := range []int{transfer.Write, transfer.Read} {
		p.mine.fill(uint64(i))
		p.theirs.fill(uint64(i))
		p.mine.b[3]++
		beside := p.a.whole(op, p.mine, p.theirs)
		x := p.a.prep(op, []Desc{p.mine.desc(0, 1<<20)}, []Desc{wrong.desc(0, 1<<20)}, "bob")
		if op == transfer.Read { // into memory of its own, because the other READ fills p.mine
			x = p.a.prep(op, []Desc{p.a.memory(1<<20).desc(0, 1<<20)}, []Desc{wrong.desc(0, 1<<20)}, "bob")
		}
		beside.post("beside")
		x.post("never")
		require.NotEqual(t, done, x.wait())
		require.Equal(t, done, beside.wait())
		p.b.expect("ann:beside")
		p.same()
		require.Equal(t, make([]byte, 1<<20), theirs)
		p.mine.b[4]++
		beside.run("then")
		p.b.expect("ann:then")
		p.same()
	}
}
