package core_test

import (
	"context"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gorail/backend/core"
	"gorail/backend/provider"
	"gorail/backend/wire"
	"gorail/test/drive"
	"gorail/test/fake"
)

// intruder is a peer without our core. It sends arbitrary messages to an end whose link has the number 92.
type intruder struct {
	f    *fake.Fabric
	rail provider.Rail
	ep   provider.Endpoint
	mem  []byte
	to   *end
}

func newIntruder(t require.TestingT, tb testing.TB) *intruder {
	s := &intruder{f: fake.NewFabric(3), mem: drive.Alloc(4096)}
	s.to = newEnd(tb, s.f, fake.TCPCaps(), 1, nil)
	p := s.f.Provider(fake.Link{Name: "x", Caps: fake.TCPCaps()})
	devs, err := p.Discover(context.Background(), provider.Filter{})
	require.NoError(t, err)
	s.rail, err = p.Open(devs[0])
	require.NoError(t, err)
	s.ep, err = s.rail.OpenEndpoint()
	require.NoError(t, err)
	s.to.ep, err = s.to.rail.OpenEndpoint()
	require.NoError(t, err)
	require.NoError(t, s.ep.Connect(s.to.ep.Addr()))
	require.NoError(t, s.to.ep.Connect(s.ep.Addr()))
	s.to.sess, err = s.to.core.NewSession(70, "peer")
	require.NoError(t, err)
	s.to.link, err = s.to.sess.NewLink(0, 0, s.to.ep.Core(), 92, 91, core.Target, false)
	require.NoError(t, err)
	return s
}

func (s *intruder) close(t require.TestingT) {
	s.to.close(t)
	require.NoError(t, s.ep.Close())
	require.NoError(t, s.rail.Close())
	require.NoError(t, s.f.Close())
}

// drawMessage makes random messages. Many of them are nearly right.
func drawMessage(t *rapid.T) []byte {
	little := func(name string) uint32 {
		return rapid.SampledFrom([]uint32{0, 0, 0, 1, 1, 2, 100, 1<<32 - 1}).Draw(t, name)
	}
	h := wire.Header{Kind: wire.Kind(rapid.IntRange(0, 5).Draw(t, "kind")), Subs: uint16(little("subs")), Sub: uint16(little("sub")),
		Seq: uint64(little("seq")), Total: little("total"), Offset: little("offset"), Count: little("count"), To: 92}
	if rapid.Bool().Draw(t, "usual") {
		h = wire.Header{Kind: h.Kind, Total: h.Total, To: 92}
		if h.Kind == wire.KindNotif || h.Kind == wire.KindSkip {
			h.Subs = 1
		}
	}
	msg := make([]byte, wire.HeaderSize+rapid.SampledFrom([]int{0, 0, 1, 2, 100, 101}).Draw(t, "payload"))
	h.Put(msg)
	if at := rapid.IntRange(0, 2*wire.HeaderSize).Draw(t, "poked"); at < wire.HeaderSize {
		msg[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
	}
	if cut := rapid.IntRange(0, 20*wire.HeaderSize).Draw(t, "cut"); cut < wire.HeaderSize {
		msg = msg[:cut+1]
	}
	return msg
}

// TestHostileMessages: the core accepts exactly the messages that package wire accepts, from any sender. Any other message
// fails its link.
func TestHostileMessages(t *testing.T) {
	notif := func(change func(*wire.Header), payload int) []byte {
		h := wire.Header{Kind: wire.KindNotif, Subs: 1, Total: uint32(payload), To: 92}
		change(&h)
		msg := make([]byte, wire.HeaderSize+payload)
		h.Put(msg)
		return msg
	}
	require.True(t, taken(t, t, notif(func(*wire.Header) {}, 5)))
	require.True(t, taken(t, t, notif(func(h *wire.Header) { h.Kind = wire.KindSkip }, 0)))
	require.False(t, taken(t, t, notif(func(h *wire.Header) { h.Subs = 0 }, 5)))
	require.False(t, taken(t, t, notif(func(h *wire.Header) { h.Total, h.Offset = 1, 1<<32-2 }, 3)), "the sum wraps")
	require.True(t, taken(t, t, notif(func(h *wire.Header) { h.Count = 31 }, 5)))
	require.False(t, taken(t, t, notif(func(h *wire.Header) { h.Count = 32 }, 5)), "the peer has no credit for slot 32")
	require.False(t, taken(t, t, notif(func(h *wire.Header) { h.Count = 1<<32 - 1 }, 5)), "a slot before the first")
	reserved := notif(func(*wire.Header) {}, 5)
	reserved[wire.OffSum] = 1
	require.False(t, taken(t, t, reserved))
	rapid.Check(t, func(r *rapid.T) { taken(r, t, drawMessage(r)) })
}

// taken sends a message to a core and reports whether the core accepted it. The core and package wire must agree.
func taken(t require.TestingT, tb *testing.T, m []byte) bool {
	s := newIntruder(t, tb)
	defer s.close(t)
	msg := s.mem[:copy(s.mem, m)]
	h, payload, err := wire.ParseMessage(msg)
	fine := err == nil && h.To == 92 && h.Kind != wire.KindCredit && h.Count < 32 // only initiators take credits; slots end at 31
	require.NoError(t, drive.New(s.rail.Core()).Send(s.ep.Core(), 1, msg, nil))
	until(tb, "the message", func() bool { return s.to.link.Tally().Completions > 0 })
	s.to.link.Stop() // waits for a thread that takes the message in
	require.Equal(t, fine, s.to.core.Counters()["bad_messages"] == 0, "%+v: %v", h, err)
	if !fine && (err != nil || h.To == 92) { // else the message belongs to no link
		ev := s.to.event()
		require.Equal(t, [3]uint64{core.EvLink, 92, uint64(syscall.EBADMSG)}, [3]uint64{uint64(ev.Kind), ev.ID, uint64(ev.Code)})
	}
	if fine && h.Kind == wire.KindNotif && h.Seq == 0 && h.Subs == 1 && h.Offset == 0 && int(h.Total) == len(payload) {
		require.Equal(t, []string{"peer:" + string(payload)}, s.to.notes())
	}
	return fine
}
