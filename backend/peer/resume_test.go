package peer

import (
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

func minute(c *Config) { c.PeerTimeout = time.Minute }

// A path that drops all data is left after a third of PeerTimeout, and the dropped frames are sent again. While a kernel acknowledges them, the peer may starve: with a
// longer PeerTimeout it is then left later (TestStarvingPeerIsSoughtLater).
func TestBlackHole(t *testing.T) {
	t.Run("silent", func(t *testing.T) { leavesBlackHole(t, noAcks, 2) })
	t.Run("acknowledged", func(t *testing.T) { leavesBlackHole(t, nil, 2) })
}

func leavesBlackHole(t *testing.T, acks func(net.Conn, time.Duration) bool, thirds time.Duration) {
	const timeout = 1500 * time.Millisecond
	r := newMultipath(t, 2, func(c *Config) { c.PeerTimeout, c.acks = timeout, acks })
	r.works(t)
	r.paths[0].spoil(nil, true)
	start := time.Now()
	r.out.Fence(1, 1, 1, nil)
	r.in.Revoke(2, nil)
	for fenced, revoked := false, false; !fenced || !revoked; {
		select {
		case e := <-r.i.events:
			switch e := e.(type) {
			case evFenced:
				fenced = true
			case evRevoke:
				revoked = true
			default:
				require.Fail(t, "unexpected", "%v", e)
			}
		case <-time.After(testTimeout):
			require.Fail(t, "nothing came")
		}
	}
	took := time.Since(start)
	assert.Less(t, took, timeout*thirds/3)
	assert.Greater(t, took, timeout*thirds/6-timeout*2/15, "not before the silence counts")
	r.works(t)
	assert.Equal(t, uint64(1), r.from.Stats().Resumed)
}

func TestSuspect(t *testing.T) {
	here, elsewhere := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1")
	for name, suspect := range map[string]func(*multipath){
		"by the initiator":           func(r *multipath) { r.out.Suspect(here, "link down") },
		"by the initiator, any":      func(r *multipath) { r.out.Suspect(netip.Addr{}, "link down") },
		"by the initiator, 4 in 6":   func(r *multipath) { r.out.Suspect(netip.MustParseAddr("::ffff:127.0.0.1"), "link down") },
		"by the target":              func(r *multipath) { r.in.Suspect(here, "link down") },
		"by the target, any address": func(r *multipath) { r.in.Suspect(netip.Addr{}, "link down") },
	} {
		t.Run(name, func(t *testing.T) {
			r := newMultipath(t, 2, minute)
			r.out.Suspect(elsewhere, "link down")
			r.in.Suspect(elsewhere, "link down")
			r.works(t)
			require.Zero(t, r.from.Stats().Resumed+r.to.Stats().Resumed, "another rail fails")
			r.paths[0].l.Close() // dials begin 20 ms apart: on a busy host one of this path may answer before the other's
			start := time.Now()
			suspect(r)
			r.resumed(t, 1)
			assert.Less(t, time.Since(start), 2*time.Second)
			r.works(t)
			assert.Equal(t, r.paths[1].l.Addr().String(), r.out.where().String())
		})
	}
	t.Run("no other path", func(t *testing.T) {
		r := newMultipath(t, 2, minute)
		r.paths[1].close()
		r.out.Suspect(here, "link down")
		eventually(t, func() bool { return !r.out.searching() }, "given up")
		r.works(t)
		assert.Zero(t, r.from.Stats().Resumed, "the working path stays")
	})
	t.Run("after the end", func(t *testing.T) {
		r := newMultipath(t, 1, minute)
		r.out.Close("enough")
		r.out.Suspect(netip.Addr{}, "late")
		want[evGone](t, r.s.events)
		r.in.Suspect(netip.Addr{}, "late")
	})
}

// The target has ended the session, and its Bye is lost.
func TestEndedSessionIsNotResumed(t *testing.T) {
	r := newMultipath(t, 2, minute)
	r.in.stream.End(Lost, ErrOverflow, nil)
	err := want[evLost](t, r.i.events).err
	assert.ErrorIs(t, err, ErrDropped)
	var why *RejectError
	require.ErrorAs(t, err, &why)
	assert.Equal(t, wire.CodeSession, why.Code)
	assert.Positive(t, r.to.Stats().BadResume)
	want[evGone](t, r.s.events)
	assert.Empty(t, r.i.events)
}

// As before, and the engine ends, too.
func TestSessionOfAnEndedEngineIsNotResumed(t *testing.T) {
	r := newMultipath(t, 2, minute)
	r.to.Leaving()
	r.in.stream.End(Lost, ErrOverflow, nil)
	assert.ErrorIs(t, want[evLost](t, r.i.events).err, ErrDead)
	want[evGone](t, r.s.events)
}

// The target hangs up after the initiator has given up the connection in use for another one, and before it answers. Then it refuses, because it has died;
// or it was busy, gives another challenge, and a host on the way refuses. The initiator has seen no end of the first connection.
func TestPeerHangsUpInAResume(t *testing.T) {
	for name, lives := range map[string]bool{"dead": false, "busy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i, peer := newInitiator(), config("dying")
			from := listen(t, newTarget(), func(c *Config) { c.PeerTimeout = 2 * time.Second })
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			var served sync.WaitGroup
			served.Go(func() {
				defer l.Close()
				first, err := l.Accept()
				if err != nil {
					return
				}
				defer first.Close()
				s, f := acceptByHand(first, peer)
				if hello, ok := f.(*wire.Hello); ok {
					_ = wire.WriteFrame(s, &wire.Welcome{Session: hello.Session, Offers: []wire.EndpointOffer{}})
				}
				second, err := l.Accept()
				if err != nil {
					return
				}
				_, f = acceptByHand(second, peer)
				assert.IsType(t, &wire.Resume{}, f)
				if lives {
					second.Close()
					third, err := l.Accept()
					if err != nil {
						return
					}
					defer third.Close()
					_, err = Challenge(third)
					assert.NoError(t, err)
				} else {
					defer second.Close()
				}
				l.Close()
			})
			t.Cleanup(func() { l.Close(); served.Wait() })
			to := peer.Identity
			to.Control = []string{l.Addr().String()}
			out := from.Dial(to, 0, i)
			want[evOffers](t, i.events)
			want[evReady](t, i.events)
			out.Suspect(netip.Addr{}, "a rail has failed")
			err = want[evLost](t, i.events).err
			if lives {
				assert.NotErrorIs(t, err, ErrDead)
				assert.ErrorIs(t, err, ErrSilent)
				return
			}
			assert.ErrorIs(t, err, ErrDead)
		})
	}
}

