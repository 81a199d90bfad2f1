// Package python runs scenarios with NIXL's Python API, which alone reports the exact status, and the wheel's C++
// client.
package python

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/native"
	"gorail/test/skip"
	"gorail/test/testenv"
)

// run executes a program with the plugin's environment and returns its output. It and its children die at the deadline.
func run(t *testing.T, env testenv.Env, timeout time.Duration, setenv []string, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = 20 * time.Second // a starved host takes seconds to end the children
	cmd.Env = append(os.Environ(), "NIXL_PLUGIN_DIR="+env.PluginDir, "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1")
	cmd.Env = append(cmd.Env, setenv...)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("killed after %v", timeout)
	}
	return string(out), err
}

func scenario(t *testing.T, file string, args ...string) {
	t.Helper()
	play(t, testenv.Need(t), file, args...)
}

// besideStock runs a scenario with the backend under test and with the wheel's UCX.
func besideStock(t *testing.T, file string) {
	env := testenv.Need(t)
	t.Run(env.Backend, func(t *testing.T) { play(t, env, file) })
	t.Run("UCX", func(t *testing.T) {
		if testing.Short() {
			t.Skip("stock UCX")
		}
		env := env
		env.Backend, env.PluginDir = "UCX", nixlapi.PluginDir(env.WheelDir)
		play(t, env, file)
	})
}

func play(t *testing.T, env testenv.Env, file string, args ...string) {
	t.Helper()
	skip.OrFail(t, env.CheckPython())
	out, err := run(t, env, 60*time.Second, nil, env.Python, append([]string{file, env.Backend}, args...)...)
	if err != nil && env.Backend != "GORAIL" && strings.Contains(out, "\nok\n") {
		// Stock UCX crashes in a destructor of the wheel's libnl after all work is done.
		t.Logf("passed, then: %v", err)
		err = nil
	}
	require.NoError(t, err, out)
	if _, said, ok := strings.Cut(out, "nixlRemoteDisconnectError after"); ok {
		t.Logf("reported after%s", strings.SplitN(said, "\n", 2)[0])
	}
}

// TestPeerKilled: exactly nixlRemoteDisconnectError, within two seconds.
func TestPeerKilled(t *testing.T) {
	for _, when := range []string{"idle", "inflight"} {
		for _, op := range []string{"WRITE", "READ"} {
			for _, prog := range []string{"0", "1"} { // GORAIL does not read the flag
				if testing.Short() && prog == "0" {
					continue
				}
				t.Run(when+"/"+op+"/progress="+prog, func(t *testing.T) { scenario(t, "killed.py", when, op, prog) })
			}
		}
	}
}

// TestFork: the child gets errors (GR-1007), and the parent keeps working.
func TestFork(t *testing.T) { scenario(t, "forked.py") }

// TestPeerKilledBehindItsChild: a child of a dead peer with inherited descriptors does not hide the peer's death.
func TestPeerKilledBehindItsChild(t *testing.T) {
	t.Run("here", func(t *testing.T) { scenario(t, "orphan.py", "here") })
	t.Run("apart", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("pid namespaces need root")
		}
		scenario(t, "orphan.py", "apart")
	})
}

// TestForeignProc: agents in a pid namespace that has its host's /proc, where their numbers name others, do not take each other for dead.
func TestForeignProc(t *testing.T) {
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	skip.UnlessRoot(t, "pid namespaces need root")
	for _, provider := range []string{"auto", "tcp"} {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			out, err := run(t, env, time.Minute, append(fresh(t, env), "GORAIL_PROVIDER="+provider), "unshare", "--mount", "--pid", "--fork", "--kill-child",
				env.Python, "-m", "nixl_gorail.two_agents", "--mib", "4", "--rounds", "2")
			require.NoError(t, err, out)
			require.Contains(t, out, "verified\n")
		})
	}
}

