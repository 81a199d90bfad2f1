package inside

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/history/actor"
	"gorail/test/rdma/bed"
	"gorail/test/testenv"
	"gorail/test/worker"
)

const seedA, seedB = 0xa, 0xb

var limit = testenv.Patient(time.Minute)

// keeperAddr is the address of host B's keeper, if A and B are two guests.
const keeperAddr = "10.0.0.2:7100"

// TestMain: with worker.EnvKeep this program is the keeper at host B of two guests. The program at host A controls it.
func TestMain(m *testing.M) {
	worker.MaybeRun()
	actor.MaybeRun()
	status := m.Run()
	if hostB.host != nil {
		hostB.host.Close()
	}
	os.Exit(status)
}

// hostB is the connection to host B's keeper, shared by all tests of this process.
var hostB struct {
	sync.Once
	host *worker.Host
	err  error
}

// place is the fixture of a test: hosts A and B with rails between them, in this guest or in two guests.
type place struct {
	t     testing.TB
	env   testenv.Env
	kind  string // kind of the devices: "rxe"
	rails int
	pair  *worker.Host // host B, if it is another guest
}

// need skips the test unless it runs in a guest that is both hosts and has at least this number of rails.
func need(t testing.TB, rails int) place {
	t.Helper()
	n := inGuest(t, rails)
	if os.Getenv(bed.EnvSide) != "" {
		t.Skip("needs one guest as hosts A and B; this guest is only one of them")
	}
	return place{t, testenv.Need(t), os.Getenv(bed.EnvKind), n, nil}
}

// needPair skips the test unless it runs in host A of two guests with at least this number of rails.
func needPair(t testing.TB, rails int) place {
	t.Helper()
	n := inGuest(t, rails)
	if os.Getenv(bed.EnvSide) != "A" {
		t.Skip("needs host A of two guests")
	}
	hostB.Do(func() { hostB.host, hostB.err = worker.Dial(keeperAddr) })
	require.NoError(t, hostB.err)
	return place{t, testenv.Need(t), os.Getenv(bed.EnvKind), n, hostB.host}
}

func inGuest(t testing.TB, rails int) int {
	t.Helper()
	n, _ := strconv.Atoi(os.Getenv(bed.EnvRails))
	if os.Getenv(bed.EnvKind) == "" || n < rails {
		t.Skipf("needs a guest with %d RDMA rails", rails)
	}
	return n
}

// agent starts an agent in a new process at host "A" or "B". The agent uses only that host's devices.
func (p place) agent(name, host string, params ...string) *worker.Agent {
	return p.agentOn(name, host+"*", params...)
}

// agentOn is agent with a glob for the devices: "A0", "B*". params are pairs of option name and value.
func (p place) agentOn(name, devices string, params ...string) *worker.Agent {
	p.t.Helper()
	start := worker.Start
	if p.pair != nil && devices[0] == 'B' {
		start = p.pair.Start
	}
	c := worker.AgentConfig{Name: name, Backend: p.env.Backend, ProgThread: true, Params: map[string]string{"devices": p.kind + devices}}
	for i := 0; i < len(params); i += 2 {
		c.Params[params[i]] = params[i+1]
	}
	return start(p.t, worker.Options{Env: p.env}).Agent(c)
}

// connect starts agent alice at host A and agent bob, which polls, at host B. Each has a buffer of size bytes. alice has bob's metadata.
func (p place) connect(size uint64, params ...string) (alice, bob *worker.Agent, a, b *worker.Buf) {
	p.t.Helper()
	alice, bob = p.agent("alice", "A", params...), p.agent("bob", "B", params...)
	bob.Polling(true)
	a, b = alice.Buffer(size, seedA), bob.Buffer(size, seedB)
	alice.Learn(bob)
	return alice, bob, a, b
}

// net returns the name of a rail's network interface at a host.
func (p place) net(host string, rail int) string {
	if p.pair != nil {
		return fmt.Sprint("vec", rail)
	}
	return fmt.Sprint("v", host, rail)
}

// passed returns, for each rail, the bytes that host A (from "A") or host B (from "B") has sent, counted at host A.
func (p place) passed(from string) (n []int) {
	p.t.Helper()
	way := map[string]string{"A": "tx_bytes", "B": "rx_bytes"}[from]
	for r := range p.rails {
		b, err := os.ReadFile(filepath.Join("/sys/class/net", p.net("A", r), "statistics", way))
		require.NoError(p.t, err)
		v, err := strconv.Atoi(strings.TrimSpace(string(b)))
		require.NoError(p.t, err)
		n = append(n, v)
	}
	return n
}

// at runs a command at a host and returns its output. The test fails if the exit status is not 0.
func (p place) at(host string, command ...string) string {
	p.t.Helper()
	if p.pair != nil && host == "B" {
		return p.pair.Run(p.t, command...)
	}
	out, err := run(command...)
	require.NoError(p.t, err, "%q\n%s", command, out)
	return out
}

func eventually(ok func() bool) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if ok() {
			return true
		}
	}
	return false
}

// says waits until a line in the worker's output contains all parts. It must wait, because output and replies use different pipes.
func says(t testing.TB, a *worker.Agent, parts ...string) {
	t.Helper()
	require.True(t, eventually(func() bool {
		return slices.ContainsFunc(strings.Split(strings.ReplaceAll(a.Output(), `\"`, `"`), "\n"), func(line string) bool {
			return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) })
		})
	}), "no line has all of %q:\n%s", parts, a.Output())
}