// A stuck handler does not delay the other path, and gets no frame twice.
func TestResumeBehindAStuckHandler(t *testing.T) {
	r := newMultipath(t, 2, minute)
	entered, release := make(chan struct{}, 2), make(chan struct{})
	r.s.onFence(func(f wire.Fence) (wire.Fenced, error) {
		entered <- struct{}{}
		<-release
		return wire.Fenced{ID: f.ID}, nil
	})
	r.out.Fence(1, 1, 1, nil)
	<-entered
	r.paths[0].cut()
	r.resumed(t, 1)
	r.in.Revoke(2, nil)
	assert.Equal(t, uint64(2), want[evRevoke](t, r.i.events).id, "the target's writer goes on")
	close(release)
	assert.Equal(t, uint64(1), want[evFenced](t, r.i.events).f.ID)
	r.s.onFence(nil)
	r.works(t)
	assert.Empty(t, entered)
}

func TestCloseWhileResuming(t *testing.T) {
	r := newMultipath(t, 2, minute)
	for _, p := range r.paths {
		p.spoil(nil, true)
	}
	r.paths[0].cut()
	eventually(t, r.out.searching, "searching")
	start := time.Now()
	r.from.Close()
	r.to.Close()
	assert.Less(t, time.Since(start), time.Second)
	assert.Equal(t, Closed, r.out.State())
	assert.Empty(t, r.i.events)
	want[evGone](t, r.s.events)
}

// The memory of unacknowledged frames stays far below the limit, and is released with the next heartbeat at the
// latest.
func TestKeptFramesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pipes(t, Config{QueueLimit: 1 << 20, PeerTimeout: 4 * time.Second})
		defer p.close()
		for i := range uint64(200) {
			p.in.Revoke(i, make([]uint64, 10_000)) // 16 MB in all
			want[evRevoke](t, p.i.events)
			synctest.Wait()
			require.Less(t, p.in.stream.Held(), 300<<10)
		}
		time.Sleep(2 * time.Second)
		assert.Zero(t, p.in.stream.Held())
	})
}

// where returns the address that the session's connection leads to.
func (o *Out) where() (at netip.AddrPort) {
	o.stream.Do(func(l lockedStream) { at = l.At() })
	return at
}

func (o *Out) searching() (yes bool) {
	o.stream.Do(func(lockedStream) { yes = o.reconnect != nil })
	return yes
}
