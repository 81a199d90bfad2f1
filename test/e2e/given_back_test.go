package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/held"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// soon is the time within which importers give memory back.
var soon = testenv.Patient(2 * time.Second)

// lending is GPU memory of an owner that importers have mapped.
type lending struct {
	t         *testing.T
	owner     *worker.Agent
	importers []*worker.Agent
	mine      []*worker.Buf // of each importer
	lent      *worker.Buf
	files     []uint64 // that are the memory
}

// lend starts an owner and importers. Each importer has read the owner's memory, and keeps its request.
func lend(t *testing.T, m worker.GPUMem, importers int, start func(name string) *worker.Agent) *lending {
	t.Helper()
	const size = 4 * cuda.Granule
	l := &lending{t: t, owner: start("bob")}
	l.lent = l.owner.GPUBuffer(size, seedB, m)
	l.files = l.lent.Behind()
	for i := range importers {
		a := start(fmt.Sprint("alice", i))
		b := a.GPUBuffer(size, seedA, device(0))
		a.Learn(l.owner)
		x := a.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: b.All(), Remote: l.lent.All(), Peer: "bob"})
		// A busy machine maps slowly, and its first transfers are staged.
		require.True(t, worker.Eventually(limit, func() bool { x.Do(limit); return l.holds(a) >= size }), "%s has not mapped the memory", a.Name)
		b.Want(seedB)
		l.importers, l.mine = append(l.importers, a), append(l.mine, b)
	}
	return l
}

// holds is how many bytes of the lent memory a process holds.
func (l *lending) holds(a *worker.Agent) uint64 {
	l.t.Helper()
	n, err := held.By(a.Pid(), l.files...)
	require.NoError(l.t, err)
	return n
}

// back waits until processes hold nothing of the memory, for the time of the promise. It returns what they hold then.
func (l *lending) back(of ...*worker.Agent) (rest string) {
	l.t.Helper()
	began := time.Now()
	if worker.Eventually(soon, func() bool {
		rest = ""
		for _, a := range of {
			if n := l.holds(a); n > 0 {
				rest += fmt.Sprintf("%s holds %d bytes; ", a.Name, n)
			}
		}
		return rest == ""
	}) {
		l.t.Log("given back after", time.Since(began).Round(time.Millisecond))
	}
	return rest
}

// takings are the events after which importers hold nothing. owner: the owner lives on, and its log names an importer that does not answer.
var takings = []struct {
	name      string
	do        func(l *lending)
	owner     bool
	byRequest bool // importers do it themselves
}{
	{name: "exit", do: func(l *lending) { require.NoError(l.t, l.owner.Exit()) }},
	{name: "kill", do: func(l *lending) { l.owner.Kill() }},
	{name: "deregistration", owner: true, do: func(l *lending) { require.NoError(l.t, l.owner.Deregister(l.lent.All())) }},
	{name: "unmap", owner: true, do: func(l *lending) { l.lent.Unmap() }},
	{name: "removal", byRequest: true, do: func(l *lending) {
		for _, a := range l.importers {
			require.NoError(l.t, a.Invalidate("bob"))
		}
	}},
}

// notYet are the events after which importers keep memory today, in every form of the test. Such a case must fail: who mends it removes
// its name here.
var notYet = map[string]bool{}

// lentKinds are the kinds of memory.
var lentKinds = map[string]worker.GPUMem{"cudaMalloc": device(1), "VMM": {Device: 1, Handles: 2}}

// eachTaking runs a scenario for each event, kind of memory, and place of the processes.
func eachTaking(t *testing.T, f func(t *testing.T, taking int, m worker.GPUMem, start func(name string) *worker.Agent) (rest string)) {
	if os.Getenv("GORAIL_TEST_CUDA") != "" {
		t.Skip("the account is the imitation's; BenchmarkGivenBack looks at real GPUs")
	}
	imitated := func(t *testing.T) (o worker.Options, lib string) {
		o, lib = gpuHost(t), cuda.Build(t).Path
		o.Setenv = append(o.Setenv, "GORAIL_CUDA_PATH="+lib)
		return o, lib
	}
	places := map[string]func(t *testing.T) func(string) *worker.Agent{
		"host": func(t *testing.T) func(string) *worker.Agent {
			o, _ := imitated(t)
			return func(name string) *worker.Agent { return agent(process(t, o), o.Env, name) }
		},
		"pods": func(t *testing.T) func(string) *worker.Agent {
			n := newNode(t)
			o, lib := imitated(t)
			files := n.dir("gpus", 0o777)
			return func(name string) *worker.Agent {
				o := o
				o.Setenv = append([]string{"GORAIL_TEST_GPU_NODE=" + files}, append(o.Setenv, autoProvider...)...)
				return agent(n.pod().sees(files).sees(filepath.Dir(lib)).worker(o), o.Env, name)
			}
		},
	}
	if os.Getenv(envWalls) != "" {
		delete(places, "pods") // they are pods already
	}
	for place, start := range places {
		for kind, m := range lentKinds {
			for i, e := range takings {
				t.Run(place+"/"+kind+"/"+e.name, func(t *testing.T) {
					t.Parallel()
					rest := f(t, i, m, start(t))
					if notYet[e.name] {
						require.NotEmpty(t, rest, "this holds now: remove the event from notYet")
						t.Log("not yet: ", rest)
						return
					}
					require.Empty(t, rest, "after %v", soon)
				})
			}
		}
	}
}

// TestMemoryGivenBack: within two seconds after its owner has ended, was killed, has deregistered or unmapped GPU memory, or after the
// importer has removed the owner, no importer holds a byte of it.
func TestMemoryGivenBack(t *testing.T) {
	t.Parallel()
	for _, importers := range []int{1, 3} {
		if importers == 1 && testing.Short() {
			continue
		}
		t.Run(fmt.Sprint("importers=", importers), func(t *testing.T) {
			eachTaking(t, func(t *testing.T, taking int, m worker.GPUMem, start func(name string) *worker.Agent) string {
				l := lend(t, m, importers, start)
				takings[taking].do(l)
				return l.back(l.importers...)
			})
		})
	}
}

// TestMemoryGivenBackByStopped: an importer that is stopped meanwhile keeps the memory, as no other does. It gives it back within two
// seconds after it continues. The owner's log names it.
func TestMemoryGivenBackByStopped(t *testing.T) {
	t.Parallel()
	eachTaking(t, func(t *testing.T, taking int, m worker.GPUMem, start func(name string) *worker.Agent) string {
		e := takings[taking]
		if e.byRequest {
			t.Skip("a stopped process asks for nothing")
		}
		l := lend(t, m, 2, start)
		asleep, awake := l.importers[0], l.importers[1]
		asleep.Stop()
		began := time.Now()
		e.do(l)
		t.Logf("%s took %v", e.name, time.Since(began).Round(time.Millisecond))
		rest := l.back(awake)
		require.NotZero(t, l.holds(asleep), "a stopped process has given something back")
		if e.owner && !notYet[e.name] {
			says(t, l.owner.Worker, "WARN", asleep.Name)
		}
		asleep.Cont()
		return rest + l.back(asleep)
	})
}
