package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/hostmem"
	"gorail/test/worker"
)

// TestRegisteredAgain: the peer deregisters memory and registers it again at the same address, and then a transfer is posted. It finds the new
// registration, though a request for keys was answered in between.
func TestRegisteredAgain(t *testing.T) {
	t.Parallel()
	ours(t)
	for name, provider := range map[string]string{"tcp": "tcp", "direct": smProvider()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := pair(t, params("provider", provider))
			const size = 64 << 10
			a, b := p.ini.Alloc(size, hostmem.Anon), p.tgt.Alloc(size, hostmem.Anon)
			require.NoError(t, p.ini.Register(a.All()))
			other := p.tgt.Alloc(size, hostmem.Anon) // NIXL loads no metadata of an agent without memory
			require.NoError(t, p.tgt.Register(other.All(), b.All()))
			p.ini.Learn(p.tgt)
			made := map[nixlapi.Op]*worker.Xfer{}
			for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
				made[op] = p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob"})
			}
			extra := p.tgt.Alloc(uint64(4096*rounds(80, 1000)), hostmem.Anon)
			loaded := make(chan error, 1)
			for i := range rounds(40, 500) {
				for j, x := range []*worker.Xfer{made[nixlapi.Write], made[nixlapi.Read]} {
					require.NoError(t, p.tgt.Register(extra.Span(uint64(2*i+j)*4096, 4096)))
					md := p.tgt.Metadata()
					require.NoError(t, p.tgt.Deregister(b.All()))
					go func() { // asks for keys of both
						_, err := p.ini.Load(md)
						loaded <- err
					}()
					require.NoError(t, p.tgt.Register(b.All()))
					require.NoError(t, <-loaded)
					x.Do(limit)
				}
			}
		})
	}
}
