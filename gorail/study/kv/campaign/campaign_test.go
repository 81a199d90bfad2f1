package campaign

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/study/env"
)

// cluster is a campaign without processes.
func cluster(prefill, decode int, seed uint64) *campaign {
	c := &campaign{Env: &env.Env{}, Options: Options{Prefill: prefill, Decode: decode, Seed: seed}, random: rand.New(rand.NewPCG(seed, 58))}
	for i := range prefill {
		c.prefill = append(c.prefill, &seat{kind: "prefill", number: i})
	}
	for j := range decode {
		c.decode = append(c.decode, &seat{kind: "decode", number: j})
	}
	return c
}

// TestSums: each request counts where it belongs: by its pair, by when it began and when it ended.
func TestSums(t *testing.T) {
	c := cluster(2, 2, 1)
	c.traffic = &traffic{c: c}
	r := &round{fault: faults[0], victim: c.prefill[0], quiet: 1000, began: 2000, made: 2050, back: 3000} // pairs 0 and 1
	next := &round{fault: faults[1], victim: c.decode[1], quiet: 5000, began: 6000, made: 6000, back: 7000, waiting: []int{1}}
	c.rounds = []*round{r, next}
	c.traffic.all = []request{
		{pair: 0, began: 1900, end: 2100, failed: "a"},                // in flight
		{pair: 0, began: 2200, end: 3100, failed: "no end within 1s"}, // meanwhile, and hung
		{pair: 0, began: 3010, end: 3020, failed: "c"},                // after the end
		{pair: 1, began: 3030, end: 3050},                             // the first good one of its pair
		{pair: 0, began: 3200, end: 3300},                             // and of this one
		{pair: 2, began: 1900, end: 2100, failed: "d"},                // of another
		{pair: 1, began: 1100, end: 1200, failed: "e"},                // before the fault: of no victim
		{pair: 3, began: 2100, end: 2200, wrong: "bytes"},
		{pair: 3, began: 6500, end: 7050},
	}
	for i := range time.Duration(5) {
		c.traffic.all = append(c.traffic.all, request{pair: 2, began: 1100 + i, end: 1200 + i, took: 100}, request{pair: 2, began: 2300 + i, end: 2400 + i, took: 111},
			request{pair: 3, began: 1100 + i, end: 1150 + i, took: 100}, request{pair: 3, began: 2300 + i, end: 2400 + i, took: 109})
	}
	c.sum()
	require.Equal(t, []time.Duration{50, 300}, r.first)
	require.Equal(t, []int{1, 1, 1, 2, 1}, []int{r.inFlight, r.during, r.after, r.others, r.hung})
	require.Equal(t, []string{"bytes"}, r.wrong)
	require.Equal(t, []int{2, 1, 10, 5}, []int{r.pairs, r.slower, r.requests, r.slow})
	require.Equal(t, time.Duration(100), r.undisturbed)
	require.Equal(t, []time.Duration{50}, next.first, "pair 1 waits")
	s, waiting := c.total()
	require.Len(t, s.first, 3)
	require.Equal(t, 1, waiting)
}

// TestVictims: one seed, one list of victims. Only the first of a kind is killed.
func TestVictims(t *testing.T) {
	var names [3][]string
	kinds := map[string]bool{}
	for i, seed := range []uint64{1, 1, 2} {
		c := cluster(4, 4, seed)
		for range 5 {
			for _, f := range faults {
				v := c.victim(f)
				require.Equal(t, f.kills, v.number == 0, f.name)
				names[i] = append(names[i], v.kind+string(rune('0'+v.number)))
				kinds[v.kind] = true
			}
		}
	}
	require.Equal(t, names[0], names[1])
	require.NotEqual(t, names[0], names[2])
	require.Len(t, kinds, 2)
}

// TestChoose: faults that a run cannot have are left out with a reason, and names of none are errors.
func TestChoose(t *testing.T) {
	list, out, err := choose(Options{Faults: []string{"stop9", "cut", "kill"}}, pace{longest: time.Second}, true)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "kill", list[0].name)
	require.Len(t, out, 2)
	list, out, err = choose(Options{Faults: []string{All}}, pace{longest: time.Hour}, false)
	require.NoError(t, err)
	require.Len(t, list, len(faults)-len(out))
	_, _, err = choose(Options{Faults: []string{"fire"}}, pace{}, false)
	require.ErrorContains(t, err, `--chaos "fire": want campaign, or some of kill, restart, replace, stop1`)
}

// TestMore: what a survivor holds beyond what it held, and beyond what runtimes keep.
func TestMore(t *testing.T) {
	s := state{before: held{fds: 40, threads: 20, sessions: 4, memory: 50 << 20}}
	s.after = held{fds: 40, threads: 28, sessions: 4, memory: 66 << 20}
	require.Empty(t, s.more())
	s.after = held{fds: 41, threads: 29, sessions: 5, memory: 67 << 20}
	require.Equal(t, "1 descriptors, 1 sessions, 9 threads, 17 MiB", s.more())
}

// TestHurry: a pair that pauses already pauses only as long as it is to from now on.
func TestHurry(t *testing.T) {
	c := cluster(100, 100, 1)
	c.traffic = newTraffic(c) // pairs pause for 60 s and more
	rested := make(chan int, 2)
	ctx, end := context.WithCancel(context.Background())
	for p := range 2 {
		go func() { c.traffic.rest(ctx, p, 0.5); rested <- p }()
	}
	c.traffic.hurry([]int{1}, time.Millisecond)
	require.Equal(t, 1, <-rested)
	c.traffic.rest(ctx, 1, 0.5)
	require.Empty(t, rested, "the other pauses on")
	end()
	require.Equal(t, 0, <-rested)
}
