package engine

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/transfer"
	"gorail/test/fake"
)

func body(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	return b
}

// The receiver takes no notifications. Accepted notifications wait. The error of a refused one names the option. A transfer stays
// in progress until its notification is sent. At the end all accepted notifications arrive, once and in order.
func TestBackPressure(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		p := h.pair(4096, "notif_queue", "64KiB")
		x := p.a.whole(transfer.Write, p.mine, p.theirs)
		x.run("first")
		text := bytes.Repeat([]byte("n"), 1000)
		sent := 0
		var err error
		until(h, "the queue is full and Notify is refused", func() bool {
			if err = p.a.Notify("bob", append(text, fmt.Sprint(sent)...)); err == nil {
				sent++
			}
			full := p.b.core.Counters()["notifs_received"] > 60 // the receiver's limit, or two times all credits
			return err != nil && full && p.a.connected("bob").inside().Core.Queued() > 63<<10
		})
		require.Equal(h, errcode.ErrBackend, errcode.StatusOf(err))
		for _, part := range []string{"bob", "notif_queue", "65536"} {
			require.ErrorContains(h, err, part)
		}
		require.Greater(h, sent, 64, "both ends keep notifications")
		require.Less(h, sent, 300)
		x.post("last")
		for range 200 {
			require.Equal(h, inProg, x.check())
		}
		require.Equal(h, errcode.ErrRepostActive, func() errcode.Status { _, err := x.Post(); return errcode.StatusOf(err) }())

		want := []string{"ann:first"}
		for i := range sent {
			want = append(want, "ann:"+string(text)+fmt.Sprint(i))
		}
		p.b.expect(append(want, "ann:last")...)
		require.Equal(h, done, x.wait())
		require.NoError(h, p.a.Notify("bob", text), "the queue has room again")
	})
}

// notif_queue bounds the notifications that wait for the connection, too. An empty queue takes a notification of any size.
func TestBackPressureBeforeConnection(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	a, b := h.agent("ann", "notif_queue", "64KiB"), h.agent("bob")
	g := h.gate(b)
	require.NoError(t, a.LoadConn("bob", g.blob))
	var want []string
	for {
		text := body(1000, len(want))
		err := a.Notify("bob", text)
		if err != nil {
			require.ErrorContains(t, err, "notif_queue")
			break
		}
		want = append(want, "ann:"+string(text))
		require.Less(t, len(want), 200)
	}
	require.Greater(t, len(want), 50)
	g.open(true)
	b.expect(want...)
	until(t, "Notify is accepted again", func() bool {
		return a.Notify("bob", body(100<<10, 0)) == nil
	})
}

// A notification is stuck on one rail. The initiator stops sending later ones before the target holds too many. When that rail is
// fenced all arrive in order.
func TestStuckNotification(t *testing.T) {
	t.Parallel()
	const n, quiet = 70_000, 1000
	h := onRails(t, 2, fake.TCPCaps())
	p := h.pair(64<<10, "rail_timeout", "1m")
	p.allUp(2)
	notifLink, other := p.a.connected("bob").links()[0].Core, p.a.connected("bob").links()[1].Core
	p.b.railNo(1).Stall()
	var xs []*request
	for stuck := false; !stuck; { // small transfers take the rails in turn
		x := p.a.whole(transfer.Write, p.mine, p.theirs).post("first")
		xs = append(xs, x)
		until(h, "the transfer ends or its notification is on rail 1", func() bool {
			stuck = other.Tally().MessagesSent > 0
			return stuck || x.check() == done
		})
	}
	for i := range n {
		require.NoError(h, p.a.Notify("bob", fmt.Append(nil, i)))
	}
	last, same := uint64(0), 0
	until(h, "the notification link stops sending", func() bool {
		p.b.take()
		sent := notifLink.Tally().MessagesSent
		if same++; sent != last {
			last, same = sent, 0
		}
		return same == quiet
	})
	require.Less(h, last, uint64(n), "the initiator has sent all notifications")
	require.Positive(h, p.a.connected("bob").inside().Core.Queued())
	p.a.railChanged("fake1", false)
	p.b.railNo(1).Release()
	until(h, "all notifications arrive", func() bool { return len(p.b.take()) >= n+len(xs) })
	i := 0
	for _, s := range p.b.got {
		if s != "ann:first" {
			require.Equal(h, fmt.Sprint("ann:", i), s)
			i++
		}
	}
	require.Equal(h, n, i)
	for _, x := range xs {
		require.Equal(h, done, x.wait())
	}
}

