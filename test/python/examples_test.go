package python

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/skip"
	"gorail/test/testenv"
)

// withPOSIX returns a plugin folder that has GORAIL and the wheel's plugins, for examples that use POSIX beside a network.
func withPOSIX(t *testing.T, env testenv.Env) string {
	t.Helper()
	plugins, err := env.PluginFolder(t.TempDir())
	require.NoError(t, err)
	return plugins
}

func example(file string, args ...string) []string {
	return append([]string{filepath.Join(testenv.Root(), "examples", file)}, args...)
}

// installed returns the arguments and the environment of an example as it runs beside an installed wheel: by the name of its module, without
// NIXL_PLUGIN_DIR, in a folder that has none of it.
func installed(t *testing.T, env testenv.Env, file string, args ...string) (all, setenv []string) {
	module := "nixl_gorail.examples." + strings.TrimSuffix(file, ".py")
	if file == "two_agents.py" {
		module = "nixl_gorail.two_agents"
	}
	return append([]string{"-m", module}, args...), fresh(t, env)
}

// fresh returns the variables of a program that finds the plugin by nixl_gorail alone.
func fresh(t *testing.T, env testenv.Env) []string {
	return []string{"NIXL_PLUGIN_DIR=", "GORAIL_PLUGIN_DIR=" + env.PluginDir, "XDG_CACHE_HOME=" + t.TempDir(),
		"PYTHONPATH=" + filepath.Join(testenv.Root(), "python")}
}

// TestVisible: the rounds of test/gpu/visible.py bring each value, in host memory; without a GPU it says loudly that it has tested nothing.
func TestVisible(t *testing.T) {
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	program := filepath.Join(testenv.Root(), "test", "gpu", "visible.py")
	out, err := run(t, env, time.Minute, fresh(t, env), env.Python, program, "--device", "numpy", "--rounds", "3")
	require.NoError(t, err, out)
	for _, op := range []string{"READ", "WRITE"} {
		require.Contains(t, out, op+", seen on the default stream: as expected: old numbers in 0 of 3 rounds")
		require.Contains(t, out, op+", seen on another stream: skipped: needs a GPU")
	}
	require.NotContains(t, out, "WRONG")
	none := append(fresh(t, env), "CUDA_VISIBLE_DEVICES=", "CI=")
	out, err = run(t, env, time.Minute, none, env.Python, program)
	require.NoError(t, err, out)
	require.Contains(t, out, "SKIPPED, NOTHING WAS TESTED")
	out, err = run(t, env, time.Minute, append(none, "CI=1"), env.Python, program)
	require.Error(t, err, out)
}

// TestReadme runs the Python block of README.md as it is printed, with NIXL's wheel alone. python/tests/test_readme.py has the package nixl.
func TestReadme(t *testing.T) {
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	page, err := os.ReadFile(filepath.Join(testenv.Root(), "README.md"))
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(page), "```python\n")
	require.True(t, found)
	block, _, found := strings.Cut(rest, "```")
	require.True(t, found)
	out, err := run(t, env, time.Minute, fresh(t, env), env.Python, "-c", block)
	require.NoError(t, err, out)
	require.Contains(t, out, "the same bytes: True\n")
}

