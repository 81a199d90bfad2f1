// Package play lets agents in processes of their own live through a schedule of faults, writes these to the history, and judges it
// (package history). The tests choose where the agents live, and do the faults. Rails has the faults of one of two rails.
package play

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/internal/subprocess"
	"gorail/test/history"
	"gorail/test/history/actor"
	"gorail/test/testenv"
)

// Bound is how long a call, or a transfer, may take: more than peer_timeout, for which the error of a WRITE may wait.
var Bound = testenv.Patient(2 * time.Minute)

// Cast are the agents of most rounds.
var Cast = []string{"alice", "bob", "carol"}

// Round is one round. Its exported fields are set before Open. It belongs to the test's goroutine.
type Round struct {
	T        testing.TB
	Env      testenv.Env
	Provider string
	Seed     uint64
	Dir      string // of the history's files
	Cast     []string
	Setenv   []string

	Place  func(i int, f func())                        // runs f where agent i lives; nil: here
	Attr   func(i int) (*syscall.SysProcAttr, []string) // of the process of agent i; nil: nothing
	Arenas string                                       // folder for memory of processes that see another /proc
	Params func(i int) map[string]string                // of agent i; nil: those of the provider
	Calm   bool                                         // the agents only transfer and notify
	Others Others                                       // agents that are not those of package actor

	Rng    *rand.Rand
	Actors []*Role
	Log    *history.Log
	files  []string
	all    []*Role // earlier lives, too
	asked  []request
	undo   []undo
}

// Others are agents of another package than actor.
type Others interface {
	NewMemory() (*os.File, error)
	Start(env testenv.Env, attr *syscall.SysProcAttr, setenv ...string) (*subprocess.Client, error)
	Begin(r *Round, role *Role, file string) (load any, err error) // what the peers load
	Died(r *Round, role *Role)
	Judge(p *history.Params)
}

// Role is the present life of an agent.
type Role struct {
	*subprocess.Client
	history.Engine
	Memory *os.File
	load   any
	killed bool
}

// request is a command that runs.
type request struct {
	to   *Role
	what string
	*subprocess.Future[bool]
}

// undo ends a fault that lasts.
type undo struct {
	at time.Time
	do func()
}

// Open starts the agents.
func (r *Round) Open() {
	var err error
	r.files = []string{filepath.Join(r.Dir, "faults")}
	r.Log, err = history.NewLog(r.files[0], history.Engine{Agent: "test"})
	require.NoError(r.T, err)
	r.T.Cleanup(func() { _ = r.Log.Close(); r.keep() })
	r.Actors = make([]*Role, len(r.Cast))
	for i := range r.Cast {
		r.start(i, 1)
	}
	for _, a := range r.Actors {
		r.introduce(a)
	}
	r.answered() // a round may last longer than Bound
}

// Close ends the agents when nothing is under way, and judges the round.
func (r *Round) Close() {
	r.T.Helper()
	r.Mend(time.Time{})
	for _, a := range r.Actors {
		r.Do(a, "Run", false)
	}
	r.answered()
	r.Settle()
	for _, a := range r.Actors {
		r.ask(a, "Finish", false)
	}
	r.answered()
	report := r.judge()
	r.T.Logf("%s", report.Summary())
	if len(report.Violations) > 0 {
		r.T.Errorf("seed %d over %s: %s\n%s", r.Seed, r.T.Name(), report.Failures(5), r.outputs())
	}
}

