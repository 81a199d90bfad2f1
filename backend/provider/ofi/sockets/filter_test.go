package sockets

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The filter handles IPv6, and IPv4 addresses on a dual-stack socket.
func TestFilterOfBothFamilies(t *testing.T) {
	for _, c := range []struct {
		listen, from string
		nets         []string
		in           bool
	}{
		{"[::1]:0", "::1", []string{"::1/128"}, true},
		{"[::1]:0", "::1", []string{"fd00::/8", "::/64"}, true},
		{"[::1]:0", "::1", []string{"::/127", "10.0.0.0/8"}, true},
		{"[::1]:0", "::1", []string{"::2/127", "127.0.0.0/8"}, false},
		{"[::1]:0", "::1", []string{"0.0.0.0/0"}, false},
		{"[::1]:0", "::1", []string{"::/0"}, true},
		{"[::1]:0", "::1", nil, false},
		{"[::]:0", "127.0.0.5", []string{"127.0.0.4/31"}, true},
		{"[::]:0", "127.0.0.5", []string{"127.0.0.6/31", "::/0"}, false},
		{"127.0.0.1:0", "127.0.0.5", []string{"0.0.0.0/0"}, true},
	} {
		var plain net.ListenConfig
		plain.SetMultipathTCP(false) // MPTCP sockets accept no filters
		l, err := plain.Listen(context.Background(), "tcp", c.listen)
		if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
			t.Skip(err)
		}
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		var nets []netip.Prefix
		for _, n := range c.nets {
			nets = append(nets, netip.MustParsePrefix(n))
		}
		f, err := l.(*net.TCPListener).File()
		require.NoError(t, err)
		require.NoError(t, Filter(int(f.Fd()), Admitting(nets...)))
		require.NoError(t, f.Close())
		port := l.Addr().(*net.TCPAddr).AddrPort().Port()
		to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
		if strings.HasPrefix(c.listen, "[::1]") {
			to = netip.AddrPortFrom(netip.IPv6Loopback(), port)
		}
		limit := 1500 * time.Millisecond // a dropped SYN gets no answer; otherwise an answer comes at once, or with the next SYN after a second
		if c.in {
			limit = 10 * time.Second
		}
		require.Equal(t, c.in, connects(t, c.from, to, limit), "%s to %s, which takes %v", c.from, c.listen, c.nets)
	}
}

// connects reports whether a connection from an address of this host is established within the limit.
func connects(t *testing.T, from string, to netip.AddrPort, limit time.Duration) bool {
	t.Helper()
	d := net.Dialer{Timeout: limit, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("tcp", to.String())
	if err == nil {
		return c.Close() == nil
	}
	var late net.Error
	require.ErrorAs(t, err, &late)
	require.True(t, late.Timeout(), "%v", err)
	return false
}
