// Package failover lets one of two rails fail at random moments of transfers, again and again. It compares all bytes, and measures how
// long no working rail carries anything. A fixture (Rails) has the rails and lets them fail.
package failover

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// The ways in which a rail fails.
const (
	Down   = "link down" // an interface goes down at one end
	Error  = "error"     // the rail's connections end: completion errors
	Silent = "silence"   // packets are dropped, in one direction or in both; nobody gets an error
)

// Kinds are all ways in which a rail fails.
var Kinds = []string{Down, Error, Silent}

// Ops are the operations.
var Ops = []nixlapi.Op{nixlapi.Write, nixlapi.Read}

// Rails are two rails, 0 and 1, between an initiator and a target.
type Rails interface {
	// Sent returns the number of bytes that the target's end of a rail, or the initiator's, has sent.
	Sent(target bool, rail int) uint64
	// Fail lets a rail fail at a random end. began is before the failure: the kernel may take milliseconds to return. mend repairs the
	// rail.
	Fail(kind string, rail int, rng *rand.Rand) (began time.Time, mend func())
}

// Load is a way to transfer all bytes of a buffer.
type Load struct {
	Size  uint64 // of each transfer
	Small int    // number of transfers of SmallSize that are in flight beside all others; 0: the transfers follow one another
}

// SmallSize is the size of Load's small transfers.
const SmallSize = 64 << 10

// repeats is how often each transfer of a Load with small ones is made, on average: the small ones more often.
const repeats = 12

func (l Load) String() string {
	if l.Small > 0 {
		return fmt.Sprintf("%d KiB, %d of %d KiB beside them", l.Size>>10, l.Small, SmallSize>>10)
	}
	return fmt.Sprintf("%d KiB", l.Size>>10)
}

// Config describes the agents that use the rails.
type Config struct {
	Rails    Rails
	Ini, Tgt *worker.Agent // the initiator has the target's metadata
	Mine     *worker.Buf   // of the initiator
	His      *worker.Buf
	Bytes    uint64 // of each buffer
	Loads    []Load
	Nap      time.Duration // of the initiator between polls; 0: none
	Limit    time.Duration // for a step of milliseconds
	Long     time.Duration // for all transfers beside a failure
	Seed     uint64
}

// Runner lets rails fail. All its methods belong to the test's goroutine.
type Runner struct {
	Config
	t    testing.TB
	rng  *rand.Rand
	fill uint64 // seed of the bytes of the last failure
	echo *echo
	sets map[nixlapi.Op]map[Load][]*worker.Xfer // requests over consecutive ranges
}

// Failure is what one failure cost.
type Failure struct {
	Kind, Op, Load string
	At             time.Time
	Gap            time.Duration // the longest time in which no rail that works carried anything, from the failure to the end of the transfers
	Before         time.Duration // the same before the failure, over both rails
	Slowest        time.Duration // the longest transfer, if they follow one another
	Echo           time.Duration // a byte to an idle process and back, before the failure: what the machine takes for two wake-ups
	Runnable       int           // threads of the machine that could run when it failed
	Rate           float64       // of the other rail after the failure, the gap left out, in MB/s
}

// New prepares the transfers, and waits until both rails carry bytes.
func New(t testing.TB, c Config) *Runner {
	t.Helper()
	r := &Runner{Config: c, t: t, rng: rand.New(rand.NewPCG(c.Seed, c.Seed)), fill: 1000, echo: newEcho(t), sets: map[nixlapi.Op]map[Load][]*worker.Xfer{}}
	for _, op := range Ops {
		r.sets[op] = map[Load][]*worker.Xfer{}
		for _, l := range c.Loads {
			for off := uint64(0); off < c.Bytes; {
				size := min(l.Size, c.Bytes-off)
				if off < uint64(l.Small)*SmallSize {
					size = SmallSize
				}
				x := c.Ini.Xfer(worker.XferSpec{Op: op, Local: c.Mine.Span(off, size), Remote: c.His.Span(off, size), Peer: c.Tgt.Name})
				r.sets[op][l] = append(r.sets[op][l], x)
				off += size
			}
		}
	}
	r.both()
	return r
}

