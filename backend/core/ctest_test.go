package core_test

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/native"
)

// TestRandom builds ctest (the core and the fake fabric in C alone) with the sanitizers and runs it.
func TestRandom(t *testing.T) {
	for name, c := range map[string]struct {
		flags []string
		runs  [][]string
	}{
		"address": {[]string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all"},
			[][]string{{"1", "6000"}, {"2", "6000"}, {"3", "3000"}, {"4", "3000"}, {"5", "5000", "t"}, {"6", "5000", "t"}, {"12", "5000"},
				{"late_join"}, {"join_twice"}, {"lost_sends"}, {"probe_without_credit"}, {"too_many"}, {"held_back"}, {"held_back_large"},
				{"gathered"}, {"down_and_up"}}},
		"thread": {[]string{"-fsanitize=thread"}, [][]string{{"7", "3000", "t"}, {"8", "3000", "t"}, {"14", "3000", "t"}, {"late_join"}, {"join_twice"}}},
	} {
		if testing.Short() && name == "thread" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctest := native.Part{Name: "ctest", Program: true, Flags: append(c.flags, "-DGR_TEST_PAUSE"),
				Dirs:    append(folders("backend/core/"), "backend/core/ctest", "backend/provider/fake"),
				Include: append(folders("backend/core/"), "backend/core", "backend/include", "backend/provider/fake")}
			bin := ctest.Build(t)
			for i, run := range c.runs {
				if testing.Short() && i%2 == 1 && len(run) > 1 {
					continue
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				out, err := exec.CommandContext(ctx, bin, run...).CombinedOutput()
				cancel()
				require.NoError(t, err, "ctest %v\n%s", run, out)
				t.Logf("ctest %v: %s", run, out)
			}
		})
	}
}
