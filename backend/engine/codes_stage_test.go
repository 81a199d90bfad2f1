package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/provider/fake"
	"gorail/backend/transfer"
	"gorail/test/cuda"
)

func TestCodesOfStaging(t *testing.T) {
	t.Parallel()
	t.Run(errcode.NoStagingRoom.String(), func(t *testing.T) {
		t.Parallel()
		h := onFake(t, fake.TCPCaps())
		g := h.withGPUs()
		a, b := h.agent("ann"), h.agent("bob", "staging_memory", "2MiB")
		loadBoth(a, b)
		owned := g.block(b, 0, 1<<20)
		claim := b.claim(owned.md.region)
		to, offers := b.conn(), h.offer(b, 1)
		for i, room := 0, true; room; i++ { // strangers take all of it
			require.Less(t, i, 10)
			room = enters(t, to, strangerKey(i), 1, offers).asksForRing(t, claim).Range.Len > 0
		}
		a.whole2(transfer.Write, g.block(a, -1, 1<<20), owned.seenBy(a)).post().fails(errcode.NoStagingRoom.Status)
		require.True(t, h.log.has("transfer failed", "code="+errcode.NoStagingRoom.String()), h.log)
	})
	t.Run(errcode.StagingFailed.String(), func(t *testing.T) {
		t.Parallel()
		h := onFake(t, fake.TCPCaps())
		g := h.withGPUs()
		a, b := h.agent("ann"), h.agent("bob")
		loadBoth(a, b)
		mine, theirs := g.block(a, 0, 1<<20), g.block(b, 1, 1<<20).seenBy(a)
		g.lib.Fail("MemHostAlloc", 1, cuda.OutOfMemory)
		defer g.lib.Fail("MemHostAlloc", 0, 0)
		a.whole2(transfer.Write, mine, theirs).post().fails(errcode.StagingFailed.Status)
		require.True(t, h.log.has("transfer failed", "code="+errcode.StagingFailed.String()), h.log)
	})
	t.Run(errcode.StagingUnanswered.String(), func(t *testing.T) { // bob's GPU makes no copy
		t.Parallel()
		h := onFake(t, fake.TCPCaps())
		g := h.withGPUs()
		a, b := h.agent("ann", "xfer_timeout", "2s"), h.agent("bob") // the session must come up in this time, too
		loadBoth(a, b)
		mine, owned := g.block(a, -1, 1<<20), g.block(b, 1, 1<<20)
		g.lib.Set("hold", 1)
		defer func() { // bob may still take in requests: the memory is freed after the last copy
			g.lib.Set("hold", 0)
			require.NoError(t, b.Deregister(owned.md.region))
		}()
		a.whole2(transfer.Write, mine, owned.seenBy(a)).post().fails(errcode.StagingUnanswered.Status)
		require.True(t, h.log.has("transfer failed", "has not copied", "code="+errcode.StagingUnanswered.String()), h.log)
		require.True(t, h.log.has("session with a peer suspended", "has not copied"), h.log)
	})
}
