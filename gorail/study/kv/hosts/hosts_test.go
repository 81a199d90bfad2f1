package hosts

import (
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/skip"
)

// TestHosts: two hosts reach each other over each rail. What is dropped one way does not arrive, a share of it in part; a rail that is
// down, and an address that was replaced, carry nothing; what is healed carries all.
func TestHosts(t *testing.T) {
	skip.UnlessRoot(t, "network namespaces")
	w, err := New(2, t.TempDir())
	require.NoError(t, err)
	defer w.Close()
	a, b := w.Hosts[0], w.Hosts[1]
	got := func(r, n int) (came int) {
		var there net.PacketConn
		require.NoError(t, b.In(func() (err error) {
			there, err = net.ListenPacket("udp", fmt.Sprintf("%v:0", b.addr(r).IP))
			return err
		}))
		defer there.Close()
		require.NoError(t, a.In(func() error {
			c, err := net.Dial("udp", there.LocalAddr().String())
			if err != nil {
				return err
			}
			defer c.Close()
			for range n {
				_, _ = c.Write([]byte("x"))
			}
			return nil
		}))
		_ = there.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		for buf := make([]byte, 9); ; came++ {
			if _, _, err := there.ReadFrom(buf); err != nil {
				return came
			}
		}
	}
	all := func() {
		t.Helper()
		for r := range Rails {
			require.Eventually(t, func() bool { return got(r, 1) == 1 }, 10*time.Second, time.Millisecond, "rail %d", r)
		}
	}
	all()
	require.NoError(t, a.Drop(1, Out))
	require.Zero(t, got(0, 5)+got(1, 5))
	require.NoError(t, a.Heal())
	require.NoError(t, a.Drop(1, In))
	require.Equal(t, 5, got(0, 5), "the other way is open")
	require.NoError(t, a.Heal())
	require.NoError(t, b.Drop(1, Out, In))
	require.Zero(t, got(0, 5)+got(1, 5))
	require.NoError(t, b.Heal())
	require.NoError(t, b.Drop(0.5, In))
	require.InDelta(t, 100, got(0, 200), 60, "half of 200, within 8 standard deviations")
	require.NoError(t, b.Heal())
	all()
	require.NoError(t, a.Rail(1, false))
	require.Equal(t, 3, got(0, 3))
	require.NoError(t, a.Rail(1, true))
	require.NoError(t, b.Readdress(1))
	all()
}

// TestMeeting: what a host's processes leave where engines meet is there for its next process, not for other hosts nor for this machine. The rest
// of /run is there as on this machine, and the study's files may be there.
func TestMeeting(t *testing.T) {
	skip.UnlessRoot(t, "network namespaces")
	dir, err := os.MkdirTemp("/run", "gorail-test-")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	w, err := New(2, dir)
	require.NoError(t, err)
	defer w.Close()
	left := fmt.Sprintf("%s/test-%d", meeting, os.Getpid())
	require.NoError(t, w.Hosts[0].In(func() error { return os.WriteFile(left, nil, 0o600) }))
	require.NoError(t, w.Hosts[0].In(func() error { _, err := os.Stat(left); return err }))
	require.ErrorIs(t, w.Hosts[1].In(func() error { _, err := os.Stat(left); return err }), os.ErrNotExist)
	require.NoFileExists(t, left)
	require.NoError(t, w.Hosts[0].In(func() error { return os.WriteFile(dir+"/out", nil, 0o600) }))
	require.FileExists(t, dir+"/out")
}