// start starts a life of an agent.
func (r *Round) start(i, life int) {
	a := &Role{Engine: history.Engine{Agent: r.Cast[i], Life: life}}
	setenv := append([]string{"GORAIL_LOG=info"}, r.Setenv...)
	var attr *syscall.SysProcAttr
	if r.Attr != nil {
		var more []string
		attr, more = r.Attr(i)
		setenv = append(setenv, more...)
	}
	newMemory, begin := func() (*os.File, error) { return actor.NewArena(r.Arenas, len(r.Cast)) }, actor.Start
	if r.Others != nil {
		newMemory, begin = r.Others.NewMemory, r.Others.Start
	}
	var err error
	a.Memory, err = newMemory()
	require.NoError(r.T, err)
	place := func() { a.Client, err = begin(r.Env, attr, setenv...) }
	if r.Place == nil {
		place()
	} else {
		r.Place(i, place)
	}
	require.NoError(r.T, err)
	r.T.Cleanup(func() { a.End(5 * time.Second); _ = a.Memory.Close() })
	r.Actors[i] = a
	r.all = append(r.all, a)
	file := filepath.Join(r.Dir, strings.ReplaceAll(a.String(), "/", "-"))
	if r.Others != nil {
		a.load, err = r.Others.Begin(r, a, file)
	} else {
		params := map[string]string{"provider": r.Provider, "xfer_timeout": "5s", "cancel_timeout": "1s"}
		if r.Params != nil {
			params = r.Params(i)
		}
		a.load, err = subprocess.Call[actor.Load](a.Client, "Begin", actor.Begin{Seed: r.Seed, Engine: a.Engine, Names: r.Cast, Backend: r.Env.Backend,
			Params: params, Wheel: r.Env.WheelDir, Arena: actor.ArenaPath(a.Memory), Log: file, Calm: r.Calm}, Bound)
	}
	require.NoError(r.T, err, "%s: %s", a, a.Output())
	r.files = append(r.files, file)
}

// introduce lets an agent and the others load each other.
func (r *Round) introduce(a *Role) {
	for _, other := range r.Actors {
		if other != a {
			r.ask(other, "Meet", a.load)
			r.Do(a, "Meet", other.load)
		}
	}
	r.Do(a, "Run", true)
}

// Do gives a command and waits for its end.
func (r *Round) Do(to *Role, what string, arg any) {
	r.T.Helper()
	_, err := subprocess.Call[bool](to.Client, what, arg, Bound)
	require.NoError(r.T, err, "%s %s: %s", what, to, to.Output())
}

// ask gives a command. answered waits for its end.
func (r *Round) ask(to *Role, what string, arg any) {
	r.asked = append(r.asked, request{to, what, subprocess.Go[bool](to.Client, what, arg, Bound)})
}

// answered waits for all commands. Those to a life that has ended do not matter.
func (r *Round) answered() {
	r.Mend(time.Time{})
	for _, f := range r.asked {
		_, err := f.Result()
		if !f.to.killed {
			require.NoError(r.T, err, "%s %s: %s", f.what, f.to, f.to.Output())
		}
	}
	r.asked = nil
}

// Settle waits until nothing is under way and every notification has come, or for too long: that is for the report.
func (r *Round) Settle() {
	for end := time.Now().Add(Bound); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		busy := 0
		for _, a := range r.Actors {
			n, err := subprocess.Call[int](a.Client, "Busy", false, Bound)
			require.NoError(r.T, err, "%s: %s", a, a.Output())
			busy += n
		}
		lacks := func(v history.Violation) bool { return v.Property == history.Delivered }
		if busy == 0 && !slices.ContainsFunc(r.judge().Violations, lacks) {
			return
		}
	}
}

func (r *Round) judge() *history.Report {
	h, err := history.ReadFiles(r.files...)
	require.NoError(r.T, err)
	params := history.Params{Providers: strings.Split(r.Provider, ","), Memory: "DRAM", Bound: Bound, Spared: r.Calm}
	if r.Others != nil {
		r.Others.Judge(&params)
	}
	report, err := history.Check(h, params)
	require.NoError(r.T, err)
	return report
}

// outputs are the last lines of what the agents printed.
func (r *Round) outputs() string {
	var b strings.Builder
	for _, a := range r.Actors {
		out := strings.Split(strings.TrimSpace(a.Output()), "\n")
		fmt.Fprintf(&b, "\n%s printed:\n%s\n", a, strings.Join(out[max(0, len(out)-25):], "\n"))
	}
	return b.String()
}

// keep copies the histories, and what the agents printed, where somebody wants them.
func (r *Round) keep() {
	if dir := os.Getenv("GORAIL_TEST_HISTORY_KEEP"); dir != "" {
		to := filepath.Join(dir, strings.ReplaceAll(r.T.Name(), "/", "-"))
		for _, a := range r.all {
			name := strings.ReplaceAll(a.String(), "/", "-") + ".printed"
			require.NoError(r.T, os.WriteFile(filepath.Join(r.Dir, name), []byte(a.Output()), 0o600))
		}
		if err := os.CopyFS(to, os.DirFS(r.Dir)); err != nil {
			r.T.Logf("the history is not kept: %v", err)
		}
	}
}