// TestExamples: each example moves and verifies its bytes, over tcp and shared memory, and with the wheel's UCX.
func TestExamples(t *testing.T) {
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	plugins := withPOSIX(t, env)
	for file, tt := range map[string]struct {
		args   []string
		result string // a number in the file of --json
		short  string // the way of the short form; "": tcp and sm
	}{
		"two_agents.py":    {[]string{"--mib", "4", "--rounds", "2"}, "", ""},
		"kv_blocks.py":     {[]string{"--requests", "20"}, "", "sm"},
		"weights.py":       {[]string{"--versions", "4", "--mib", "4"}, "tree", "tcp"},
		"gradient_sync.py": {[]string{"--ranks", "3", "--buckets", "2", "--bucket-mib", "1", "--steps", "1", "--compute-ms", "5"}, "ring", "sm"},
		// The last chunk is smaller, and there are more chunks than slots.
		"checkpoint.py": {[]string{"--ranks", "3", "--mib", "5", "--chunk-mib", "1"}, "file", "tcp"},
	} {
		for name, way := range map[string]string{"tcp": "GORAIL", "sm": "GORAIL", "ucx": "UCX"} {
			if testing.Short() && (way == "UCX" || tt.short != "" && tt.short != name) {
				continue
			}
			t.Run(file+"/"+name, func(t *testing.T) {
				t.Parallel()
				args, results := append(example(file, "--backend", way), tt.args...), filepath.Join(t.TempDir(), "results.json")
				setenv := []string{"NIXL_PLUGIN_DIR=" + plugins}
				if way == "GORAIL" {
					args, setenv = installed(t, env, file, tt.args...)
					setenv = append(setenv, "GORAIL_PROVIDER="+name, "GORAIL_LOG=warn")
				}
				if tt.result != "" {
					args = append(args, "--json", results)
				}
				out, err := run(t, env, time.Minute, setenv, env.Python, args...)
				require.Contains(t, out, "verified\n", err)
				require.NotContains(t, out, "backend=GORAIL", "nothing frightens in an ordinary run")
				if file == "two_agents.py" && way == "GORAIL" {
					require.Contains(t, out, "\npath: "+name+"/")
				}
				if way == "GORAIL" { // stock UCX crashes in a destructor of the wheel's libnl after all work is done
					require.NoError(t, err, out)
				}
				if tt.result == "" {
					return
				}
				b, err := os.ReadFile(results)
				require.NoError(t, err)
				var said struct {
					Backend string
					Results map[string]map[string]any
				}
				require.NoError(t, json.Unmarshal(b, &said), string(b))
				require.Equal(t, way, said.Backend)
				for what, value := range said.Results[tt.result] {
					if number, ok := value.(float64); ok && what != "overhead_percent" {
						require.Positive(t, number, what)
					}
				}
				require.NotEmpty(t, said.Results[tt.result], string(b))
			})
		}
	}
}

// TestWeightsLayouts: weights.py moves an arena, and shards of rows and of columns, of numpy and of torch; beside torch's own broadcasts.
func TestWeightsLayouts(t *testing.T) {
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	for _, layout := range []string{"arena", "resharded"} {
		for _, device := range []string{"numpy", "cpu"} {
			t.Run(layout+"/"+device, func(t *testing.T) {
				python, limit := env.Python, time.Minute
				args, setenv := installed(t, env, "weights.py", "--versions", "3", "--mib", "2", "--layout", layout, "--device", device)
				if device == "cpu" { // torch takes seconds to load
					python, limit = filepath.Join(testenv.Root(), ".cache/vllm/bin/python"), 3*time.Minute
					if _, err := os.Stat(python); err != nil {
						t.Skipf("no torch: make test-vllm installs it (%v)", err)
					}
					args = append(args, "--compare", "gloo")
				}
				out, err := run(t, env, limit, append(setenv, "GORAIL_PROVIDER=sm", "GORAIL_LOG=warn"), python, args...)
				require.NoError(t, err, out)
				require.Contains(t, out, "verified\n")
				require.Equal(t, layout == "arena", strings.Contains(out, "\ntree: "), out)
				require.Equal(t, device == "cpu", strings.Contains(out, "\ngloo: "), out)
			})
		}
	}
}

// TestNobodyListens: two_agents --connect to a port where nobody is ends with one line that says so, and status 1.
func TestNobodyListens(t *testing.T) {
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	at := l.Addr().String()
	require.NoError(t, l.Close())
	args, setenv := installed(t, env, "two_agents.py", "--connect", at)
	out, err := run(t, env, time.Minute, setenv, env.Python, args...)
	ended, ok := errors.AsType[*exec.ExitError](err)
	require.True(t, ok, "%v: %s", err, out)
	require.Equal(t, 1, ended.ExitCode(), out)
	require.NotContains(t, out, "Traceback")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Equal(t, at+": Connection refused. Is two_agents --listen running there?", lines[len(lines)-1], out)
	require.Len(t, lines, 2, "before it nixl_gorail names the plugin folder: %s", out)
}

