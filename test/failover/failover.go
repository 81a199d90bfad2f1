// Package failover lets one of two rails fail at random moments of transfers, again and again. It compares all bytes, and measures how
// long no working rail carries anything. A fixture (Rails) has the rails and lets them fail.
package failover

import (
	"errors"
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
	// Sent returns the number of bytes that the target's end of a rail, or the initiator's, has sent. Safe for concurrent use, also with Fail.
	Sent(target bool, rail int) (uint64, error)
	// Fail lets a rail fail at a random end. began is immediately before the failure: Fail may take milliseconds before it and after it.
	// mend repairs the rail.
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
		before := []uint64{r.sent(false, 0), r.sent(false, 1)}
		x[len(x)-1].Do(r.Limit)
		return r.sent(false, 0)-before[0] > most.Size/8 && r.sent(false, 1)-before[1] > most.Size/8
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
	over := r.start(load, op)
	first := r.sent(reads, 0) + r.sent(reads, 1)
	began := time.Now()
	require.True(r.t, worker.Eventually(r.Limit, func() bool { return r.sent(reads, 0)+r.sent(reads, 1)-first > 1<<20 }), "nothing moves")
	echo := r.echo.time()
	failAt := began.Add(time.Duration(20+r.rng.IntN(200)) * time.Millisecond)
	stop := r.sample(func() (works, all uint64, err error) {
		works, err = r.Rails.Sent(reads, 1-rail)
		other, err2 := r.Rails.Sent(reads, rail)
		if all = works + other; kind == Error { // the rail itself works, and is used again at once
			works = all
		}
		return works, all, errors.Join(err, err2)
	})
	time.Sleep(time.Until(failAt))
	busy := runnable()
	failed, mend := r.Rails.Fail(kind, rail, r.rng)
	result := <-over
	before, after, rate := stop().around(failed, result.at)
	mend()
	require.Equal(r.t, result.want, result.Done, "%s of %v with %s of rail %d: %s\n%s\n%s", op, load, kind, rail, result.Status, r.Ini.Output(), r.Tgt.Output())
	dst.Want(r.fill)
	r.both()
	if result.at.Before(failed) { // it struck nothing
		return r.One(kind, op)
	}
	return Failure{Kind: kind, Op: op.String(), Load: load.String(), At: failed, Gap: after, Before: before,
		Slowest: time.Duration(slices.Max(append(result.Lat, 0))), Echo: echo, Runnable: busy, Rate: rate}
}

// sent is Rails.Sent of the end that sends an operation's data: the target for READs.
func (r *Runner) sent(reads bool, rail int) uint64 {
	n, err := r.Rails.Sent(reads, rail)
	require.NoError(r.t, err)
	return n
}

// loopEnd is the end of all transfers beside a failure.
type loopEnd struct {
	worker.LoopResult
	want int // number of transfers
	at   time.Time
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
	go func() { over <- loopEnd{loop.Wait(), args.N, time.Now()} }()
	return over
}

// runnable is the number of threads of the machine that run or could run.
func runnable() (n int) {
	text, _ := os.ReadFile("/proc/loadavg")
	var load [3]float64
	_, _ = fmt.Sscanf(string(text), "%f %f %f %d/", &load[0], &load[1], &load[2], &n)
	return n
}
