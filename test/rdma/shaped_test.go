package rdma

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/rdma/bed"
)

// TestShaped: two rails of 40 Mbit/s, far below what a guest can do. In any time a rail carries what its rate and one burst allow, and
// not more; there are times in which both together carry what one can't.
//
// A sample is a time and what has left each rail. Within the loop the clock is read before the counters, so that between two samples the
// first time is too early rather than too late; the last is read behind them: the time measured is the real one, or more.
func TestShaped(t *testing.T) {
	whole(t)
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
			require.Less(t, y, 100<<10, "each on its own rail")
		}
		together = together || what == "both" && float64(x+y) > 1.25*most
	}
	require.True(t, together, "two rails carry no more than one:\n%v", r)
}
