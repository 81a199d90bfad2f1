package engine

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/limits"
	"gorail/test/fake"
	"gorail/test/seeds"
)

// Two engines work over a fake fabric and real control channels, in real time. A seed decides the options, the fabric, and a schedule of
// transfers, notifications and faults. The threads' interleaving is real: the schedule replays, the run does not. All the time:
//   - a transfer that has ended well has its bytes in place, and nothing beside them has changed;
//   - memory of a transfer that has failed, or was released, does not change any more (docs/promises.md, "Quiet memory", has the
//     exceptions: a released WRITE, and on shared endpoints a released READ, may drain);
//   - memory that was deregistered does not change any more;
//   - no notification comes twice, and none comes that was not accepted;
//   - an engine that lives is not taken for dead.
//
// In the end the faults are mended. Then all transfers end, another one succeeds, each accepted notification has come unless an engine
// that had a part in it was started again, and nothing is left of closed engines.
func TestSimulation(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= seeds.Count(t, 3, 50); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			s := newSimulation(t, seed)
			for range 150 {
				s.step()
				s.look()
			}
			s.mend()
			s.closes()
		})
	}
}

const (
	simParts = 6
	simPart  = 96 << 10
)

// simFabrics are the fabrics of seeds. With late, a WRITE may land after its initiator has closed its endpoint.
var simFabrics = []struct {
	name string
	caps fake.Caps
	late bool
}{{"tcp", fake.TCPCaps(), false}, {"late tcp", fake.TCPCaps(), true}, {"verbs", placing(), false}, {"unordered", fake.EFACaps(), false},
	{"shared", sharedCaps(), false}}

// simulation has a buffer at both engines, in parts. Each transfer uses one part alone.
type simulation struct {
	*harness
	rnd          *rand.Rand
	rails        int
	late, shared bool
	a, b         *agent // the initiator and the target of transfers. Both send notifications.
	gate         *gate  // on a's control connections to b
	mine, theirs *memory
	there        *memory // theirs, with b's metadata
	parts        [simParts]simTransfer
	notes        simNotes
	restarts     int
	steps        int
	posts, good  int
	schedule     []string
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	rnd := rand.New(rand.NewPCG(seed, 9))
	f, rails := simFabrics[rnd.IntN(len(simFabrics))], 1+rnd.IntN(3)
	h := onRails(t, rails, f.caps)
	h.params = []string{"qps_per_rail", fmt.Sprint(1 + rnd.IntN(2)), "xfer_timeout", "1s", "cancel_timeout", "300ms", "release_wait", "5ms",
		"peer_timeout", "20s", // no silence of the schedule is as long: a status without the target's answer would be an exception
		"chunk_min", "16KiB", "chunk_max", []string{"16KiB", "128KiB"}[rnd.IntN(2)]}
	s := &simulation{harness: h, rnd: rnd, rails: rails, late: f.late, shared: f.caps.SharedEndpoint, notes: newSimNotes()}
	s.say("%s, %d rails, %v", f.name, rails, h.params)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("missing: %q; schedule of seed %d:\n%s", slices.Sorted(maps.Keys(s.notes.must)), seed, strings.Join(s.schedule, "\n"))
		}
	})
	s.a, s.b = h.agent("ann"), h.agent("bob")
	s.calm()
	s.gate = h.gate(s.b)
	s.gate.open(true)
	s.mine, s.there = s.a.memory(simParts*simPart), s.b.memory(simParts*simPart)
	s.meet()
	return s
}

func (s *simulation) say(format string, args ...any) {
	s.schedule = append(s.schedule, fmt.Sprintf(format, args...))
}

// meet loads the metadata of both sides.
func (s *simulation) meet() {
	require.NoError(s, s.a.LoadConn("bob", s.gate.blob))
	require.NoError(s, s.b.LoadConn("ann", s.a.Conn()))
	s.theirs = s.there.seenBy(s.a)
}

// step does one thing of the application, or one fault.
func (s *simulation) step() {
	s.steps++
	i := s.rnd.IntN(simParts)
	switch k := s.rnd.IntN(24); {
	case k < 10:
		s.post(i)
	case k < 11:
		s.release(i)
	case k < 14:
		s.notify()
	case k < 20: // the engines work
		most := 3 * time.Millisecond
		if s.rnd.IntN(8) == 0 {
			most *= 100
		}
		s.work(s.pause(most))
	default:
		s.fault()
	}
}

func (s *simulation) pause(most time.Duration) time.Duration {
	return time.Duration(s.rnd.Int64N(int64(most)))
}

// work looks at all parts, again and again, while the engines work.
func (s *simulation) work(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		s.look()
	}
}

// look checks all parts, and takes what has come.
func (s *simulation) look() {
	s.notes.take(s, s.a)
	s.notes.take(s, s.b)
	for i := range s.parts {
		s.lookAt(i)
	}
}

// mend ends all faults and transfers. Then the engines work.
func (s *simulation) mend() {
	s.say("mended")
	s.gate.open(true)
	s.calm()
	for _, side := range []*agent{s.a, s.b} {
		for n := range s.rails {
			side.railNo(n).Up()
			side.railNo(n).Release()
		}
	}
	idle := func() bool {
		s.look()
		return !slices.ContainsFunc(s.parts[:], func(p simTransfer) bool { return p.busy() })
	}
	until(s, "all transfers end", idle)
	good := s.good
	until(s, "a transfer succeeds", func() bool {
		if idle() && s.good == good {
			s.steps++
			s.post(0)
		}
		return s.good > good
	})
	until(s, "all accepted notifications arrive", func() bool {
		s.look()
		return len(s.notes.must) == 0
	})
	until(s, "all transfers end", idle)
	s.a.released()
}

// closes closes the engines. The target gives all back that it had for the initiator.
func (s *simulation) closes() {
	s.Logf("%d of %d transfers succeeded, %d notifications, %d restarts", s.good, s.posts, len(s.notes.seen), s.restarts)
	require.NoError(s, s.a.Close())
	until(s, "the target keeps no session", func() bool {
		s.notes.take(s, s.b)
		return s.shared || s.b.sessions() == 0 && s.b.targets.Used() == limits.Amount{} // a lost session over a shared endpoint stays for a minute
	})
	require.NoError(s, s.b.Close())
}