// TestSignals: Ctrl-C works and handlers are unchanged, except for the program faults that a language runtime needs.
func TestSignals(t *testing.T) { scenario(t, "signals.py") }

// TestSigpipe: with the default action of SIGPIPE, set after loading, nothing that others do ends the process.
func TestSigpipe(t *testing.T) {
	env := sigpipeEnv(t)
	for _, provider := range []string{"tcp", "sm"} {
		t.Run(provider, func(t *testing.T) {
			out, err := run(t, env, 3*time.Minute, sigpipeOptions(t, provider), env.Python, "sigpipe.py", env.Backend)
			require.NoError(t, err, out)
			require.Contains(t, out, "alive")
		})
	}
}

// plainWrite is a line of strace about a system call that raises SIGPIPE where the reader of a socket is gone.
var plainWrite = regexp.MustCompile(`(?:write|writev|pwrite64|pwritev2?|sendfile|splice)\([^)\n]*\d+<(?:TCP|UNIX|UDP|socket)[^>\n]*>.*`)

// TestWritesToSockets: the system calls of TestSigpipe have no write(2) to a socket, nor one of its kind.
func TestWritesToSockets(t *testing.T) {
	env := sigpipeEnv(t)
	strace, err := exec.LookPath("strace")
	skip.OrFail(t, err) // Debian's package strace
	require.Regexp(t, plainWrite, "7 write(15<TCP:[127.0.0.1:5->127.0.0.1:6]>, \"x\", 1) = 1")
	require.Regexp(t, plainWrite, "write(15<UNIX-STREAM:[1->2]>, \"x\", 1) = -1 EPIPE (Broken pipe)")
	require.NotRegexp(t, plainWrite, "write(2<pipe:[7]>, \"socket\", 6) = -1 EPIPE (Broken pipe)")
	for _, provider := range []string{"tcp", "sm"} {
		t.Run(provider, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "calls")
			out, err := run(t, env, 5*time.Minute, sigpipeOptions(t, provider), strace, "-f", "-yy", "-s", "40", "-o", file, "-e", "trace=write,writev,pwrite64,pwritev,pwritev2,sendfile,splice,sendmsg",
				env.Python, "sigpipe.py", env.Backend)
			require.NoError(t, err, out)
			calls, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Contains(t, string(calls), "MSG_NOSIGNAL", "strace saw no message of ours")
			require.Empty(t, plainWrite.FindAllString(string(calls), 8))
		})
	}
}

func sigpipeEnv(t *testing.T) testenv.Env {
	t.Helper()
	env := testenv.Need(t)
	if env.Backend != "GORAIL" {
		t.Skipf("%s has no statistics socket", env.Backend)
	}
	skip.OrFail(t, env.CheckPython())
	return env
}

func sigpipeOptions(t *testing.T, provider string) []string {
	return []string{"GORAIL_PROVIDER=" + provider, "GORAIL_LOG=info", "GORAIL_STATS_SOCKET=" + filepath.Join(t.TempDir(), "sockets")}
}

// TestOptions: get_plugin_params, create_backend with parameters, and refused parameters.
func TestOptions(t *testing.T) {
	if b := testenv.Load().Backend; b != "GORAIL" {
		t.Skipf("these are not the options of %s", b)
	}
	scenario(t, "options.py")
}

// TestAccess: what a registration does not allow to peers is exactly nixlNotAllowedError, and moves no byte.
func TestAccess(t *testing.T) {
	if b := testenv.Load().Backend; b != "GORAIL" {
		t.Skipf("%s has no such option", b)
	}
	for _, way := range []string{"tcp", "sm"} {
		t.Run(way, func(t *testing.T) {
			t.Setenv("GORAIL_PROVIDER", way)
			scenario(t, "access.py")
		})
	}
}

// TestRegisterRefused: ranges that are not memory are refused as in stock UCX, and FILE memory always.
func TestRegisterRefused(t *testing.T) { besideStock(t, "refused.py") }

