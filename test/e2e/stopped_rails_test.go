package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// TestStoppedOverTwoRails: a side is stopped for longer than rail_timeout while small transfers go over two rails. Silence is not
// death: the session stays, and each stop costs at most one fence, since a rail is left without an idle or working other one then.
func TestStoppedOverTwoRails(t *testing.T) {
	t.Parallel()
	ours(t)
	if testing.Short() {
		t.Skip("stops a process for seconds")
	}
	for name, of := range map[string]func(p *pairOf) *worker.Agent{
		"target":    func(p *pairOf) *worker.Agent { return p.tgt },
		"initiator": func(p *pairOf) *worker.Agent { return p.ini },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := rails(t, failoverMbit, failoverMbit)
			p := onRails(t, a, b, "log", "info", "data_port", failoverPorts)
			const n, size = 16, 64 << 10
			mine, his := p.buffers(n * size)
			var set []*worker.Xfer
			for i := range uint64(n) {
				set = append(set, p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: mine.Span(i*size, size), Remote: his.Span(i*size, size), Peer: "bob"}))
			}
			const stops = 2
			for range stops {
				for _, x := range set {
					x.Do(limit)
				}
				for _, x := range set {
					x.Post()
				}
				of(p).Stop()
				time.Sleep(3 * time.Second)
				of(p).Cont()
				for _, x := range set {
					require.Equal(t, nixlapi.Success, x.Wait(limit), "%s\n%s", p.ini.Output(), p.tgt.Output())
				}
			}
			fences := 0
			for _, text := range []string{p.ini.Output(), p.tgt.Output()} {
				for _, end := range []string{"peer lost", "session with a peer suspended"} {
					require.NotContains(t, text, end)
				}
				fences += strings.Count(text, "fencing a link")
			}
			t.Logf("%d fences", fences)
			require.LessOrEqual(t, fences, stops, "%s", p.ini.Output())
		})
	}
}