// TestExamplesKilled: a killed process ends the example within a bounded time, and the error names that process.
func TestExamplesKilled(t *testing.T) {
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	plugins := withPOSIX(t, env)
	for i, tt := range []struct {
		victim string
		args   []string
	}{
		{"rank 1", example("gradient_sync.py", "--ranks", "3", "--buckets", "2", "--bucket-mib", "1", "--algorithm", "ring")},
		{"rank 0", example("gradient_sync.py", "--ranks", "3", "--buckets", "2", "--bucket-mib", "1", "--algorithm", "tree")},
		{"rank 1", example("checkpoint.py", "--ranks", "3", "--mib", "5", "--chunk-mib", "1")},
		{"store", example("checkpoint.py", "--ranks", "3", "--mib", "5", "--chunk-mib", "1")},
		{"worker 0", example("weights.py", "--versions", "2", "--mib", "1")},
		{"trainer", example("weights.py", "--versions", "2", "--mib", "1")},
	} {
		for n, way := range []string{"tcp", "sm"} {
			if testing.Short() && n != i%2 {
				continue
			}
			t.Run(filepath.Base(tt.args[0])+"/"+tt.victim+"/"+way, func(t *testing.T) {
				t.Parallel()
				// An example that does not see the death waits for a minute.
				out, err := run(t, env, 50*time.Second, []string{"NIXL_PLUGIN_DIR=" + plugins, "GORAIL_PROVIDER=" + way}, env.Python,
					append(tt.args, "--kill", tt.victim)...)
				var exit *exec.ExitError
				require.True(t, errors.As(err, &exit), "%v\n%s", err, out)
				require.Equal(t, 1, exit.ExitCode(), out)
				require.Contains(t, out, "\n  "+tt.victim+": was killed by SIGKILL\n")
				require.NotContains(t, out, "Traceback")
				require.NotContains(t, out, "verified\n")
			})
		}
	}
}

// TestExamplesRefuse: what an example cannot do has an error that says why, before anything moves.
func TestExamplesRefuse(t *testing.T) {
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	for name, tt := range map[string]struct {
		args []string
		code int
		says string
	}{
		"one rank":     {example("gradient_sync.py", "--ranks", "1"), 2, "a sum needs two --ranks"},
		"no bytes":     {example("checkpoint.py", "--mib", "0"), 2, "argument --mib: invalid positive value: '0'"},
		"nobody":       {example("weights.py", "--kill", "rank 9"), 2, "--kill rank 9: the processes are trainer, worker 0, worker 1, worker 2"},
		"no GPU":       {example("weights.py", "--compare", "nccl"), 2, "--compare nccl needs "},
		"no folder":    {example("weights.py", "--json", "/none/results.json"), 2, "--json /none/results.json: No such file or directory"},
		"no directory": {example("checkpoint.py", "--ranks", "1", "--mib", "1", "--dir", "/none"), 1, "store: [Errno 2] No such file or directory"},
		"no plugin":    {example("kv_blocks.py"), 1, "error: GORAIL_PLUGIN_DIR=/none names a folder without the plugin"},
		"no backend":   {example("weights.py", "--workers", "1", "--mib", "1", "--backend", "NONE"), 1, "trainer: NIXL has no plugin NONE. NIXL_PLUGIN_DIR="},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var setenv []string
			if name == "no plugin" {
				setenv = []string{"NIXL_PLUGIN_DIR=", "GORAIL_PLUGIN_DIR=/none"}
			}
			out, err := run(t, env, time.Minute, setenv, env.Python, tt.args...)
			var exit *exec.ExitError
			require.True(t, errors.As(err, &exit), "%v\n%s", err, out)
			require.Equal(t, tt.code, exit.ExitCode(), out)
			require.Contains(t, out, tt.says)
			require.NotContains(t, out, "Traceback")
		})
	}
}
