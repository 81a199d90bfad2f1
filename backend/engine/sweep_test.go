package engine

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/limits"
	"gorail/backend/provider"
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

// warningProvider's rails have one warning, once it is set.
type warningProvider struct {
	provider.Provider
	text  *atomic.Value
	asked *atomic.Int64
}

type warningRail struct {
	provider.Rail
	p warningProvider
}

func (p warningProvider) Open(d provider.Device) (provider.Rail, error) {
	r, err := p.Provider.Open(d)
	return warningRail{r, p}, err
}

func (r warningRail) Warnings() []string {
	r.p.asked.Add(1)
	if text := r.p.text.Swap(""); text != "" {
		return []string{text.(string)}
	}
	return nil
}

func (r warningRail) Limited() map[limits.Limit]uint64 { return nil }
func (r warningRail) Packed() (before, after uint64)   { return 0, 0 }

// TestLastWarnings: a warning of a rail between the last sweep and the end of the engine is logged.
func TestLastWarnings(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	var text atomic.Value
	var asked atomic.Int64
	text.Store("")
	h.wrap = func(p provider.Provider) provider.Provider { return warningProvider{p, &text, &asked} }
	a, err := h.open("ann")
	require.NoError(t, err)
	until(h, "rails are asked for warnings", func() bool { return asked.Load() > 0 })
	text.Store("a problem at the end")
	require.NoError(t, a.Close())
	require.True(t, h.log.has("a problem at the end"))
}
