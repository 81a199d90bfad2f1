package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"gorail/gorail/cli"
)

// wrong runs the tool, which must refuse the arguments with exit status 2 and without words of a library.
func wrong(t *testing.T, args ...string) string {
	t.Helper()
	_, _, err := gorail(args...)
	e, ok := errors.AsType[cli.Exit](err)
	require.True(t, ok, "%q: %v", args, err)
	require.Equal(t, 2, e.Code, "%q: %v", args, err)
	for _, library := range []string{"strconv", "parse error", "invalid syntax", "invalid argument", "time:", "pflag", "flags in the group"} {
		require.NotContains(t, e.Text, library, "%q", args)
	}
	return e.Text
}

// TestWrongCommands: what does not exist ends with status 2, and the text has what was meant.
func TestWrongCommands(t *testing.T) {
	for args, says := range map[string]string{
		"docter": "did you mean doctor?", "report": "did you mean bench?", "trace": "did you mean top?", "study rail": "did you mean rails?", "study quick": "see gorail study --help",
		"bench extra": "gorail bench takes no argument", "info x": "takes no argument", "top x": "takes no argument", "stats --jsn": "unknown flag: --jsn; see gorail stats --help",
		"explain GR-1 GR-2": "see gorail explain --help", "explain a-line-with-GR-9": "gorail explain for the list", "explain GR-9": "gorail explain for the list", "plugins --dir /a --cache /b": "exclude each other",
		"doctor --param x": "write NAME=VALUE", "top --interval 1ms": "give 100ms or more", "plugins --dir": "needs an argument",
		"help docter": "did you mean doctor?", "help study rail": "did you mean rails?", "bench --mode fast": "want transfer, small", "bench -o xml": "want table, json", "bench --target dies": "want polls", "bench --memory tape": "want dram", "bench --compare a-b": "not a backend name",
	} {
		require.Contains(t, wrong(t, strings.Fields(args)...), says, args)
	}
}

// TestExplainLine: the code of a line of the log is found in the line, and a line without one is refused.
func TestExplainLine(t *testing.T) {
	want, _, err := gorail("explain", "GR-1069")
	require.NoError(t, err)
	out, _, err := gorail("explain", `time=2026-11-30T01:00:00Z level=WARN backend=GORAIL msg="peer refused" code=GR-1069 err="port 10:7 of 3"`)
	require.NoError(t, err)
	require.Equal(t, want, out)
	require.Contains(t, wrong(t, "explain", `level=WARN msg="no code here"`), "gorail explain for the list")
}

// TestWrongValues: every flag of every command refuses what is no value of its type, in the tool's words.
func TestWrongValues(t *testing.T) {
	bad := map[string][]string{"bool": {"maybe"}, "int": {"x", "1.5", "99999999999999999999"}, "uint64": {"x", "-1"}, "float64": {"x", ""}, "duration": {"soon", "5", ""},
		"intSlice": {"a", "1,,2"}, "stringSlice": {`a"b`}, "size": {"lots", "-1", "4Q"}}
	seen := 0
	tree(func(c *cobra.Command) {
		path := strings.Fields(c.CommandPath())[1:]
		c.Flags().VisitAll(func(f *pflag.Flag) {
			for _, value := range bad[f.Value.Type()] {
				text := wrong(t, append(path, "--"+f.Name+"="+value)...)
				require.Contains(t, text, "--"+f.Name)
				require.Regexp(t, "want |write ", text)
				seen++
			}
		})
	})
	require.Greater(t, seen, 80)
}

// tree calls f for each command that users see.
func tree(f func(*cobra.Command)) {
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		if f(c); c.Name() == "completion" {
			return // of the library
		}
		for _, sub := range c.Commands() {
			if !sub.Hidden {
				visit(sub)
			}
		}
	}
	visit(root(nil, io.Discard, io.Discard))
}

// TestHelp: help fits 100 columns, is ordered by task, and has no flag outside of a group where there are many.
func TestHelp(t *testing.T) {
	out, _, err := gorail("--help")
	require.NoError(t, err)
	require.Regexp(t, `(?s)This machine:.* info .* doctor .* explain .*Running engines:.* top .* stats .* metrics .*Measure:.* bench .* study .*Plugin folders:.* plugins .* version .* help .* completion `, out)
	for _, args := range [][]string{{"bench"}, {"study", "kv"}, {"study", "rails"}} {
		out, _, err := gorail(append(args, "--help")...)
		require.NoError(t, err)
		_, flags, _ := strings.Cut(out, "\nFlags:\n")
		require.Equal(t, 1, strings.Count(flags, " --"), "%q: %s", args, flags)
		require.Contains(t, out, "\nOutput:\n")
	}
	tree(func(c *cobra.Command) {
		out, _, err := gorail(append(strings.Fields(c.CommandPath())[1:], "--help")...)
		require.NoError(t, err)
		for line := range strings.Lines(out) {
			require.True(t, c.Name() == "completion" || utf8.RuneCountInString(line) <= 101, line)
		}
	})
}

// TestCompletion: values of flags complete, also the last of a list, and so do codes.
func TestCompletion(t *testing.T) {
	for args, want := range map[string]string{
		"bench --mode s": "small", "bench --op-type WRITE,": "WRITE,READ", "bench --layout ": "llama-8b", "bench --memory ": "vmm", "bench --target ": "naps", "bench -o ": "html",
		"plugins --as ": "UCX", "plugins --cuda ": "13", "study kv --output ": "md", "explain ": "GR-1042", "study ": "rails",
	} {
		words := strings.Split(args, " ")
		out, _, err := gorail(append([]string{"__complete"}, words...)...)
		require.NoError(t, err)
		require.Regexp(t, `(?m)^`+want+`(\t|$)`, out, args)
	}
}

// TestInterruptedLeavesNothing: a study that a Control-C ends leaves no file in the folder for temporary files.
func TestInterruptedLeavesNothing(t *testing.T) {
	env := needs(t)
	tmp, out := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", tmp)
	for _, name := range []string{"kv", "rails"} {
		log := &onLine{"1 of", func() { _ = syscall.Kill(os.Getpid(), syscall.SIGINT) }}
		err := run([]string{"study", name, "--smallest", "--wheel", env.WheelDir, "--plugins", env.PluginDir, "--json", filepath.Join(out, name)}, io.Discard, log)
		require.ErrorContains(t, err, "interrupted")
		left, err := os.ReadDir(tmp)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// TestBenchInterrupted: a Control-C ends a benchmark, and what was measured until then is printed and written, with a word that it is incomplete.
func TestBenchInterrupted(t *testing.T) {
	env := needs(t)
	file := filepath.Join(t.TempDir(), "a.json")
	var out strings.Builder
	log := &onLine{"2 of", func() { _ = syscall.Kill(os.Getpid(), syscall.SIGINT) }}
	err := run([]string{"bench", "--wheel", env.WheelDir, "--shapes", "4K,8K,16K", "--limits", "", "--time", "6s", "--json", file}, &out, log)
	require.EqualError(t, err, "interrupted; what was measured until then is written")
	require.Contains(t, out.String(), "4 KiB")
	require.Regexp(t, `incomplete: interrupted after [12] of 9 points`, out.String())
	require.NotContains(t, out.String(), "failed")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(text), `"Ended": "interrupted after`)
}
