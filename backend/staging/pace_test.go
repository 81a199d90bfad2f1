package staging

import (
	"container/heap"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// path is a simulated way of chunks from a GPU to another: slots in flight, which share a wire and a codec.
type path struct {
	wire, codec float64 // bytes a second: that the wire moves, and that the codec takes in; codec 0: no limit
	ratio       float64 // of packed bytes
	transfer    uint64  // bytes of a post, which waits for the one before
	gap         time.Duration
	late        time.Duration // longest random delay of an answer
}

type ends []end

type end struct {
	at    time.Duration
	packs bool
	bytes uint64
}

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].at < e[j].at }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any)        { *e = append(*e, x.(end)) }
func (e *ends) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

// simulation runs posts over paths, one after the other in time.
type simulation struct {
	p    *pace
	rnd  *rand.Rand
	now  time.Duration
	base time.Time

	moved uint64
}

// run moves bytes over a path for so long, and returns the share of them that was packed in its second half.
func (s *simulation) run(w path, long time.Duration) float64 {
	const slot = 4 << 20
	var all, packed float64
	begun, wireFree, codecFree := s.now, s.now, s.now
	for s.now < begun+long {
		var flying ends
		for left := w.transfer; left > 0 || len(flying) > 0; {
			if left > 0 && len(flying) < slotsOfRing {
				n := min(left, slot)
				left -= n
				packs := s.p.begin(s.base.Add(s.now))
				moved, ready := float64(n), s.now
				if packs {
					moved /= w.ratio
					if w.codec > 0 {
						codecFree = max(codecFree, s.now) + time.Duration(float64(n)/w.codec*1e9)
						ready = codecFree
					}
				}
				wireFree = max(wireFree, ready) + time.Duration(moved/w.wire*1e9)
				heap.Push(&flying, end{wireFree + time.Duration(s.rnd.Int64N(int64(w.late)+1)), packs, n})
				continue
			}
			e := heap.Pop(&flying).(end)
			s.now = max(s.now, e.at)
			s.p.ended(e.packs, true, e.bytes, s.base.Add(s.now))
			s.moved += e.bytes
			if s.now > begun+long/2 {
				all += float64(e.bytes)
				if e.packs {
					packed += float64(e.bytes)
				}
			}
		}
		s.now += w.gap
	}
	return packed / all
}

// TestPace: compression=auto finds the faster way, and is not stuck in the slower one when wires and bytes change.
func TestPace(t *testing.T) {
	const much, little = 0.95, 0.1
	gain := path{wire: 3e9, ratio: 1.43, transfer: 1 << 30, late: 300 * time.Microsecond}
	slow := gain // the GPUs have no time for packing
	slow.codec = 2e9
	equal := gain
	equal.ratio = 1
	small, rare := gain, gain
	small.transfer, small.gap = 16<<20, 200*time.Microsecond
	rare.transfer, rare.gap = 32<<20, 5*time.Millisecond
	weak := gain
	weak.ratio = 1.02
	for name, c := range map[string]struct {
		paths []path
		most  []float64 // 1: at least much; 0: at most little
	}{
		"it gains": {[]path{gain}, []float64{1}}, "it loses": {[]path{slow}, []float64{0}}, "no gain": {[]path{equal}, []float64{0}},
		"2 percent": {[]path{weak}, []float64{0}}, "small transfers": {[]path{small}, []float64{1}},
		"pauses":     {[]path{rare}, []float64{1}},
		"it changes": {[]path{gain, equal, gain, slow, gain}, []float64{1, 0, 1, 0, 1}},
	} {
		for seed := range uint64(8) {
			s := &simulation{p: &pace{}, rnd: rand.New(rand.NewPCG(seed, 1)), base: time.Now()}
			for i, w := range c.paths {
				if share := s.run(w, 200*time.Second); c.most[i] == 1 {
					require.Greater(t, share, much, "%s, path %d, seed %d", name, i, seed)
				} else {
					require.Less(t, share, little, "%s, path %d, seed %d", name, i, seed)
				}
			}
		}
	}
}

// TestPaceCost: where packing loses, auto costs at most 3 % of half a minute from the start: GPUs pack ahead of the wire, which deceives a trial.
func TestPaceCost(t *testing.T) {
	for _, wire := range []float64{1e9, 3e9, 12e9, 50e9} {
		for _, share := range []float64{0.5, 0.72, 0.85, 0.95} {
			for seed := range uint64(4) {
				lost := path{wire: wire, codec: share * wire, ratio: 1.43, transfer: 1 << 30, late: 300 * time.Microsecond}
				s := &simulation{p: &pace{}, rnd: rand.New(rand.NewPCG(seed, 1)), base: time.Now()}
				s.run(lost, 30*time.Second)
				require.Greater(t, float64(s.moved)/(wire*s.now.Seconds()), 0.97, "%g B/s, packing at %g of it, seed %d", wire, share, seed)
			}
		}
	}
}

// TestPaceFailed: chunks that fail, or that began before the window, are no measurement. With compression=on there is none.
func TestPaceFailed(t *testing.T) {
	p, now := &pace{}, time.Now()
	packs := false
	for i := 0; i < 100 && !packs; i++ {
		if packs = p.begin(now); !packs {
			now = now.Add(paceTime / 2)
			p.ended(false, i%8 != 0, paceWindow/4, now)
		}
	}
	require.True(t, packs, "windows between two failures count")
	p = &pace{}
	for i := range 100 {
		require.False(t, p.begin(now))
		now = now.Add(paceTime)
		p.ended(false, i%3 != 0, paceWindow/4, now)
	}
	p = &pace{always: true}
	require.True(t, p.begin(now))
	p.ended(true, true, 1<<30, now)
	require.True(t, p.begin(now))
}
