package rdma

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/rdma/bed"
)

// TestShaped: two rails of 40 Mbit/s, far below a guest's throughput. In each window a rail carries at most its rate plus one burst.
// In at least one window both rails together carry more than one rail can.
//
// A sample is a time and each rail's byte counter. At the start of a window the clock is read before the counters, at the end after
// them. The measured time is therefore never shorter than the real time.
func TestShaped(t *testing.T) {
	skipShort(t)
	const rate, burst, packet = 40e6 / 8 / 1e6, 256 << 10, 4200 + 14 // bytes/us; bytes (rails.sh); the interface's MTU and header
	r := script(t, bed.Guest{Kind: bed.RXE, Rails: 2, Rate: "40mbit"}, `
		at() { now=${EPOCHREALTIME/./}; }
		count() { read -r a </sys/class/net/vA0/statistics/tx_bytes; read -r b </sys/class/net/vA1/statistics/tx_bytes; }
		window() { at; from=$now; count; was="$a $b"; sleep 1; count; at; echo "$1 $((now - from)) $was $a $b"; }
		for r in 0 1; do server ib_write_bw $r -s 65536 -n 200000; done
		client ib_write_bw 0 -s 65536 -n 200000 >/dev/null &
		while [ $(sent A0) -lt 2000000 ]; do kill -0 $!; sleep 0.02; done
		window alone
		client ib_write_bw 1 -s 65536 -n 200000 >/dev/null &
		while [ $(sent A1) -lt 2000000 ]; do kill -0 $!; sleep 0.02; done
		for _ in $(seq 5); do window both; done`)
	together := false
	for _, line := range strings.Split(strings.TrimSpace(r.Stdout), "\n") {
		what, rest, _ := strings.Cut(line, " ")
		n := integers(t, rest)
		us, x, y := n[0], n[3]-n[1], n[4]-n[2]
		most := rate*float64(us) + burst + packet
		t.Logf("%s: %d and %d bytes in %d us, at most %.0f each", what, x, y, us, most)
		require.LessOrEqual(t, float64(max(x, y)), most)
		if what == "alone" {
			require.Less(t, y, 100<<10, "rail 1 carries bytes although only rail 0 is in use")
		}
		together = together || what == "both" && float64(x+y) > 1.25*most
	}
	require.True(t, together, "two rails carry no more than one:\n%v", r)
}