// A transfer waits for keys. Another transfer is posted after it. The notifications arrive in that order, whenever the keys come.
func TestQueuedPostsGoFirst(t *testing.T) {
	t.Parallel()
	most := rounds(150, 3000)
	h := onFake(t, fake.TCPCaps())
	p := h.pair(64, "cancel_timeout", "1m")
	p.a.connected("bob")
	for n := range most {
		m := p.b.memory(4096)
		there := m.seenBy(p.a)
		local, remote := []Desc{p.mine.desc(0, 64)}, []Desc{there.desc(0, 64)}
		first, second := p.a.prep(transfer.Write, local, remote, "bob"), p.a.prep(transfer.Write, local, remote, "bob")
		first.post("first")
		for end := time.Now().Add(time.Duration(rand.IntN(400)) * time.Microsecond); time.Now().Before(end); { // the keys may come meanwhile
		}
		second.post("second")
		first.wait()
		second.wait()
		until(t, "both notifications arrive", func() bool { return len(p.b.take()) >= 2 })
		require.Equal(t, []string{"ann:first", "ann:second"}, p.b.got, "round %d", n)
		p.b.got = nil
		first.release()
		second.release()
		require.NoError(t, p.b.Deregister(m.md.region))
		require.NoError(t, p.a.UnloadRemote(there.md.region))
	}
}

// sharedCaps are EFA's capabilities, with a shared endpoint.
func sharedCaps() fake.Caps {
	caps := fake.EFACaps()
	caps.SharedEndpoint = true
	return caps
}

// onMixed is a harness with three rails. The first has a shared endpoint.
func onMixed(t testing.TB) *harness {
	h := onRails(t, 3, fake.TCPCaps())
	h.links[0].Caps = sharedCaps()
	return h
}

// onManyPaths runs body on fakes where notifications may overtake each other, or endpoints are shared.
func onManyPaths(t *testing.T, body func(h *harness)) {
	t.Run("3rails", func(t *testing.T) { body(onRails(t, 3, fake.TCPCaps())) })
	t.Run("3links", func(t *testing.T) { body(onLinks(t, 3, fake.TCPCaps())) })
	t.Run("unordered", func(t *testing.T) { body(onFake(t, fake.EFACaps())) })
	t.Run("unordered-3rails", func(t *testing.T) { body(onRails(t, 3, fake.EFACaps())) })
	t.Run("shared", func(t *testing.T) { body(onFake(t, sharedCaps())) })
	t.Run("shared-3rails", func(t *testing.T) { body(onRails(t, 3, sharedCaps())) })
	t.Run("mixed", func(t *testing.T) { body(onMixed(t)) })
}

// gatedPair is two agents with a gate before b, and a session in which all links work.
func gatedPair(h *harness) (a, b *agent, g *gate, r *remote) {
	a, b = h.agent("ann"), h.agent("bob")
	g = h.gate(b)
	g.open(true)
	require.NoError(h, a.LoadConn("bob", g.blob))
	r = a.connected("bob")
	until(h, "all links work", func() bool { return r.atWork() == len(h.links) })
	return a, b, g, r
}

// A session ends while the target holds notifications behind a gap. The initiator no longer has them. They arrive all the same,
// in order.
func TestHeldNotificationsOutliveSession(t *testing.T) {
	t.Parallel()
	const stuck, behind = 8, 20
	for name, caps := range map[string]fake.Caps{"ordered": fake.TCPCaps(), "unordered": fake.EFACaps(), "shared": sharedCaps()} {
		for _, long := range []int{0, 9000} { // 9000: the last stuck notification has several fragments
			t.Run(fmt.Sprint(name, "/", long), func(t *testing.T) {
				h := onRails(t, 2, caps)
				a, b, g, r := gatedPair(h)
				var want []string
				notify := func(size int) {
					text := fmt.Sprint(len(want), strings.Repeat("x", size))
					require.NoError(t, a.Notify("bob", []byte(text)))
					want = append(want, "ann:"+text)
				}
				other := 1
				if r.inside().NotifLink.Rail.Name() == "fake/fake1" {
					other = 0
				}
				b.railNo(1 - other).Stall()
				for range stuck {
					notify(0)
				}
				notify(long)
				until(t, "all notifications are sent", func() bool { return r.inside().Core.Sent() > stuck })
				g.open(false) // the target does not answer the fence
				a.railChanged(fmt.Sprint("fake", 1-other), false)
				until(t, "the other link carries the notifications", func() bool { in := r.inside(); return in.NotifLink == in.Links[other] })
				for range behind {
					notify(0)
				}
				until(t, "the target holds the later notifications", func() bool { return b.held() == behind })
				until(t, "the other link has sent all messages", func() bool { return r.links()[other].Core.Stats().QueuedMsgs == 0 })
				r.fail("out of descriptors, for once")
				g.cut()
				g.open(true)
				b.railNo(1 - other).Release()
				b.expect(want...)
				b.quiet()
				r = a.connected("bob")
				notify(0) // the numbers of notifications go on
				b.expect(want[len(want)-1])
			})
		}
	}
}

