package engine

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/status"
	"gorail/backend/transfer"
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
		require.Equal(h, status.ErrBackend, status.Of(err))
		for _, part := range []string{"bob", "notif_queue", "65536"} {
			require.ErrorContains(h, err, part)
		}
		require.Greater(h, sent, 64, "both ends keep notifications")
		require.Less(h, sent, 300)
		x.post("last")
		for range 200 {
			require.Equal(h, inProg, x.check())
		}
		require.Equal(h, status.ErrRepostActive, func() status.Code { _, err := x.Post(); return status.Of(err) }())

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
