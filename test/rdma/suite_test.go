package rdma

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/rdma/bed"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// verdict matches the result line of a test in the output of -test.v.
var verdict = regexp.MustCompile(`--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+s)\)`)

// started matches the line at a test's start.
var started = regexp.MustCompile(`(?m)^=== RUN +(\S+)$`)

// built holds the paths of the test binaries built by this run, by package.
var built struct {
	sync.Mutex
	file map[string]string
}

// compile builds a package's tests once, on the host, into build/, because a guest has one CPU and a cold cache.
func compile(t *testing.T, pkg string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if file := built.file[pkg]; file != "" {
		return file
	}
	file := filepath.Join(testenv.Root(), "build", "rdma", filepath.Base(pkg)+".test")
	c := exec.Command("go", "test", "-c", "-buildvcs=false", "-o", file, "./"+pkg)
	c.Dir = testenv.Root()
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	if built.file == nil {
		built.file = make(map[string]string)
	}
	built.file[pkg] = file
	return file
}

// threads sets GOMAXPROCS in a guest, which has one CPU. With GOMAXPROCS=1 a locked thread that sleeps for less than a thread switch (the
// worker's polling) is always first in the queue, and no other goroutine of the process runs.
const threads = "GOMAXPROCS=4"

// patient sets longer time limits of tests and engines in a guest: its processes share one CPU, and the host may be busy.
var patient = []string{testenv.EnvPatient + "=4", "GORAIL_CONNECT_TIMEOUT=20s", "GORAIL_PEER_TIMEOUT=20s"}

// suite runs tests of a package of this module (pattern as for -run) in a guest, with the plugin, wheel and interpreter of
// this run. Each test becomes a subtest. A test that started and did not end has failed. No test at all is a failure.
func suite(t *testing.T, g bed.Guest, pkg, pattern string, args ...string) {
	t.Helper()
	g, command := prepare(t, g, pkg, pattern, args...)
	r, err := g.Run(command...)
	report(t, r, err, pkg, pattern)
}

// suitePair is suite in host A of two guests. The tests start workers in host B through the keeper there.
func suitePair(t *testing.T, g bed.Guest, pkg, pattern string) {
	t.Helper()
	g, command := prepare(t, g, pkg, pattern)
	r, b, err := g.Pair(command, []string{"env", worker.EnvKeep + "=" + keeperAddr, command[0]})
	report(t, r, err, pkg, pattern)
	require.Zero(t, b.Status, "host B: %v", b)
}

// keeperAddr is the address on which host B's keeper listens; package inside connects to it.
const keeperAddr = ":7100"

// prepare sets the guest's folder and environment for tests of a package. It returns the guest and the command that runs the tests.
func prepare(t *testing.T, g bed.Guest, pkg, pattern string, args ...string) (bed.Guest, []string) {
	t.Helper()
	bed.Need(t)
	env := testenv.Need(t)
	file := compile(t, pkg)
	g.Dir = filepath.Join(testenv.Root(), pkg)
	g.Env = slices.Concat(patient, []string{testenv.EnvBackend + "=" + env.Backend, testenv.EnvPlugins + "=" + env.PluginDir,
		testenv.EnvWheel + "=" + env.WheelDir, testenv.EnvPython + "=" + env.Python, "CI=" + os.Getenv("CI"), threads}, g.Env)
	return g, append([]string{file, "-test.v", "-test.run", pattern}, args...)
}

// report turns the output of a test binary in a guest into subtests.
func report(t *testing.T, r bed.Result, err error, pkg, pattern string) {
	t.Helper()
	t.Logf("guest: %v", r.Took)
	results, took := make(map[string]string), make(map[string]string)
	for _, m := range started.FindAllStringSubmatch(r.Stdout, -1) {
		results[m[1]] = "never ended"
	}
	for _, m := range verdict.FindAllStringSubmatch(r.Stdout, -1) {
		results[m[2]], took[m[2]] = m[1], m[3]
	}
	require.NotEmpty(t, results, "%s has no test %s, or the guest ended before the tests: %v\n%v", pkg, pattern, err, r)
	failed := false
	for name, result := range results {
		t.Run(name, func(t *testing.T) {
			switch result {
			case "PASS":
				t.Log("in the guest: ", took[name])
			case "SKIP":
				t.Skip("skipped in the guest; its output has the reason")
			default:
				failed = true
				t.Errorf("in the guest: %s", result)
			}
		})
	}
	require.NoError(t, err)
	if failed || r.Status != 0 || strings.Contains(r.Stdout, "--- SKIP") {
		t.Log(r)
	}
	require.True(t, failed || r.Status == 0, "exit status %d without a failed test", r.Status)
}
