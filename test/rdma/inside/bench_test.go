package inside

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/nixl"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// BenchmarkWire compares what crosses rail 0's wire in mid-stream with perftest's, five times in turn, in a guest:
//
//	tools/rdma-run -n 1 -m 4096 'GOMAXPROCS=4 GORAIL_PROVIDER=verbs ./inside.test -test.run NONE -test.bench Wire -test.benchtime 1x'
//
// Bytes of the interface count, headers included, which both have. The target sleeps.
func BenchmarkWire(b *testing.B) {
	if _, err := os.Stat("/sys/class/infiniband/rxeA0"); err != nil {
		b.Skip("not in a guest with rxe rails")
	}
	env := testenv.Need(b)
	for _, c := range []struct {
		op   nixl.Op
		size uint64
		tool string
	}{{nixl.Write, 64 << 10, "ib_write_bw"}, {nixl.Write, 1 << 20, "ib_write_bw"}, {nixl.Write, 16 << 20, "ib_write_bw"},
		{nixl.Read, 1 << 20, "ib_read_bw"}, {nixl.Read, 16 << 20, "ib_read_bw"}} {
		b.Run(fmt.Sprint(c.op, "/", c.size>>10, "KiB"), func(b *testing.B) {
			var ours, theirs []float64
			for range 5 {
				theirs = append(theirs, perftest(b, c.tool))
				ours = append(ours, gorail(b, env, c.op, c.size, "0"))
			}
			slices.Sort(ours)
			slices.Sort(theirs)
			b.ReportMetric(ours[2], "MB/s")
			b.ReportMetric(theirs[2], "MB/s-perftest")
			b.ReportMetric(ours[2]/theirs[2], "x-perftest")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkRails compares all rails with the first alone, in a guest whose rails are shaped:
//
//	tools/rdma-run -n 2 -r 200mbit -m 4096 'GOMAXPROCS=4 GORAIL_PROVIDER=verbs ./inside.test -test.run NONE -test.bench Rails -test.benchtime 1x'
func BenchmarkRails(b *testing.B) {
	if _, err := os.Stat("/sys/class/infiniband/rxeA1"); err != nil {
		b.Skip("not in a guest with two rxe rails")
	}
	env := testenv.Need(b)
	for _, op := range []nixl.Op{nixl.Write, nixl.Read} {
		b.Run(op.String(), func(b *testing.B) {
			one, all := gorail(b, env, op, 16<<20, "0"), gorail(b, env, op, 16<<20, "*")
			b.ReportMetric(one, "MB/s-one")
			b.ReportMetric(all, "MB/s-all")
			b.ReportMetric(all/one, "x-one")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// rate is what leaves one end of all rails in a second, once it flows.
func rate(b *testing.B, letter string) float64 {
	all := func() (sum int) {
		for _, n := range sent(b, letter) {
			sum += n
		}
		return sum
	}
	begin := all()
	require.True(b, eventually(func() bool { return all()-begin > 8<<20 }), "nothing flows")
	from, start := all(), time.Now()
	time.Sleep(time.Second)
	return float64(all()-from) / time.Since(start).Seconds() / 1e6
}

func perftest(b *testing.B, tool string) float64 {
	args := []string{"-x", "1", "-F", "-s", "65536", "-t", "64", "-n", "1000000"}
	if tool == "ib_read_bw" {
		args = append(args, "-e") // sleeps; refused for WRITE
	}
	server := exec.Command(tool, append([]string{"-d", "rxeB0"}, args...)...)
	require.NoError(b, server.Start())
	time.Sleep(300 * time.Millisecond)
	client := exec.Command(tool, append(append([]string{"-d", "rxeA0"}, args...), "10.0.0.2")...)
	require.NoError(b, client.Start())
	defer func() {
		for _, c := range []*exec.Cmd{client, server} {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	}()
	return rate(b, map[string]string{"ib_write_bw": "A", "ib_read_bw": "B"}[tool])
}

// gorail keeps up to 64 transfers in flight; small ones carry a notification.
func gorail(b *testing.B, env testenv.Env, op nixl.Op, size uint64, rails string) float64 {
	var note []byte
	if size <= 64<<10 {
		note = []byte("n")
	}
	alice, bob := hostOn(b, env, "alice", "A"+rails), hostOn(b, env, "bob", "B"+rails)
	depth := max(2, min(64, 16<<20/size))
	mine, theirs := alice.Buffer(depth*size, seedA), bob.Buffer(depth*size, seedB)
	alice.Learn(bob)
	var all []*worker.Xfer
	var ids []int
	for i := range depth {
		x := alice.Xfer(worker.XferSpec{Op: op, Local: mine.Span(i*size, size), Remote: theirs.Span(i*size, size), Peer: "bob", Notif: note})
		all, ids = append(all, x), append(ids, x.ID())
	}
	loop := all[0].LoopAsync(worker.LoopArgs{N: int(4 << 30 / size), Timeout: limit, Beside: ids[1:]})
	got := rate(b, map[nixl.Op]string{nixl.Write: "A", nixl.Read: "B"}[op])
	alice.Kill()
	bob.Kill()
	_, _ = loop.Result()
	return got
}
