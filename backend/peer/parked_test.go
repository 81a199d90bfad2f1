package peer

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"gorail/backend/trust"
	"gorail/backend/wire"
)

// An initiator that starves may take seconds from giving its connection up until it has another one. Until then the old one stays open: its end would be the end of
// the process to the target, which waits hungUpGrace alone.
func TestGivenUpConnectionStaysOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, in, _, there := joined(t)
		synctest.Wait()
		out.Do(func(l lockedStream) { l.Commit(&wire.Resume{}, trust.Binding{}) })
		time.Sleep(2 * hungUpGrace)
		synctest.Wait()
		require.Equal(t, Ready, in.State())
		require.False(t, in.HungUp())
		resume(t, out, in)
		synctest.Wait()
		_, err := there.Write([]byte{0})
		require.ErrorIs(t, err, io.ErrClosedPipe, "closed after another has come")
		out.Send(&wire.Drain{Next: 7})
		require.EqualValues(t, 7, id(<-in.got))
		ends(out, in)
	})
}

// So does a connection over which a Resume has had no answer: the target may have it by now. A few are kept, and none when the session has ended.
func TestParkedAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, in, _, there := joined(t)
		synctest.Wait()
		out.Do(func(l lockedStream) { l.Commit(&wire.Resume{}, trust.Binding{}) })
		others := make([]net.Conn, mostParked)
		for i := range others {
			c, other := net.Pipe()
			others[i] = other
			out.Do(func(l lockedStream) { l.Park(c) })
		}
		closed := func(c net.Conn) bool {
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, err := c.Read(make([]byte, 1))
			return err == io.EOF || err == io.ErrClosedPipe
		}
		require.True(t, closed(there), "the oldest")
		for _, c := range others {
			require.False(t, closed(c))
		}
		ends(out, in)
		for _, c := range others {
			require.True(t, closed(c))
		}
	})
}

// A peer whose host acknowledges our pings, and whose process says nothing, starves or is stopped: no other path is sought for twice as long as from a host that is
// not reached, and not by all sessions at once.
func TestStarvingPeerIsSoughtLater(t *testing.T) {
	for name, c := range map[string]struct {
		acks bool
		from time.Duration
	}{"not reached": {false, timeout / 3}, "reached": {true, 2 * timeout / 3}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				out := newSide(t, false)
				out.env.Acks = func(net.Conn, time.Duration) bool { return c.acks }
				out.env.PeerTimeout = 2 * timeout // of a shorter one two thirds are left for other paths
				here, there := net.Pipe()
				go func() { _, _ = io.Copy(io.Discard, there) }()
				began := time.Now()
				out.run(t, here)
				<-out.sought
				require.GreaterOrEqual(t, time.Since(began), c.from)
				require.Less(t, time.Since(began), c.from+timeout/3)
				ends(out)
				there.Close()
			})
		})
	}
}

// Other peers that starve do not keep a session from looking for another path: where small packets alone get through, the kernel there acknowledges pings, too.
func TestStarversDoNotHideAPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := starvers
		starvers = rate.NewLimiter(0, 0) // others take all
		defer func() { starvers = pace }()
		out := newSide(t, false)
		out.env.Acks = func(net.Conn, time.Duration) bool { return true }
		here, there := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, there) }()
		began := time.Now()
		out.run(t, here)
		for range 3 {
			select {
			case <-out.sought:
			case <-time.After(5 * timeout):
				t.Error("not sought")
			}
		}
		require.Less(t, time.Since(began), 5*timeout, "one look in the time of a beat, or half of peer_timeout")
		require.Greater(t, time.Since(began), 2*timeout)
		ends(out)
		there.Close()
	})
}

// A connection that the target has answered, or closed, is not kept: a target that is busy for a while would cost a descriptor for each try, and in the end the
// connection that it holds.
func TestAnsweredIsNotParked(t *testing.T) {
	r := newMultipath(t, 1, minute)
	held := r.out.stream
	r.in.stream.Do(func(l lockedStream) { l.s.resume.try = 1 << 40 }) // as busy is told
	was := r.to.Stats().BadResume
	r.out.Suspect(netip.Addr{}, "a test")
	eventually(t, func() bool { return r.to.Stats().BadResume > was+mostParked }, "refused")
	held.Do(func(l lockedStream) {
		require.Len(t, l.s.path.parked, 1, "the one that both have used")
	})
	r.in.stream.Do(func(l lockedStream) {
		require.False(t, l.HungUp())
		l.s.resume.try = 0
	})
	r.resumed(t, 1)
	r.works(t)
}

// A Resume without an answer in time, over real connections: the connection stays open, since the target may have it.
func TestUnansweredIsParked(t *testing.T) {
	r := newMultipath(t, 1, func(c *Config) { c.PeerTimeout = 2 * time.Second })
	r.in.stream.mu.Lock() // its process starves
	works := sync.OnceFunc(r.in.stream.mu.Unlock)
	defer works()
	r.out.Suspect(netip.Addr{}, "a test")
	eventually(t, func() bool {
		var parked int
		r.out.stream.Do(func(l lockedStream) { parked = len(l.s.path.parked) })
		return parked > 1
	}, "the one that both have used, and the one without an answer")
	works()
	r.resumed(t, 1)
	r.works(t)
}

// An address waits while another one resumes, for up to maxProof. Its connection is made anew in time: the target ends those that show no token, and counts them
// against our address.
func TestWaitingAddressStaysFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := idling(t, 0, nil)
		to := p.to.cfg.Identity
		to.Control = []string{"127.0.0.1:1"}
		out := p.from.Dial(to, 0, p.i)
		want[evOffers](t, p.i.events)
		want[evReady](t, p.i.events)
		var claim chan struct{}
		out.stream.Do(func(lockedStream) {
			out.replace()
			claim = out.reconnect.claim
			claim <- struct{}{}
		})
		time.Sleep(maxProof)
		require.Zero(t, p.to.Stats().TimedOut)
		<-claim
		start := time.Now()
		for p.to.Stats().Resumed == 0 {
			time.Sleep(time.Millisecond)
			require.Less(t, time.Since(start), 2*maxBackoff)
		}
	})
}
