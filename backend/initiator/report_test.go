package initiator

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// A peer that answers no question gets no second one. Its late answer serves who asks then. Answers that nobody asked for are
// dropped.
func TestOneQuestionAtATime(t *testing.T) {
	var q question
	var sent []uint64
	send := func(id uint64) { sent = append(sent, id) }
	q.answered(wire.Snapshot{})
	q.answered(wire.Snapshot{ID: 5})
	first := q.ask(5, send)
	second := q.ask(6, send)
	require.Equal(t, []uint64{5}, sent)
	q.answered(wire.Snapshot{ID: 6})
	require.Empty(t, second)
	q.answered(wire.Snapshot{ID: 5, NextSeq: 9})
	q.answered(wire.Snapshot{ID: 5, NextSeq: 10})
	require.EqualValues(t, 9, (<-second).NextSeq)
	require.Empty(t, second, "once")
	require.Empty(t, first, "its report has given up")
	q.ask(7, send)
	require.Equal(t, []uint64{5, 7}, sent)
}

// The line of a snapshot says what an operator needs: the peer starves, sees a link down, lacks something, or is idle.
func TestMeansOfSnapshots(t *testing.T) {
	own := ownSide{sent: 10, up: map[uint8]bool{0: true, 1: true, 2: false}}
	link := func(n uint8, s wire.LinkState) wire.LinkView { return wire.LinkView{Number: n, State: s} }
	for want, change := range map[string]func(s *wire.Snapshot){
		"idle and has all notifications sent":     func(*wire.Snapshot) {},
		"stopped or starved of CPU time":          func(s *wire.Snapshot) { s.Late, s.Links[1].State = wire.NewAgo(starved), wire.LinkStopped },
		"up here, and down at the peer: link 0,1": func(s *wire.Snapshot) { s.Links[0].State, s.Links[1].State = wire.LinkStopped, wire.LinkClosed },
		"up here, and down at the peer: link 1":   func(s *wire.Snapshot) { s.Links[1].State, s.NextSeq = wire.LinkUnproved, 0 },
		"lacks notifications from number 7 on":    func(s *wire.Snapshot) { s.NextSeq = 7 },
		"messages for this side":                  func(s *wire.Snapshot) { s.Links[1].Queued = 1 },
		"copies to or from bounce buffers":        func(s *wire.Snapshot) { s.Copies = 2 },
		"ends or has ended the session":           func(s *wire.Snapshot) { s.State = wire.SnapshotEnding },
		"the peer ends or has ended":              func(s *wire.Snapshot) { s.State, s.Late = wire.SnapshotNone, wire.NewAgo(time.Hour) },
		"opens or closes endpoints":               func(s *wire.Snapshot) { s.State, s.Links = wire.SnapshotBusy, nil },
		"its limit snapshots is reached":          func(s *wire.Snapshot) { *s = wire.Snapshot{State: wire.SnapshotRefused} },
	} {
		s := wire.Snapshot{State: wire.SnapshotServing, Late: wire.NewAgo(200 * time.Millisecond), NextSeq: 10,
			Links: []wire.LinkView{link(0, wire.LinkUp), link(1, wire.LinkUp), link(2, wire.LinkClosed)}}
		change(&s)
		require.Contains(t, own.means(s), want)
	}
}

// Links that are not up come first, because a report has few.
func TestLinesOfSnapshots(t *testing.T) {
	own := ownSide{sent: 3}
	about, links := own.describe(wire.Snapshot{State: wire.SnapshotServing, Uptime: wire.NewAgo(time.Minute), Heard: wire.NewAgo(time.Second), Sessions: 4, Transfers: 5,
		NextSeq: 2, Waiting: 1, Rings: 6, Copies: 7, Links: []wire.LinkView{
			{State: wire.LinkUp, Ops: 1, Bytes: 64, Credits: 30, Queued: 2, Received: 8, Completions: 9, Errors: 1, Progress: wire.NewAgo(time.Millisecond)},
			{Number: 1, State: wire.LinkStopped}}})
	require.Equal(t, []any{"session", "serving", "means", own.means(wire.Snapshot{State: wire.SnapshotServing, NextSeq: 2}), "heard_ago", time.Second, "uptime", time.Minute,
		"sessions", uint32(4), "transfers_in_flight", uint32(5), "notifications_sent", uint64(3), "notifications_received", uint64(2), "notifications_waiting", uint32(1),
		"bounce_buffers", uint32(6), "copies", uint32(7), "links", 2}, about)
	require.Equal(t, "[[link 1 state stopped in_flight 0 messages, 0 bytes credits 0 queued_messages 0 messages_received 0 completions 0 errors 0] "+
		"[link 0 state up last_progress_ago 1ms in_flight 1 messages, 64 bytes credits 30 queued_messages 2 messages_received 8 completions 9 errors 1]]", fmt.Sprint(links))
	about, links = own.describe(wire.Snapshot{State: wire.SnapshotRefused})
	require.Len(t, about, 4)
	require.Empty(t, links)
}
