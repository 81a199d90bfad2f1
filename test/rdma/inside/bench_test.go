package inside

import (
	"fmt"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// BenchmarkWire compares GORAIL's steady throughput on rail 0 with that of perftest, in a guest:
//
//	tools/rdma-run -n 1 -m 4096 'GOMAXPROCS=4 GORAIL_PROVIDER=verbs ./inside.test -test.run NONE -test.bench Wire -test.benchtime 1x'
//
// Both streams exist during the whole benchmark; in turns, one runs and the other is stopped. The interface's bytes count, with headers,
// which both have. Both targets sleep.
func BenchmarkWire(b *testing.B) {
	const turns, turn = 5, 1500 * time.Millisecond
	p := need(b, 1)
	for _, c := range []struct {
		op   nixlapi.Op
		size uint64
		tool string
	}{{nixlapi.Write, 64 << 10, "ib_write_bw"}, {nixlapi.Write, 1 << 20, "ib_write_bw"}, {nixlapi.Write, 16 << 20, "ib_write_bw"},
		{nixlapi.Read, 64 << 10, "ib_read_bw"}, {nixlapi.Read, 1 << 20, "ib_read_bw"}, {nixlapi.Read, 16 << 20, "ib_read_bw"}} {
		b.Run(fmt.Sprint(c.op, "/", c.size>>10, "KiB"), func(b *testing.B) {
			from := map[nixlapi.Op]string{nixlapi.Write: "A", nixlapi.Read: "B"}[c.op]
			theirs := p.perftest(b, c.tool)
			defer theirs.end()
			ours := p.gorail(b, c.op, c.size, "0")
			defer ours.end()
			var ratio, mine, yours []float64
			for range turns {
				y := theirs.rate(b, from, turn)
				m := ours.rate(b, from, turn)
				ratio, mine, yours = append(ratio, m/y), append(mine, m), append(yours, y)
			}
			for _, list := range [][]float64{ratio, mine, yours} {
				slices.Sort(list)
			}
			b.ReportMetric(mine[turns/2], "MB/s")
			b.ReportMetric(yours[turns/2], "MB/s-perftest")
			b.ReportMetric(ratio[turns/2], "x-perftest")
			b.ReportMetric(ratio[turns/4], "x-lower-quartile")
			b.ReportMetric(ratio[turns-1-turns/4], "x-upper-quartile")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// stream is a running data stream. Between turns its initiator is stopped with SIGSTOP.
type stream struct {
	at  place
	pid int
	end func()
}

// rate continues s for a turn and returns the throughput of all rails in one direction, MB/s. The measurement starts when 8 MiB have
// passed and pending heartbeats and timers of the process are handled (up to 300 ms). rate stops s at the end.
func (s stream) rate(b *testing.B, letter string, turn time.Duration) float64 {
	all := func() (sum int) {
		for _, n := range s.at.passed(letter) {
			sum += n
		}
		return sum
	}
	require.NoError(b, syscall.Kill(s.pid, syscall.SIGCONT))
	begin := all()
	require.True(b, eventually(func() bool { return all()-begin > 8<<20 }), "no bytes on the rails within %v", limit)
	time.Sleep(min(turn, 300*time.Millisecond))
	from, start := all(), time.Now()
	time.Sleep(turn)
	rate := float64(all()-from) / time.Since(start).Seconds() / 1e6
	require.NoError(b, syscall.Kill(s.pid, syscall.SIGSTOP))
	last := -1
	require.True(b, eventually(func() bool { // posted requests still complete
		time.Sleep(5 * time.Millisecond)
		was := last
		last = all()
		return last == was
	}), "the stopped stream still moves bytes after %v", limit)
	return rate
}

// perftest starts a perftest server and client that run longer than the benchmark.
func (p place) perftest(b *testing.B, tool string) stream {
	args := []string{"-x", "1", "-F", "-s", "65536", "-t", "64", "-n", "5000000"}
	if tool == "ib_read_bw" {
		args = append(args, "-e") // sleeps between completions; perftest refuses -e for WRITE
	}
	server := exec.Command(tool, append([]string{"-d", p.kind + "B0"}, args...)...)
	require.NoError(b, server.Start())
	time.Sleep(300 * time.Millisecond)
	client := exec.Command(tool, append(append([]string{"-d", p.kind + "A0"}, args...), "10.0.0.2")...)
	require.NoError(b, client.Start())
	s := stream{p, client.Process.Pid, func() {
		for _, c := range []*exec.Cmd{client, server} {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	}}
	s.rate(b, map[string]string{"ib_write_bw": "A", "ib_read_bw": "B"}[tool], 0)
	return s
}

// gorail keeps 2 to 64 transfers in flight, as many as fit in 16 MiB. Small WRITEs carry a notification. With large transfers the
// waiting process sleeps, like READs of perftest, because the guest has one CPU.
func (p place) gorail(b *testing.B, op nixlapi.Op, size uint64, rails string) stream {
	var note []byte
	if size <= 64<<10 && op == nixlapi.Write {
		note = []byte("n")
	}
	var sleep time.Duration
	if size > 64<<10 {
		sleep = 3 * time.Millisecond
	}
	p.t = b
	alice, bob := p.agentOn("alice", "A"+rails), p.agentOn("bob", "B"+rails)
	depth := max(2, min(64, 16<<20/size))
	mine, theirs := alice.Buffer(depth*size, seedA), bob.Buffer(depth*size, seedB)
	alice.Learn(bob)
	var all []*worker.Xfer
	var ids []int
	for i := range depth {
		x := alice.Xfer(worker.XferSpec{Op: op, Local: mine.Span(i*size, size), Remote: theirs.Span(i*size, size), Peer: "bob", Notif: note})
		all, ids = append(all, x), append(ids, x.ID())
	}
	loop := all[0].LoopAsync(worker.LoopArgs{N: int(1 << 40 / size), Timeout: 10 * limit, Nap: sleep, Beside: ids[1:]})
	s := stream{p, alice.Pid(), func() {
		alice.Kill()
		bob.Kill()
		_, _ = loop.Result()
	}}
	s.rate(b, map[nixlapi.Op]string{nixlapi.Write: "A", nixlapi.Read: "B"}[op], 0)
	return s
}
