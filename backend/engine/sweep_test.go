package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
	"gorail/test/fake"
)

// TestShortTransfers: an application that begins and releases short transfers all the time has its peers looked at every owedEvery, and no more often: with 100
// peers, a look at each beginning took more than a core.
func TestShortTransfers(t *testing.T) {
	h := onLinks(t, 2, fake.TCPCaps())
	p := h.pair(64 << 10)
	p.a.whole(transfer.Write, p.mine, p.theirs).run()
	closer := p.a.stir.closer
	begin := func() bool {
		select {
		case closer <- struct{}{}:
			return true
		default:
			return false
		}
	}
	begin()
	until(h, "the sweeper looks when transfers begin", begin)
	const all = 500 * time.Millisecond
	looks := 0
	for end := time.Now().Add(all); time.Now().Before(end); time.Sleep(20 * time.Microsecond) {
		if begin() {
			looks++
		}
	}
	require.LessOrEqual(t, looks, int(all/owedEvery)+2)
}