// both waits until both rails carry bytes.
func (r *Runner) both() {
	r.t.Helper()
	most := slices.MaxFunc(r.Loads, func(a, b Load) int { return int(a.Size) - int(b.Size) })
	x := r.sets[nixlapi.Write][most]
	require.True(r.t, worker.Eventually(r.Limit, func() bool {
		before := []uint64{r.Rails.Sent(false, 0), r.Rails.Sent(false, 1)}
		x[len(x)-1].Do(r.Limit)
		return r.Rails.Sent(false, 0)-before[0] > most.Size/8 && r.Rails.Sent(false, 1)-before[1] > most.Size/8
	}), "a rail that works again carries nothing\n%s\n%s", r.Ini.Output(), r.Tgt.Output())
}

// One lets a rail fail at a random time during transfers of a random load, and compares all bytes.
func (r *Runner) One(kind string, op nixlapi.Op) Failure {
	r.t.Helper()
	load := r.Loads[r.rng.IntN(len(r.Loads))]
	rail := r.rng.IntN(2)
	src, dst, reads := r.Mine, r.His, op == nixlapi.Read
	if reads {
		src, dst = r.His, r.Mine
	}
	r.fill++
	src.Fill(r.fill)
	sent := func() (works, all uint64) {
		one := r.Rails.Sent(reads, 1-rail)
		all = one + r.Rails.Sent(reads, rail)
		if kind == Error { // the rail itself works, and is used again at once
			return all, all
		}
		return one, all
	}
	over := r.start(load, op)
	_, first := sent()
	began := time.Now()
	require.True(r.t, worker.Eventually(r.Limit, func() bool { _, n := sent(); return n-first > 1<<20 }), "nothing moves")
	echo := r.echo.time()
	failAt := began.Add(time.Duration(20+r.rng.IntN(200)) * time.Millisecond)
	var before, after movement
	for time.Now().Before(failAt) {
		_, n := sent()
		before.note(time.Now(), n)
	}
	busy := runnable()
	n, _ := sent()
	base := n
	failed, mend := r.Rails.Fail(kind, rail, r.rng)
	after.note(failed, n)
	var result loopEnd
	for done := false; !done; {
		select {
		case result = <-over:
			done = true
		default:
			n, _ = sent()
			after.note(time.Now(), n)
		}
	}
	ended := time.Now()
	after.end(ended, n)
	mend()
	require.Equal(r.t, result.want, result.Done, "%s of %v with %s of rail %d: %s\n%s\n%s", op, load, kind, rail, result.Status, r.Ini.Output(), r.Tgt.Output())
	dst.Want(r.fill)
	r.both()
	rate := float64(n-base) / (ended.Sub(failed) - after.longest).Seconds() / 1e6
	return Failure{Kind: kind, Op: op.String(), Load: load.String(), At: failed, Gap: after.longest, Before: before.longest,
		Slowest: time.Duration(slices.Max(append(result.Lat, 0))), Echo: echo, Runnable: busy, Rate: rate}
}

// loopEnd is the end of all transfers beside a failure.
type loopEnd struct {
	worker.LoopResult
	want int // number of transfers
}

// start posts the transfers of a load, inside the initiator.
func (r *Runner) start(load Load, op nixlapi.Op) <-chan loopEnd {
	r.t.Helper()
	set := r.sets[op][load]
	var more []int
	for _, x := range set[1:] {
		more = append(more, x.ID())
	}
	args := worker.LoopArgs{N: len(set), Turns: more, Times: true, Timeout: r.Long, Nap: r.Nap}
	if load.Small > 0 {
		args = worker.LoopArgs{N: repeats * len(set), Beside: more, Timeout: r.Long, Nap: r.Nap}
	}
	loop := set[0].LoopAsync(args)
	over := make(chan loopEnd, 1)
	go func() { over <- loopEnd{loop.Wait(), args.N} }()
	return over
}

// movement finds the longest time in which a counter of bytes stood still.
type movement struct {
	at      time.Time // when it moved last
	bytes   uint64
	longest time.Duration
}

// note takes a sample. Less than 16 KiB are heartbeats and handshakes.
func (m *movement) note(now time.Time, n uint64) {
	if m.at.IsZero() || n-m.bytes > 16<<10 {
		m.end(now, n)
		m.at, m.bytes = now, n
	}
	time.Sleep(500 * time.Microsecond)
}

func (m *movement) end(now time.Time, n uint64) {
	if !m.at.IsZero() {
		m.longest = max(m.longest, now.Sub(m.at))
	}
}

// runnable is the number of threads of the machine that run or could run.
func runnable() (n int) {
	text, _ := os.ReadFile("/proc/loadavg")
	var load [3]float64
	_, _ = fmt.Sscanf(string(text), "%f %f %f %d/", &load[0], &load[1], &load[2], &n)
	return n
}
