package verbs

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIWarpAddress(t *testing.T) {
	good := iwAddress{IP: netip.MustParseAddr("192.0.2.7"), Port: 5, Cookie: 1 << 63, Reads: 16}
	a, ok := decodeIWAddress(good.encode())
	require.True(t, ok)
	require.Equal(t, good, a)
	require.Len(t, good.encode(), iwAddressLen)
	for name, bad := range map[string]func(a *iwAddress){
		"no port":     func(a *iwAddress) { a.Port = 0 },
		"no reads":    func(a *iwAddress) { a.Reads = 0 },
		"unspecified": func(a *iwAddress) { a.IP = netip.IPv4Unspecified() },
		"multicast":   func(a *iwAddress) { a.IP = netip.MustParseAddr("ff02::1") },
	} {
		a := good
		bad(&a)
		_, ok := decodeIWAddress(a.encode())
		require.False(t, ok, name)
	}
	_, ok = decodeIWAddress(address{QPN: 17, MTU: 1024, Reads: 1}.encode())
	require.False(t, ok)
	_, ok = decodeAddress(good.encode())
	require.False(t, ok)
}

// FuzzIWarpAddress: every address that decodes has exactly one encoding.
func FuzzIWarpAddress(f *testing.F) {
	f.Add([]byte{})
	f.Add(iwAddress{IP: netip.MustParseAddr("192.0.2.7"), Port: 5, Cookie: 7, Reads: 16}.encode())
	f.Add(iwAddress{IP: netip.MustParseAddr("2001:db8::1"), Port: 65535, Cookie: 1 << 63, Reads: 255}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, ok := decodeIWAddress(b); ok {
			require.Equal(t, b, a.encode())
			require.NotZero(t, a.Reads)
			require.NotZero(t, a.Port)
		}
	})
}
