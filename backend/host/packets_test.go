package host

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestLost: what kernels have said of connections in each condition.
func TestLost(t *testing.T) {
	for name, c := range map[string]struct {
		info  unix.TCPInfo
		alive bool
		says  string
	}{
		"idle": {unix.TCPInfo{Snd_mss: 1448, Bytes_acked: 900, Data_segs_out: 3}, true, ""},
		"busy": {unix.TCPInfo{Snd_mss: 1448, Unacked: 40, Bytes_acked: 9e6, Data_segs_out: 7000, Total_retrans: 9}, true, ""},
		"once": {unix.TCPInfo{Snd_mss: 1448, Unacked: 40, Retransmits: 1, Backoff: 1, Bytes_acked: 300, Data_segs_out: 43, Total_retrans: 1}, true, ""},
		"mtu from the start": {unix.TCPInfo{Snd_mss: 1448, Pmtu: 1500, Unacked: 10, Lost: 10, Retransmits: 4, Backoff: 4, Bytes_acked: 300, Data_segs_out: 17, Total_retrans: 4}, true,
			"packets of up to 1488 bytes do not arrive, and smaller ones did: check the MTU between A and B (this side's path has 1500)"},
		"mtu, silent peer": {unix.TCPInfo{Snd_mss: 1448, Pmtu: 1500, Unacked: 10, Lost: 10, Retransmits: 4, Bytes_acked: 300, Data_segs_out: 17, Total_retrans: 4}, false,
			"check the MTU between A and B"},
		"mtu, a small packet behind": {unix.TCPInfo{Snd_mss: 8948, Pmtu: 9000, Unacked: 10, Sacked: 1, Retransmits: 2, Bytes_acked: 9e9, Data_segs_out: 1e6, Total_retrans: 4}, true,
			"packets of up to 8988 bytes do not arrive, and 1 later ones do: check the MTU between A and B (this side's path has 9000)"},
		"firewall": {unix.TCPInfo{Snd_mss: 1448, Pmtu: 1500, Unacked: 10, Retransmits: 5, Bytes_acked: 64 << 20, Data_segs_out: 46500, Total_retrans: 5}, true, "check firewalls, and the MTU, between A and B"},
		"cut":      {unix.TCPInfo{Snd_mss: 1448, Unacked: 10, Retransmits: 5, Bytes_acked: 64 << 20, Data_segs_out: 46500, Total_retrans: 5}, false, "the network is cut"},
		"the peer's": {unix.TCPInfo{Snd_mss: 1448, Bytes_acked: 900, Data_segs_out: 3, Rcv_ooopack: 2, Last_data_recv: 4000}, true,
			"2 packets of the peer came before earlier ones, and none has come for 4 s: if large ones do not arrive, check the MTU between A and B"},
	} {
		got := LostPackets(&c.info, "A and B", c.alive)
		if c.says == "" {
			require.Empty(t, got, name)
		}
		require.Contains(t, got, c.says, name)
	}
}
