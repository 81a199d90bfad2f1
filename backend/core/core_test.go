package core_test

import (
	"bytes"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/provider/fake"
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
