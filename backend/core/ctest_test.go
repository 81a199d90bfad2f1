package core_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRandom builds ctest, the core and the fake fabric in C alone, under the sanitizers, and runs it.
func TestRandom(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc here")
	}
	for name, c := range map[string]struct {
		flags []string
		runs  [][]string
	}{
		"address": {[]string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all"},
			[][]string{{"1", "6000"}, {"2", "6000"}, {"3", "3000"}, {"4", "3000"}, {"5", "5000", "t"}, {"6", "5000", "t"}, {"12", "5000"},
				{"late_join"}, {"lost_sends"}, {"probe_without_credit"}, {"too_many"}, {"held_back"}, {"held_back_large"}}},
		"thread": {[]string{"-fsanitize=thread"}, [][]string{{"7", "3000", "t"}, {"8", "3000", "t"}, {"14", "3000", "t"}, {"late_join"}}},
	} {
		t.Run(name, func(t *testing.T) {
			bin := filepath.Join(t.TempDir(), "ctest")
			args := append(c.flags, "-DGR_TEST_PAUSE", "-std=gnu17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I.", "-I../include", "-I../provider/fake", "-o", bin)
			for _, dir := range []string{".", "ctest", "../provider/fake"} {
				files, err := filepath.Glob(dir + "/*.c")
				require.NoError(t, err)
				require.NotEmpty(t, files)
				args = append(args, files...)
			}
			if out, err := exec.Command(gcc, append(args, "-lpthread")...).CombinedOutput(); err != nil {
				if !sanitizes(t, gcc, c.flags[0]) {
					t.Skipf("gcc here has no %s", c.flags[0])
				}
				t.Fatalf("%v\n%s", err, out)
			}
			for _, run := range c.runs {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				out, err := exec.CommandContext(ctx, bin, run...).CombinedOutput()
				cancel()
				require.NoError(t, err, "ctest %v\n%s", run, out)
				t.Logf("ctest %v: %s", run, out)
			}
		})
	}
}

// sanitizes says whether gcc has the library of a sanitizer.
func sanitizes(t *testing.T, gcc, flag string) bool {
	cmd := exec.Command(gcc, flag, "-x", "c", "-", "-o", filepath.Join(t.TempDir(), "empty"))
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	go func() {
		_, _ = stdin.Write([]byte("int main(void) { return 0; }\n"))
		stdin.Close()
	}()
	return cmd.Run() == nil
}
