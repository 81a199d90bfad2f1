// Package rdma runs tests in guests with software RDMA devices (package bed): rails made of rxe or siw, with the limits and
// failures that a test wants.
package rdma

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/rdma/bed"
)

// serve is bash: a perftest server on host B's rail $1, and what waits until it listens. Servers sleep instead of polling
// (-e): there is one CPU.
const serve = `
server() { # TOOL RAIL ARGS...
    tool=$1 r=$2; shift 2
    "$tool" -d "${KIND}B$r" -p $((18500 + r)) -x 1 -e "$@" >/dev/null 2>&1 &
    for _ in $(seq 500); do
        if ss -Hltn "sport = :$((18500 + r))" | grep -q .; then return; fi
        sleep 0.02
    done
    echo "no server on rail $r" >&2; return 1
}
client() { # TOOL RAIL ARGS...
    tool=$1 r=$2; shift 2
    "$tool" -d "${KIND}A$r" -p $((18500 + r)) -x 1 -e "$@" "10.0.$r.2"
}
sent() { cat "/sys/class/net/v$1/statistics/tx_bytes"; }
now() { echo $(($(date +%s%N) / 1000000)); }
`

// script runs bash with serve in a guest and expects success.
func script(t *testing.T, g bed.Guest, body string) bed.Result {
	t.Helper()
	g.Env = append(g.Env, "KIND="+string(g.Kind))
	r := bed.Run(t, g, bed.Shell(serve+body)...)
	require.Zero(t, r.Status, r)
	t.Logf("guest: %v", r.Took)
	return r
}

// numbers reads the numbers of the output's last line.
func numbers(t *testing.T, r bed.Result) (n []int) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(r.Stdout), "\n")
	for _, w := range strings.Fields(lines[len(lines)-1]) {
		v, err := strconv.Atoi(w)
		require.NoError(t, err, r)
		n = append(n, v)
	}
	return n
}

// TestDevices: as many rails as wanted, active, with the names and addresses that rails.sh promises.
func TestDevices(t *testing.T) {
	for _, kind := range []bed.Kind{bed.RXE, bed.SIW} {
		for _, n := range []int{1, 2, 4} {
			t.Run(fmt.Sprintf("%s/%d", kind, n), func(t *testing.T) {
				r := script(t, bed.Guest{Kind: kind, Rails: n}, `rdma link; ip -br addr`)
				for i := range n {
					for j, host := range []string{"A", "B"} {
						require.Regexp(t, fmt.Sprintf(`link %s%s%d/1 state ACTIVE .*netdev v%s%d`, kind, host, i, host, i), r.Stdout)
						require.Regexp(t, fmt.Sprintf(`v%s%d@\S+ +UP +10\.0\.%d\.%d/24`, host, i, i, j+1), r.Stdout)
					}
				}
				require.Equal(t, 2*n, strings.Count(r.Stdout, "state ACTIVE"), r)
			})
		}
	}
}

// TestPerftest: WRITE and READ from A to B through rxe, and the packets cross the rail.
func TestPerftest(t *testing.T) {
	for _, tool := range []string{"ib_write_bw", "ib_read_bw"} {
		t.Run(tool, func(t *testing.T) {
			r := script(t, bed.Guest{Kind: bed.RXE, Rails: 1}, `
				server `+tool+` 0 -s 65536 -n 500
				began=$(now); client `+tool+` 0 -s 65536 -n 500; ended=$(now)
				echo $(($(sent A0) + $(sent B0))) $((ended - began))`)
			n := numbers(t, r)
			require.Greater(t, n[0], 500*65536)
			t.Logf("%d MB/s", n[0]/n[1]/1000)
		})
	}
}

// TestShaped: two rails of 200 Mbit/s carry what they should, each and together.
func TestShaped(t *testing.T) {
	const bytes = 320 * 65536
	r := script(t, bed.Guest{Kind: bed.RXE, Rails: 2, Rate: "200mbit"}, `
		for r in 0 1; do server ib_write_bw $r -s 65536 -n 320; done
		began=$(now); client ib_write_bw 0 -s 65536 -n 320; one=$(($(now) - began))
		echo "one rail: $one ms, $(sent A0) $(sent A1) bytes"
		server ib_write_bw 0 -s 65536 -n 320
		began=$(now)
		client ib_write_bw 0 -s 65536 -n 320 & a=$!
		client ib_write_bw 1 -s 65536 -n 320 & b=$!
		wait $a; wait $b
		echo $one $(($(now) - began)) $(sent A0) $(sent A1)`)
	n := numbers(t, r)
	rate := func(total, ms int) float64 { return float64(total) / float64(ms) / 1000 }
	one, both := rate(bytes, n[0]), rate(2*bytes, n[1])
	t.Logf("one rail %.1f MB/s, both %.1f MB/s", one, both)
	require.InDelta(t, 22, one, 4, r)
	require.InDelta(t, 44, both, 8, r)
	require.Greater(t, n[2], 2*bytes)
	require.Greater(t, n[3], bytes)
	require.Less(t, n[3], bytes*11/10, "each on its own rail")
}

// TestRailDown: a rail that goes down under a running WRITE makes it fail; the other rail still works.
func TestRailDown(t *testing.T) {
	script(t, bed.Guest{Kind: bed.RXE, Rails: 2, Rate: "200mbit"}, `
		for r in 0 1; do server ib_write_bw $r -s 65536 -n 200; done
		client ib_write_bw 0 -s 65536 -n 200000 >/tmp/log 2>&1 & c=$!
		for _ in $(seq 500); do if [ $(sent A0) -gt 1000000 ]; then break; fi; sleep 0.02; done
		[ $(sent A0) -gt 1000000 ]
		ip link set vA0 down
		rdma link show rxeA0/1 | grep -q 'state DOWN'
		if wait $c; then echo "did not fail:" >&2; cat /tmp/log >&2; exit 1; fi
		cat /tmp/log
		client ib_write_bw 1 -s 65536 -n 200`)
}

// TestTwoGuests: two kernels with their rails between them; rping (rdma_cm, SEND, READ, WRITE) over each.
func TestTwoGuests(t *testing.T) {
	for _, kind := range []bed.Kind{bed.SIW, bed.RXE} {
		t.Run(string(kind), func(t *testing.T) {
			client := bed.Shell(`
				for r in 0 1; do
					for try in $(seq 100); do
						if timeout 20 rping -c -a 10.0.$r.2 -C 10 -S 4000 -V; then break; fi
						[ $try -lt 100 ]; sleep 0.05
					done
					echo "rail $r: $(cat /sys/class/net/vec$r/statistics/tx_bytes)"
				done; hostname; rdma link`)
			server := bed.Shell(`for r in 0 1; do timeout 60 rping -s -a 10.0.$r.2 -C 10 -V; done; hostname`)
			a, b := bed.Pair(t, bed.Guest{Kind: kind, Rails: 2}, client, server)
			require.Zero(t, a.Status, a)
			require.Zero(t, b.Status, b)
			t.Log(a)
			for i := range 2 {
				require.Regexp(t, fmt.Sprintf(`link %sA%d/1 state ACTIVE`, kind, i), a.Stdout)
				require.Regexp(t, fmt.Sprintf(`rail %d: \d{5,}\n`, i), a.Stdout)
			}
			require.Contains(t, b.Stdout, "\nB\n")
		})
	}
}
