package core_test

import (
	"bytes"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/provider"
	"gorail/test/fake"
)

// Bytes in flight stay within the window, and work requests within the queue, however much is posted.
func TestWindow(t *testing.T) {
	caps := fake.TCPCaps()
	caps.TxDepth, caps.IOVLimit = 20, 1
	a, b := ends(t, caps, map[string]string{"window_min": "64KiB", "window_max": "64KiB"})
	b.rail.Stall()
	big := a.xfer(b, core.Write, 16, 128<<10)
	a.post(big)
	until(t, "nothing posted", func() bool { return a.link.Stats().InflightOps > 0 })
	s := a.link.Stats()
	require.LessOrEqual(t, s.InflightBytes, uint64(256<<10), "the initial window is four times window_min")
	b.rail.Release()
	require.True(t, a.core.Wait(big, 10*time.Second))
	b.rail.Stall()
	small := a.xfer(b, core.Write, 1000, 64)
	a.post(small)
	until(t, "nothing posted", func() bool { return a.link.Stats().InflightOps > 0 })
	a.core.Wait(small, time.Millisecond)
	require.Less(t, a.link.Stats().InflightOps, uint32(20), "queue depth is kept for messages")
	require.NoError(t, a.link.Notify([]byte("passes")))
	b.rail.Release()
	until(t, "notification", func() bool { return len(b.notes()) == 1 })
	require.True(t, a.core.Wait(small, 10*time.Second))
}

// A provider's window_min raises the bytes in flight above the measured window, up to window_max.
func TestProvidersWindow(t *testing.T) {
	for _, tt := range []struct {
		most       string
		from, upto uint64
	}{{"64MiB", 3 << 20, 4 << 20}, {"1MiB", 1 << 20, 2 << 20}} {
		caps := fake.TCPCaps()
		caps.WindowMin, caps.TxDepth = 3<<20, 1024
		a, b := ends(t, caps, map[string]string{"window_min": "64KiB", "window_max": tt.most})
		b.rail.Stall()
		x := a.xfer(b, core.Write, 64, 64<<10)
		a.post(x)
		until(t, "nothing posted", func() bool { return a.link.Stats().InflightOps > 0 })
		a.core.Wait(x, 10*time.Millisecond)
		s := a.link.Stats()
		require.GreaterOrEqual(t, s.InflightBytes, tt.from, tt.most)
		require.Less(t, s.InflightBytes, tt.upto, tt.most)
		b.rail.Release()
		require.True(t, a.core.Wait(x, 10*time.Second))
	}
}

// A thread that finds the rail locked assists with work that needs no lock.
func TestHelps(t *testing.T) {
	a, b := ends(t, fake.TCPCaps(), nil)
	b.rail.Stall()
	x := a.xfer(b, core.Write, 2, 64<<10)
	a.post(x)
	before := a.rail.Counters().Assists
	a.rail.Hold(func() {
		for range 100 {
			require.False(t, a.done(x, 2, 64<<10))
		}
	})
	require.GreaterOrEqual(t, a.rail.Counters().Assists, before+100)
	b.rail.Release()
	require.True(t, a.core.Wait(x, 10*time.Second))
}

// Messages stop when the credits are used up. They continue when the receiver takes notifications.
func TestCredits(t *testing.T) {
	a, b := ends(t, fake.TCPCaps(), map[string]string{"notif_queue": "64KiB"})
	sent := 0
	until(t, "never full", func() bool {
		err := a.link.Notify(make([]byte, 1500))
		if err == nil {
			sent++
		}
		full := b.core.Counters()["notifs_received"] > 64<<10/1500 // the receiver's limit: no more credits
		return err != nil && full && a.link.Stats().Credits == 0 && a.sess.Queued() > 62<<10
	})
	require.ErrorIs(t, a.link.Notify(make([]byte, 1500)), core.ErrFull)
	require.Positive(t, a.sess.Queued())
	require.Positive(t, b.core.Counters()["credits_held"])
	got := 0
	until(t, "notifications", func() bool { got += len(b.notes()); return got == sent })
	until(t, "queue", func() bool { a.core.TakeNotifs(); return a.sess.Queued() == 0 })
	until(t, "credits", func() bool { a.core.TakeNotifs(); return a.link.Stats().Credits > 24 }) // credits come back in batches of 8
	require.LessOrEqual(t, a.link.Stats().Credits, uint32(32))
}

