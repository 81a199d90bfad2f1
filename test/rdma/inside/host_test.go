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

	"gorail/test/rdma/bed"
	"gorail/test/testenv"
	"gorail/test/worker"
)

const seedA, seedB = 0xa, 0xb

var limit = testenv.Patient(time.Minute)

// keeperAt is where host B's keeper listens, when A and B are two guests.
const keeperAt = "10.0.0.2:7100"

// TestMain: a program with worker.EnvKeep is host B of two guests; that at host A drives it.
func TestMain(m *testing.M) {
	worker.MaybeRun()
	status := m.Run()
	if there.host != nil {
		there.host.Close()
	}
	os.Exit(status)
}

// there is the connection to host B's keeper, one for all tests of this process.
var there struct {
	sync.Once
	host *worker.Host
	err  error
}

// place is the guest that a test runs in: host A and host B with rails between them, here or in two guests.
type place struct {
	t     testing.TB
	env   testenv.Env
	kind  string // of the devices: "rxe", "siw"
	rails int
	pair  *worker.Host // host B, when it is a guest of its own
}

// need skips the test unless it runs in a guest with so many rails, which is hosts A and B.
func need(t testing.TB, rails int) place {
	t.Helper()
	n := inGuest(t, rails)
	if os.Getenv(bed.EnvSide) != "" {
		t.Skip("host A or B alone")
	}
	return place{t, testenv.Need(t), os.Getenv(bed.EnvKind), n, nil}
}

// needPair skips the test unless it runs in the first of two guests with so many rails between them.
func needPair(t testing.TB, rails int) place {
	t.Helper()
	n := inGuest(t, rails)
	if os.Getenv(bed.EnvSide) != "A" {
		t.Skip("not host A of two guests")
	}
	there.Do(func() { there.host, there.err = worker.Dial(keeperAt) })
	require.NoError(t, there.err)
	return place{t, testenv.Need(t), os.Getenv(bed.EnvKind), n, there.host}
}

func inGuest(t testing.TB, rails int) int {
	t.Helper()
	n, _ := strconv.Atoi(os.Getenv(bed.EnvRails))
	if os.Getenv(bed.EnvKind) == "" || n < rails {
		t.Skipf("not in a guest with %d RDMA rails", rails)
	}
	return n
}

// agent is one in a process of its own, at host "A" or "B", that uses that host's devices and no other's.
func (p place) agent(name, host string, params ...string) *worker.Agent {
	return p.agentOn(name, host+"*", params...)
}

// agentOn uses those of a host's devices that the glob names: "A0", "B*". params are options by name and value.
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

// meet is alice at host A and bob, who polls, at B, with size bytes each that alice knows of.
func (p place) meet(size uint64, params ...string) (alice, bob *worker.Agent, a, b *worker.Buf) {
	p.t.Helper()
	alice, bob = p.agent("alice", "A", params...), p.agent("bob", "B", params...)
	bob.Polling(true)
	a, b = alice.Buffer(size, seedA), bob.Buffer(size, seedB)
	alice.Learn(bob)
	return alice, bob, a, b
}

// net is a host's interface of a rail.
func (p place) net(host string, rail int) string {
	if p.pair != nil {
		return fmt.Sprint("vec", rail)
	}
	return fmt.Sprint("v", host, rail)
}

// passed is what has left host A over each rail ("A"), or come to it ("B" has sent it), bytes.
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

// at runs a command at a host; anything but status 0 fails the test.
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

// says waits for a line of what the agent's worker printed that holds all the parts: the output comes by another pipe than the answers.
func says(t testing.TB, a *worker.Agent, parts ...string) {
	t.Helper()
	require.True(t, eventually(func() bool {
		return slices.ContainsFunc(strings.Split(strings.ReplaceAll(a.Output(), `\"`, `"`), "\n"), func(line string) bool {
			return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) })
		})
	}), "no line has all of %q:\n%s", parts, a.Output())
}
