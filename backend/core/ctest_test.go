package core_test

import (
	"context"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/native"
	"gorail/test/seeds"
)

// ctest is the core and the fake fabric in C alone, with the driver. The driver replaces the core's clock.
func ctest(flags ...string) native.Part {
	return native.Part{Name: "ctest", Program: true, Flags: append(flags, "-DGR_TEST_PAUSE", "-Wl,--wrap=gr_now_ns,--wrap=core_event,--wrap=core_event_nodes,--wrap=malloc,--wrap=sched_yield"),
		Dirs:    []string{"backend/core", "backend/core/ctest", "test/fake"},
		Include: []string{"backend/core", "backend/include", "test/fake"}}
}

// Address alone: with undefined, too, the compiler takes twice the processor time. TestUndefined has that.
var addressFlags = []string{"-fsanitize=address", "-fno-sanitize-recover=all"}

// all are random runs, and scenarios.
var all = [][]string{{"1", "6000"}, {"2", "6000"}, {"3", "3000"}, {"4", "3000"}, {"5", "5000", "t"}, {"6", "5000", "t"}, {"12", "5000"},
	{"late_join"}, {"join_twice"}, {"lost_sends"}, {"probe_without_credit"}, {"too_many"}, {"held_back"}, {"held_back_large"},
	{"gathered"}, {"down_and_up"}, {"probed_with_work"}, {"refused_receives"}, {"yields"}, {"yields_back"}, {"yields_stuck"}, {"yields_refused"}, {"yields_midway"},
	{"seldom_polls"}, {"crowded"}, {"10", "5000", "t"}, {"11", "5000", "t"},
	{"1", "4000", "s"}, {"2", "4000", "s"}, {"3", "4000", "s"}, {"5", "4000", "ts"}, {"6", "4000", "ts"}}

// runs runs ctest. The short form has a third of the random runs.
func runs(t *testing.T, bin string, runs [][]string) {
	for i, run := range runs {
		if testing.Short() && i%3 != 0 && len(run) > 1 {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		out, err := exec.CommandContext(ctx, bin, run...).CombinedOutput()
		cancel()
		require.NoError(t, err, "ctest %v\n%s", run, out)
		t.Logf("ctest %v: %s", run, out)
	}
}

// TestRandom builds ctest (the core and the fake fabric in C alone) with the sanitizers of addresses and threads and runs it.
func TestRandom(t *testing.T) {
	for name, c := range map[string]struct {
		flags []string
		runs  [][]string
	}{
		"address": {addressFlags, all},
		"thread": {[]string{"-fsanitize=thread"},
			[][]string{{"7", "3000", "t"}, {"8", "3000", "t"}, {"14", "3000", "t"}, {"10", "3000", "t"}, {"yields"}, {"yields_back"}, {"yields_stuck"},
				{"yields_midway"}, {"late_join"}, {"join_twice"}, {"crowded"}, {"7", "3000", "ts"}, {"8", "3000", "ts"}}},
	} {
		if testing.Short() && name == "thread" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bin := ctest(c.flags...).Build(t)
			runs(t, bin, c.runs)
		})
	}
}

// TestUndefined runs ctest with the sanitizer of undefined behaviour.
func TestUndefined(t *testing.T) {
	t.Parallel()
	runs(t, ctest("-fsanitize=undefined", "-fno-sanitize-recover=all").Build(t), all)
}

// One thread drives two cores, with a given clock and random numbers. Each seed runs twice, and both runs do the same in the same order
// at the same times: what they print has a hash of all that. So a seed that fails once fails always.
func TestRandomReplays(t *testing.T) {
	t.Parallel()
	const steps = "2000"
	bin := ctest(addressFlags...).Build(t)
	traces := make(map[string]uint64)
	for seed := uint64(1); seed <= seeds.Count(t, 6, 1000); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			run := func() string {
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
				defer cancel()
				out, err := exec.CommandContext(ctx, bin, fmt.Sprint(seed), steps).CombinedOutput()
				require.NoError(t, err, "ctest %d %s\n%s", seed, steps, out)
				return string(out)
			}
			first := run()
			require.Equal(t, first, run(), "the seed does not replay")
			require.NotContains(t, traces, first, "another seed did the same")
			traces[first] = seed
		})
	}
}