// Abort drops unposted operations. The transfer ends, with an event, when its posted operations have completed.
func TestAbort(t *testing.T) {
	a, b := ends(t, fake.TCPCaps(), nil)
	b.rail.Stall()
	x, y := a.xfer(b, core.Write, 32, 128<<10), a.xfer(b, core.Write, 1, 100)
	a.post(x, "never")
	a.post(y, "never")
	until(t, "nothing posted", func() bool { return a.link.Stats().InflightOps > 0 })
	require.False(t, a.core.Abort(x, -11), "operations are posted")
	require.False(t, a.core.Wait(x, time.Millisecond))
	a.core.Abort(y, -11)
	b.rail.Release()
	require.True(t, a.core.Wait(x, 10*time.Second))
	ids := map[uint64]bool{a.event().ID: true, a.event().ID: true}
	require.Len(t, ids, 2)
	for _, z := range []core.Xfer{x, y} {
		require.True(t, z.NeedsFinalize())
		code, _ := z.Err()
		require.EqualValues(t, -11, code)
		z.Finalize(-11)
	}
	require.Less(t, x.Done(), uint64(32*128<<10))
	z := a.xfer(b, core.Write, 1, 64)
	a.post(z, "behind")
	var got []string
	until(t, "notification", func() bool { got = append(got, b.notes()...); return len(got) > 0 })
	require.Equal(t, "peer:behind", got[len(got)-1])
}

// After an error nothing more is posted and one event reports it. After a rebind everything without proof goes out again.
func TestRebind(t *testing.T) {
	for name, caps := range map[string]fake.Caps{"ordered": fake.TCPCaps(), "unordered": fake.EFACaps()} {
		t.Run(name, func(t *testing.T) {
			a, b := ends(t, caps, nil)
			for n := 1; n <= 5; n++ { // 4 chunks and the notification
				pattern(a.mem, byte(n))
				clear(b.mem)
				a.rail.Script(fake.Script{FailAt: uint64(n), FailErrno: syscall.EIO, FailBreaks: caps.Ordered})
				x := a.xfer(b, core.Write, 4, 128<<10)
				a.post(x, "once")
				ev := a.event()
				require.EqualValues(t, core.EvLink, ev.Kind)
				require.EqualValues(t, 91, ev.ID)
				require.EqualValues(t, syscall.EIO, ev.Code)
				require.False(t, a.link.Stats().State == core.LinkUp)
				fence(t, a, b)
				require.True(t, a.core.Wait(x, 10*time.Second))
				var got []string
				until(t, "notification", func() bool { got = append(got, b.notes()...); return len(got) > 0 })
				require.Equal(t, []string{"peer:once"}, got)
				require.True(t, bytes.Equal(a.mem[:512<<10], b.mem[:512<<10]))
				a.core.FreeXfer(x)
				require.Empty(t, a.got)
			}
		})
	}
}

// A rebind that fails posts nothing: the caller hands the link's work back, and what the library still had would be posted twice.
func TestRebindFails(t *testing.T) {
	for name, probe := range map[string]bool{"working": false, "probing": true} {
		t.Run(name, func(t *testing.T) {
			a, b := ends(t, fake.TCPCaps(), nil)
			pattern(a.mem, 7)
			a.rail.Script(fake.Script{FailAt: 2, FailErrno: syscall.EIO, FailBreaks: true})
			x := a.xfer(b, core.Write, 4, 128<<10)
			a.post(x, "once")
			require.EqualValues(t, core.EvLink, a.event().Kind)
			a.quiesce()
			b.quiesce()
			connect(t, a, b)
			next, _ := b.sess.NextSeq()
			require.NoError(t, b.link.Rebind(b.ep.Core(), 1, core.Proof{}, false))
			a.rail.Script(fake.Script{RecvErrno: syscall.EIO})
			before := a.rail.Counters()
			require.Equal(t, syscall.EIO, a.link.Rebind(a.ep.Core(), 1, core.Proof{Next: next}, probe))
			a.link.HandBack(core.Proof{Next: next})
			require.Equal(t, core.LinkStopped, a.link.Stats().State)
			after := a.rail.Counters()
			require.Equal(t, before.Posts+before.Sends, after.Posts+after.Sends)
			a.rail.Script(fake.Script{})
			fence(t, a, b)
			require.True(t, a.core.Wait(x, 10*time.Second))
			var got []string
			until(t, "notification", func() bool { got = append(got, b.notes()...); return len(got) > 0 })
			require.Equal(t, []string{"peer:once"}, got)
			require.True(t, bytes.Equal(a.mem[:512<<10], b.mem[:512<<10]))
		})
	}
}

// A post on a region that is not live ends the transfer with an error.
func TestDeadRegion(t *testing.T) {
	a, b := ends(t, fake.TCPCaps(), nil)
	r, err := a.core.Region(farRegion)
	require.NoError(t, err)
	r.SetLive(false)
	x := a.xfer(b, core.Write, 1, 64)
	a.post(x, "never")
	ev := a.event()
	require.EqualValues(t, core.EvXfer, ev.Kind)
	code, wire := x.Err()
	require.EqualValues(t, -3, code)
	require.Equal(t, syscall.ESTALE, wire)
	x.Finalize(-3)
	require.Zero(t, a.sess.Queued(), "the dropped notification no longer counts")
	r.SetLive(true)
	a.post(x, "now")
	until(t, "write", func() bool { return a.done(x, 1, 64) })
	_, err = a.core.Region(1 << 30)
	require.Error(t, err)
}

