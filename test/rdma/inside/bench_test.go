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
				ours = append(ours, gorail(b, env, c.op, c.size))
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

// rate is what leaves one end of rail 0 in a second, once it flows.
func rate(b *testing.B, letter string) float64 {
	begin := sent(b, letter)[0]
	require.True(b, eventually(func() bool { return sent(b, letter)[0]-begin > 8<<20 }), "nothing flows")
	from, start := sent(b, letter)[0], time.Now()
	time.Sleep(time.Second)
	return float64(sent(b, letter)[0]-from) / time.Since(start).Seconds() / 1e6
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
func gorail(b *testing.B, env testenv.Env, op nixl.Op, size uint64) float64 {
	var note []byte
	if size <= 64<<10 {
		note = []byte("n")
	}
	alice, bob := host(b, env, "alice", "A"), host(b, env, "bob", "B")
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
