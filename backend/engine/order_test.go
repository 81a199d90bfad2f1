package engine

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/transfer"
)

// A transfer waits for keys. Another transfer is posted after it. The notifications arrive in that order, whenever the keys come.
func TestQueuedPostsGoFirst(t *testing.T) {
	t.Parallel()
	most := rounds(150, 3000)
	h := onFake(t, fake.TCPCaps())
	p := h.pair(64, "cancel_timeout", "1m")
	p.a.connected("bob")
	for n := range most {
		m := p.b.memory(4096)
		there := m.seenBy(p.a)
		local, remote := []Desc{p.mine.desc(0, 64)}, []Desc{there.desc(0, 64)}
		first, second := p.a.prep(transfer.Write, local, remote, "bob"), p.a.prep(transfer.Write, local, remote, "bob")
		first.post("first")
		for end := time.Now().Add(time.Duration(rand.IntN(400)) * time.Microsecond); time.Now().Before(end); { // the keys may come meanwhile
		}
		second.post("second")
		first.wait()
		second.wait()
		until(t, "both notifications arrive", func() bool { return len(p.b.take()) >= 2 })
		require.Equal(t, []string{"ann:first", "ann:second"}, p.b.got, "round %d", n)
		p.b.got = nil
		first.release()
		second.release()
		require.NoError(t, p.b.Deregister(m.md.region))
		require.NoError(t, p.a.UnloadRemote(there.md.region))
	}
}