// second gives both ends one more link over the same rail.
func second(t *testing.T, a, b *end) (la, lb core.Link) {
	var eps [2]provider.Endpoint
	for i, e := range []*end{a, b} {
		ep, err := e.rail.OpenEndpoint()
		require.NoError(t, err)
		eps[i] = ep
	}
	require.NoError(t, eps[0].Connect(eps[1].Addr()))
	require.NoError(t, eps[1].Connect(eps[0].Addr()))
	lb, err := b.sess.NewLink(0, 0, eps[1].Core(), 94, 93, core.Target, false)
	require.NoError(t, err)
	la, err = a.sess.NewLink(0, 0, eps[0].Core(), 93, 94, core.Initiator, false)
	require.NoError(t, err)
	t.Cleanup(func() {
		for i, l := range []core.Link{la, lb} {
			l.Stop()
			require.NoError(t, eps[i].Close())
			l.Reap()
			l.Fail(-3)
			l.Free()
		}
	})
	return la, lb
}

func (e *end) postOn(l core.Link, x core.Xfer) {
	x.Start()
	e.core.Post(x, []core.Link{l}, 0, false, nil)
}

// After a post of a small transfer on one link, large ones on another link keep little in flight if the same processor moves the bytes of both.
func TestSmallOnAnotherLink(t *testing.T) {
	const most = 192 << 10
	for _, same := range []bool{false, true} {
		caps := fake.TCPCaps()
		caps.ByProcessor = same
		a, b := ends(t, caps, map[string]string{"window_min": "1MiB"})
		link, _ := second(t, a, b)
		little := false
		for try := 0; try < 100 && !little; try++ { // a starved test may post the large one too late
			b.rail.Stall()
			small, large := a.xfer(b, core.Write, 1, 4<<10), a.xfer(b, core.Write, 16, 64<<10)
			a.postOn(link, small)
			a.postOn(a.link, large)
			until(t, "nothing posted", func() bool { return a.link.Stats().InflightBytes > 0 })
			little = a.link.Stats().InflightBytes <= most
			b.rail.Release()
			require.True(t, a.core.Wait(small, 10*time.Second))
			require.True(t, a.core.Wait(large, 10*time.Second))
			a.core.FreeXfer(small)
			a.core.FreeXfer(large)
			if !same {
				require.False(t, little)
			}
		}
		require.Equal(t, same, little)
	}
}

func TestTrace(t *testing.T) {
	a, b := ends(t, fake.TCPCaps(), nil)
	run := func(op, bytes int) core.Xfer {
		x := a.xfer(b, op, 1, bytes)
		a.post(x)
		require.True(t, a.core.Wait(x, 10*time.Second))
		return x
	}
	run(core.Write, 64)
	list, lost := a.core.StopTrace()
	require.Empty(t, list, "no trace was started")
	require.Zero(t, lost)

	require.NoError(t, a.core.StartTrace())
	require.ErrorIs(t, a.core.StartTrace(), syscall.EBUSY)
	begin := core.Now()
	w := run(core.Write, 100)
	run(core.Read, 200)
	region, err := a.core.Region(farRegion)
	require.NoError(t, err)
	region.SetLive(false)
	bad := a.xfer(b, core.Write, 1, 300)
	a.post(bad)
	a.event()
	bad.Finalize(-3)
	region.SetLive(true)
	list, lost = a.core.StopTrace()
	require.Zero(t, lost)
	require.Len(t, list, 3)
	for _, x := range list {
		require.LessOrEqual(t, x.Posted, x.Ended)
		require.GreaterOrEqual(t, x.Posted, begin)
		require.EqualValues(t, 70, x.Session)
	}
	require.Equal(t, []int{0}, list[0].Rails)
	require.Equal(t, []uint64{100, 200, 300}, []uint64{list[0].Bytes, list[1].Bytes, list[2].Bytes})
	require.Equal(t, []int{core.Write, core.Read, core.Write}, []int{list[0].Op, list[1].Op, list[2].Op})
	require.Equal(t, []int{0, 0, -3}, []int{list[0].Err, list[1].Err, list[2].Err})
	require.Empty(t, list[2].Rails)

	// Traces start and stop beside a thread that posts. What found no room is counted.
	var wg sync.WaitGroup
	quit := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
			}
			a.post(w)
			a.core.Wait(w, 10*time.Second)
		}
	})
	for range 20 {
		require.NoError(t, a.core.StartTrace())
		time.Sleep(time.Millisecond) // how much is posted meanwhile does not matter
		list, lost = a.core.StopTrace()
		require.Zero(t, lost)
		for _, x := range list {
			require.EqualValues(t, 100, x.Bytes)
		}
	}
	close(quit)
	wg.Wait()
	require.NoError(t, a.core.StartTrace())
	for range core.TraceMax + 10 {
		a.post(w)
		if !a.core.Wait(w, 10*time.Second) {
			t.Fatal("no end")
		}
	}
	list, lost = a.core.StopTrace()
	require.Len(t, list, core.TraceMax)
	require.EqualValues(t, 10, lost)
}
