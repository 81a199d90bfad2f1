package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/internal/pattern"
	"gorail/nixlapi"
	"gorail/test/worker"
)

// TestNotifAlone sends notifications without a transfer: text, empty, binary.
func TestNotifAlone(t *testing.T) {
	t.Parallel()
	p := pair(t)
	p.ini.Learn(p.tgt)
	p.ini.Polling(true) // a backend without a progress thread sends in the sender's polls
	for _, msg := range [][]byte{[]byte("hello"), {}, {0, 1, 0, 255}, []byte("last")} {
		require.NoError(t, p.ini.GenNotif("bob", msg))
		got := p.tgt.WaitNotifs(1, limit)
		require.Len(t, got, 1)
		require.Equal(t, "alice", got[0].From)
		pattern.Same(t, msg, got[0].Msg, "%q", got[0].Msg)
	}
}

// TestNotifBig sends messages up to 16 MiB, with sizes around those at which backends split a message.
func TestNotifBig(t *testing.T) {
	t.Parallel()
	p := pair(t)
	a, b := p.buffers(4096)
	p.ini.Polling(true)
	for i, size := range []int{255, 256, 1023, 4096, 8191, 8192, 65535, 65537, 1 << 20, 4<<20 + 1, 16 << 20} {
		msg := make([]byte, size)
		pattern.Fill(msg, uint64(i), 0)
		require.NoError(t, p.ini.GenNotif("bob", msg))
		got := p.tgt.WaitNotifs(1, limit)
		require.Len(t, got, 1, size)
		pattern.Same(t, msg, got[0].Msg, size)

		x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: msg})
		x.Do(limit)
		got = p.tgt.WaitNotifs(1, limit)
		require.Len(t, got, 1, size)
		pattern.Same(t, msg, got[0].Msg, size)
		require.NoError(t, x.Release())
	}
}

// TestNotifUnread: the sender goes on while the receiver does not poll. The receiver gets every notification when it
// polls.
func TestNotifUnread(t *testing.T) {
	t.Parallel()
	const n = 5000
	p := quietPair(t)
	a, b := p.buffers(1 << 20)
	require.Nil(t, p.ini.GenNotifsAsync("bob", "u", n).Wait().Err)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("w")})
	l := x.Loop(worker.LoopArgs{N: 100, Timeout: limit})
	require.Equal(t, 100, l.Done, l.Status)
	got := p.tgt.WaitNotifs(n+100, limit)
	require.Len(t, got, n+100)
	alone := 0
	for _, g := range got {
		if g.Msg[0] == 'u' {
			require.Equal(t, worker.Seq("u", alone), g.Msg)
			alone++
		}
	}
	require.Equal(t, n, alone)
	b.Want(seedA)
}

// TestNotifManySenders: three senders notify a receiver that has not loaded their metadata.
func TestNotifManySenders(t *testing.T) {
	t.Parallel()
	const senders, n = 3, 300
	tgt := start(t, "bob")
	tgt.Polling(true)
	for i := range senders {
		name := string(worker.Seq("sender-", i))
		s := start(t, name)
		s.Learn(tgt)
		require.Nil(t, s.GenNotifsAsync("bob", name+":", n).Wait().Err)
		require.False(t, tgt.Knows(name))
	}
	next := map[string]int{}
	got := tgt.WaitNotifs(senders*n, limit)
	require.Len(t, got, senders*n)
	for _, g := range got {
		require.Equal(t, worker.Seq(g.From+":", next[g.From]), g.Msg)
		next[g.From]++
	}
	require.Len(t, next, senders)
}
