package tcp

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/provider/tcp/sock"
	"gorail/test/conform"
)

// opener opens the loopback interface.
func opener(o Options) func(t *testing.T) provider.Rail {
	return func(t *testing.T) provider.Rail {
		t.Helper()
		p := New(o)
		list, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{provider.TCP}, Devices: []string{"lo"}})
		require.NoError(t, err)
		require.Len(t, list, 1)
		r, err := p.Open(list[0])
		require.NoError(t, err)
		return r
	}
}

func TestConform(t *testing.T) {
	t.Parallel()
	conform.Run(t, conform.Is(conform.Traits{DeliveryComplete: true, Numbered: true}), opener(Options{}))
}

// TestConformEncrypted: with records the rail passes the same tests, and each connection changes its keys many times.
func TestConformEncrypted(t *testing.T) {
	t.Parallel()
	conform.Run(t, conform.Is(conform.Traits{DeliveryComplete: true, Numbered: true}), func(t *testing.T) provider.Rail {
		r := opener(Options{Encryption: true})(t)
		r.(*rail).c.Tune(5, 300<<10, 100<<10)
		return r
	})
}

// TestConformPacked: the same tests pass if every body is packed, of one byte, too, in clear and in records.
func TestConformPacked(t *testing.T) {
	t.Parallel()
	for _, encrypted := range []bool{false, true} {
		t.Run(fmt.Sprint("encrypted ", encrypted), func(t *testing.T) {
			t.Parallel()
			conform.Run(t, conform.Is(conform.Traits{DeliveryComplete: true, Numbered: true}), func(t *testing.T) provider.Rail {
				r := opener(Options{Encryption: encrypted, Compression: sock.AlwaysPack})(t)
				r.(*rail).c.TunePacking(1)
				return r
			})
		})
	}
}
