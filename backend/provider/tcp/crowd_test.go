package tcp

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
)

// BenchmarkManyLinks connects 1,000 links of one address at once.
func BenchmarkManyLinks(b *testing.B) {
	const links = 1000
	for b.Loop() {
		var up sync.WaitGroup
		up.Add(2 * links)
		p := New(Options{ConnectTimeout: time.Minute, tune: func(int) { up.Done() }})
		list, err := p.Discover(b.Context(), provider.Filter{Devices: []string{"lo"}})
		require.NoError(b, err)
		var rails [2]provider.Rail
		for i := range rails {
			rails[i], err = p.Open(list[0])
			require.NoError(b, err)
		}
		var ends [2][links]provider.Endpoint
		for side := range ends {
			for i := range links {
				ends[side][i], err = rails[side].OpenEndpoint()
				require.NoError(b, err)
				ends[side][i].(provider.Secured).Secure(security(side == 0))
			}
		}
		for side := range ends {
			for i := range links {
				require.NoError(b, ends[1-side][i].Connect(ends[side][i].Addr())) // the target's first
			}
		}
		up.Wait()
		for side := range ends {
			for i := range links {
				require.NoError(b, ends[side][i].Close())
			}
			require.NoError(b, rails[side].Close())
		}
	}
}