// Sessions end at any moment of a stream of notifications. Some have fragments, and some belong to transfers. The fabrics delay
// and reorder them. Each accepted notification arrives once. Those without a transfer arrive in order.
func TestNotificationsOutliveSessions(t *testing.T) {
	t.Parallel()
	onManyPaths(t, func(h *harness) {
		rng := rand.New(rand.NewPCG(7, 7))
		p := h.pair(4096)
		for _, l := range h.links {
			p.a.prov.Rail(l.Name).Script(fake.Script{Delay: 3, PerPoll: 2, ReorderSeed: rng.Uint64() | 1})
		}
		r := p.a.connected("bob")
		accepted := map[string]bool{}
		var order []string // notifications without a transfer
		for round := range rounds(15, 40) {
			x := p.a.whole(transfer.Write, p.mine, p.theirs)
			text := fmt.Sprint("x", round)
			x.post(text)
			for range rng.IntN(60) {
				text := fmt.Sprint(len(order), strings.Repeat("y", rng.IntN(2)*rng.IntN(7000)))
				require.NoError(h, p.a.Notify("bob", []byte(text)))
				accepted["ann:"+text] = true
				order = append(order, "ann:"+text)
			}
			for range rng.IntN(3000) {
				x.check()
			}
			r.fail("out of descriptors, for once")
			if x.wait() == done {
				accepted["ann:"+text] = true
			}
			x.release()
			p.b.take()
		}
		missing := func() (n int) {
			got := map[string]bool{}
			for _, s := range p.b.take() {
				got[s] = true
			}
			for s := range accepted {
				if !got[s] {
					n++
				}
			}
			return n
		}
		until(h, "all accepted notifications arrive", func() bool { return missing() == 0 })
		seen, next := map[string]bool{}, 0
		for _, s := range p.b.got {
			require.False(h, seen[s], "%.20s arrived twice", s)
			seen[s] = true
			if !strings.HasPrefix(s, "ann:x") {
				require.True(h, s == order[next], "%.20s arrived instead of %.20s", s, order[next])
				next++
			}
		}
		p.b.got = nil
	})
}

// The target ends the session first. The initiator sends notifications over a shared endpoint before it knows that. They arrive.
func TestSharedEndpointOutlivesSession(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]func(testing.TB) *harness{"shared": func(t testing.TB) *harness { return onFake(t, sharedCaps()) }, "mixed": onMixed} {
		t.Run(name, func(t *testing.T) {
			h := h(t)
			a, b, g, r := gatedPair(h)
			var want []string
			notify := func() {
				require.NoError(t, a.Notify("bob", fmt.Append(nil, len(want))))
				want = append(want, fmt.Sprint("ann:", len(want)))
			}
			notify()
			b.expect(want...)
			g.open(false)
			served := b.targets.Latest()
			served.Close("no answer to a revocation within cancel_timeout")
			for range 100 {
				notify()
			}
			if name == "shared" {
				until(t, "all sends have completed", func() bool { return r.inside().Core.Queued() == 0 })
			}
			g.cut()
			g.open(true)
			b.expect(want[1:]...)
			until(t, "the initiator has found the loss", func() bool { return h.log.has("session with a peer suspended") })
			notify()
			b.expect(want[len(want)-1])
			b.quiet()
			until(t, "the older session takes no notification any more", served.Frozen)
		})
	}
}

// Accepted notifications are sent in the next session, even if they are more than notif_queue. The reason: notif_queue does not
// count notifications of transfers when they are accepted.
func TestKeptBeyondQueue(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	a, b := h.agent("ann", "notif_queue", "64KiB"), h.agent("bob")
	g := h.gate(b)
	require.NoError(t, a.LoadConn("bob", g.blob))
	r := a.remote("bob")
	var want []string
	for i, n := range []int{100 << 10, 1000, 50 << 10, 30 << 10, 1000} {
		r.Keep(body(n, i))
		want = append(want, "ann:"+string(body(n, i)))
	}
	require.ErrorContains(t, a.Notify("bob", nil), "notif_queue")
	g.open(true)
	until(t, "all notifications arrive", func() bool { return len(b.take()) >= len(want) })
	require.True(t, strings.Join(b.got, "") == strings.Join(want, ""), "%d notifications arrived, or their order is wrong", len(b.got))
	b.got = nil
	until(t, "the queue has room again", func() bool { return a.Notify("bob", nil) == nil })
	b.expect("ann:")
	require.False(t, h.log.has("notification lost"))
}