// TestEstimate: estimate_xfer_cost works before a first transfer, as in stock UCX.
func TestEstimate(t *testing.T) { besideStock(t, "estimate.py") }

// TestExampleClient runs the wheel's own C++ client.
func TestExampleClient(t *testing.T) {
	env := testenv.Need(t)
	found, _ := filepath.Glob(filepath.Join(env.WheelDir, "nixl_cu*.scripts", "nixl_example"))
	if len(found) == 0 {
		skip.OrFail(t, fmt.Errorf("no nixl_example in %s", env.WheelDir))
	}
	lib, err := nixlapi.LibDir(env.WheelDir)
	require.NoError(t, err)
	// pip installs the client without the permission to execute it.
	code, err := os.ReadFile(found[0])
	require.NoError(t, err)
	exe := filepath.Join(t.TempDir(), "nixl_example")
	require.NoError(t, os.WriteFile(exe, code, 0o755))
	paths := "LD_LIBRARY_PATH=" + lib + ":" + nixlapi.BundleDir(env.WheelDir)
	out, err := run(t, env, 60*time.Second, []string{paths}, exe, env.Backend)
	require.Contains(t, out, "Test done", err)
	if env.Backend == "GORAIL" {
		require.NoError(t, err, out)
	}
}

// TestPluginFolder: Python can use a folder made by gorail plugins. It finds GORAIL, the wheel's own UCX and POSIX, and
// GORAIL as UCX.
func TestPluginFolder(t *testing.T) {
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	for _, tt := range []struct {
		as, backend string
		args        []string
	}{{"", "GORAIL", nil}, {"", "UCX", nil}, {"", "POSIX", nil}, {"UCX", "UCX", []string{"--alias"}}, {"UCX", "GORAIL", nil}} {
		t.Run(tt.backend+"/as="+tt.as, func(t *testing.T) {
			var as []string
			if tt.as != "" {
				as = []string{tt.as}
			}
			plugins, err := env.PluginFolder(t.TempDir(), as...)
			require.NoError(t, err)
			env := env
			env.PluginDir = plugins
			out, err := run(t, env, 60*time.Second, nil, env.Python, append([]string{"aliases.py", tt.backend}, tt.args...)...)
			require.Contains(t, out, "\nok\n", err) // stock UCX crashes in a destructor after all work is done
		})
	}
}

// TestTogether: one agent has GORAIL, the wheel's UCX, POSIX and GDS_MT. Each moves its kind of memory, in any order of
// loading, also with Go's runtime self-checks. GDS_MT gets an imitated libcufile and libcudart, so no GPU is needed.
func TestTogether(t *testing.T) {
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	plugins, err := env.PluginFolder(t.TempDir())
	require.NoError(t, err)
	env.PluginDir = plugins
	var libs []string
	for name, source := range map[string]string{"libcufile.so.0": "cufile.c", "libcudart.so.12": "cudart.c", "libcudart.so.13": "cudart.c"} {
		part := native.Part{Name: name, SOName: name, Sources: []string{"test/cufile/" + source}, Flags: []string{"-Wl,--default-symver"}}
		libs = append(libs, filepath.Dir(part.Build(t)))
	}
	for name, order := range map[string][]string{"first": {"GORAIL", "UCX", "POSIX", "GDS_MT"}, "last": {"GDS_MT", "POSIX", "UCX", "GORAIL"}} {
		for _, debug := range []string{"", "fips140=on"} {
			if testing.Short() && (name == "first") != (debug == "") {
				continue // each order and each check once
			}
			t.Run(name+"/"+debug, func(t *testing.T) {
				out, err := run(t, env, 60*time.Second, []string{"LD_LIBRARY_PATH=" + strings.Join(libs, ":"), "GODEBUG=" + debug}, env.Python,
					append([]string{"together.py", "GORAIL"}, order...)...)
				require.Contains(t, out, "\nok\n", err) // stock UCX crashes in a destructor after all work is done
			})
		}
	}
}
