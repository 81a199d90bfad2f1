// Package rdma runs tests in guests with software RDMA devices (package bed). The rails are rxe devices. Tests limit the rails'
// rates and make rails fail.
package rdma

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/rdma/bed"
)

// serve has bash functions. server starts a perftest server on host B's rail and returns when the server listens. client runs a client
// on host A's rail. A server of READs sleeps (-e), because the guest has one CPU. A server of WRITEs always sleeps and refuses -e. The
// only time limit of these waits is the guest's.
const serve = `
events() { if [ "$1" = ib_read_bw ]; then printf %s -e; fi; }
server() { # TOOL RAIL ARGS...
    tool=$1 r=$2; shift 2
    "$tool" -d "${KIND}B$r" -p $((18500 + r)) -x 1 $(events "$tool") "$@" >/dev/null &
    until ss -Hltn "sport = :$((18500 + r))" | grep -q .; do kill -0 $!; sleep 0.02; done
}
client() { # TOOL RAIL ARGS...
    tool=$1 r=$2; shift 2
    "$tool" -d "${KIND}A$r" -p $((18500 + r)) -x 1 $(events "$tool") "$@" "10.0.$r.2"
}
sent() { cat "/sys/class/net/v$1/statistics/tx_bytes"; }
`

// script runs a bash script with the functions of serve in a guest and requires status 0.
func script(t *testing.T, g bed.Guest, body string) bed.Result {
	t.Helper()
	g.Env = append(g.Env, "KIND="+string(g.Kind))
	g.Limit = guestLimit
	r := bed.Run(t, g, bed.Shell(serve+body)...)
	require.Zero(t, r.Status, r)
	t.Logf("guest: %v", r.Took)
	return r
}

// TestRailDown: a WRITE fails when its rail goes down. The other rail still works.
func TestRailDown(t *testing.T) {
	skipShort(t)
	script(t, bed.Guest{Kind: bed.RXE, Rails: 2, Rate: "200mbit"}, `
		log=$(mktemp)
		for r in 0 1; do server ib_write_bw $r -s 65536 -n 200; done
		client ib_write_bw 0 -s 65536 -n 200000 >"$log" 2>&1 & c=$!
		while [ $(sent A0) -lt 1000000 ]; do kill -0 $c; sleep 0.02; done
		ip link set vA0 down
		rdma link show rxeA0/1 | grep -q 'state DOWN'
		if wait $c; then echo "did not fail:" >&2; cat "$log" >&2; exit 1; fi
		cat "$log"
		client ib_write_bw 1 -s 65536 -n 200`)
}

// readiness has bash functions: notify_ready on host B and wait_ready on host A. With them a client starts after its server listens.
const readiness = `
notify_ready() { while :; do echo >/dev/udp/10.0.$1.1/$((7000 + $1)); sleep 0.05; done; } 2>/dev/null
wait_ready() {
    perl -MIO::Socket::INET -e 'IO::Socket::INET->new(Proto => "udp", LocalPort => shift)->recv($x, 9)' $((7000 + $1))
}
`

// TestTwoGuests: two kernels with rails between them; rping (rdma_cm, SEND, READ, WRITE) works over each rail.
func TestTwoGuests(t *testing.T) {
	skipShort(t)
	client := bed.Shell(readiness + `
		for r in 0 1; do
			wait_ready $r
			rping -c -a 10.0.$r.2 -C 10 -S 4000 -V
			echo "rail $r: $(cat /sys/class/net/vec$r/statistics/tx_bytes)"
		done; hostname; rdma link`)
	server := bed.Shell(readiness + `
		for r in 0 1; do
			rping -s -a 10.0.$r.2 -C 10 -S 4000 -V & s=$!
			until rdma res show cm_id | grep -q LISTEN; do kill -0 $s; sleep 0.02; done
			notify_ready $r & h=$!
			wait $s; kill $h
		done; hostname`)
	a, b := bed.Pair(t, bed.Guest{Kind: bed.RXE, Rails: 2, Limit: guestLimit}, client, server)
	require.Zero(t, a.Status, "%v\n%v", a, b)
	require.Zero(t, b.Status, "%v\n%v", a, b)
	t.Logf("guests: %v, %v", a.Took, b.Took)
	for i := range 2 {
		require.Regexp(t, fmt.Sprintf(`link rxeA%d/1 state ACTIVE`, i), a.Stdout)
		require.Regexp(t, fmt.Sprintf(`rail %d: \d{5,}\n`, i), a.Stdout)
	}
	require.Equal(t, "B\n", b.Stdout)
}
