package e2e

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/internal/subprocess"
	"gorail/test/fabric"
	"gorail/test/history"
	"gorail/test/history/actor"
	"gorail/test/history/mover"
	"gorail/test/testenv"
)

// TestHistory: agents move bytes and notifications between each other, deregister, release and forget, while they are killed and started
// again, stopped and cut off. Package history says what must hold. GORAIL_TEST_HISTORY=10m makes it long; each round of it has the next
// seed. GORAIL_TEST_HISTORY_SEED=7 begins with that seed, GORAIL_TEST_HISTORY_KEEP=/dir keeps the histories.
func TestHistory(t *testing.T) {
	t.Parallel()
	env := ours(t)
	first, length := asked(t, time.Duration(rounds(3, 4))*time.Second)
	const round = 15 * time.Second
	for _, c := range []struct {
		name, provider string
		where          func(l *killLoop, t *testing.T)
		long           bool // takes part in long runs alone
	}{
		{"tcp", "tcp", nil, false},
		{"memory", "sm", nil, false},
		{"rails", "tcp", (*killLoop).onWires, false},
		{"pods", "tcp,sm", (*killLoop).onPods, false},
		{"containers of a pod", "tcp,sm", (*killLoop).inOnePod, true},
		{"tcp and memory", "tcp,sm", nil, true},
		{"efa", "efa", (*killLoop).onFabric, true},
		{"cxi", "cxi", (*killLoop).onFabric, true},
	} {
		if c.long && length < round {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			end := time.Now().Add(length)
			for seed := first; ; seed++ {
				ok := t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
					l := &killLoop{t: t, env: env, provider: c.provider, seed: seed, dir: t.TempDir(), rng: rand.New(rand.NewPCG(seed, 0)),
						place: func(_ int, f func()) { f() }}
					if c.where != nil {
						c.where(l, t)
					}
					l.play(min(round, length))
				})
				if !ok || time.Until(end) < round {
					return
				}
			}
		})
	}
}

// asked is the first seed of the histories, and how long they are: what the environment says, or 1 and length.
func asked(t *testing.T, length time.Duration) (first uint64, _ time.Duration) {
	first = 1
	if s := os.Getenv("GORAIL_TEST_HISTORY_SEED"); s != "" {
		var err error
		first, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	if s := os.Getenv("GORAIL_TEST_HISTORY"); s != "" {
		var err error
		length, err = time.ParseDuration(s)
		require.NoError(t, err)
	}
	return first, length
}

// cast are the agents.
var cast = []string{"alice", "bob", "carol"}

// killLoop is one round of TestHistory.
type killLoop struct {
	t        *testing.T
	env      testenv.Env
	provider string
	seed     uint64
	dir      string
	rng      *rand.Rand
	place    func(i int, f func()) // runs f where agent i lives
	rails    []rail
	setenv   []string
	pods     []*pod  // where the agents live; nil: no pods
	moving   *moving // of TestHistoryGPU; nil: the agents' memory stays

	log    *history.Log
	files  []string
	actors []*role
	all    []*role // earlier lives, too
	asked  []request
	undo   []undo
}

// role is the present life of an agent.
type role struct {
	*subprocess.Client
	history.Engine
	arena  *os.File
	load   any // what its peers load
	killed bool
}

// request is a command that runs.
type request struct {
	to   *role
	what string
	*subprocess.Future[bool]
}

// bound is how long a call, or a transfer, may take: more than peer_timeout, for which the error of a WRITE may wait.
var bound = testenv.Patient(2 * time.Minute)

// play plays the round and judges it.
func (l *killLoop) play(length time.Duration) {
	l.open()
	for end := time.Now().Add(length); time.Now().Before(end); {
		l.pause(time.Duration(50+l.rng.IntN(500)) * time.Millisecond)
		l.fault()
	}
	l.close()
	report := l.judge()
	l.t.Logf("%s", report.Summary())
	if len(report.Violations) > 0 {
		l.t.Errorf("seed %d over %s: %s\n%s", l.seed, l.t.Name(), report.Failures(5), l.outputs())
	}
}

// open starts the agents.
func (l *killLoop) open() {
	t := l.t
	var err error
	l.files = []string{filepath.Join(l.dir, "faults")}
	l.log, err = history.NewLog(l.files[0], history.Engine{Agent: "test"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.log.Close(); l.keep() })
	l.actors = make([]*role, len(cast))
	for i := range cast {
		l.start(i, 1)
	}
	for _, r := range l.actors {
		l.introduce(r)
	}
}

// close ends the agents when nothing is under way.
func (l *killLoop) close() {
	l.mend(time.Time{})
	for _, r := range l.actors {
		l.do(r, "Run", false)
	}
	l.answered()
	l.settle()
	for _, r := range l.actors {
		l.ask(r, "Finish", false)
	}
	l.answered()
}

// start starts a life of an agent.
func (l *killLoop) start(i, life int) {
	t := l.t
	r := &role{Engine: history.Engine{Agent: cast[i], Life: life}}
	var err error
	setenv, arenas := append([]string{"GORAIL_LOG=info"}, l.setenv...), ""
	var attr *syscall.SysProcAttr
	if l.pods != nil {
		arenas, attr, setenv = l.dir, l.pods[i].Attr(), append(setenv, l.pods[i].Setenv())
	}
	newMemory, begin := func() (*os.File, error) { return actor.NewArena(arenas, len(cast)) }, actor.Start
	if l.moving != nil {
		newMemory, begin = mover.NewBoard, mover.Start
	}
	r.arena, err = newMemory()
	require.NoError(t, err)
	l.place(i, func() { r.Client, err = begin(l.env, attr, setenv...) })
	require.NoError(t, err)
	t.Cleanup(func() { r.End(5 * time.Second); _ = r.arena.Close() })
	l.actors[i] = r
	l.all = append(l.all, r)
	file := filepath.Join(l.dir, strings.ReplaceAll(r.String(), "/", "-"))
	if l.moving != nil {
		r.load, err = l.moving.begin(l, r, file)
	} else {
		r.load, err = subprocess.Call[actor.Load](r.Client, "Begin", actor.Begin{Seed: l.seed, Engine: r.Engine, Names: cast, Backend: l.env.Backend,
			Params: map[string]string{"provider": l.provider, "xfer_timeout": "5s", "cancel_timeout": "1s"}, Wheel: l.env.WheelDir,
			Arena: actor.ArenaPath(r.arena), Log: file}, bound)
	}
	require.NoError(t, err, "%s: %s", r, r.Output())
	l.files = append(l.files, file)
}

// introduce lets an agent and the others load each other.
func (l *killLoop) introduce(r *role) {
	for _, other := range l.actors {
		if other != r {
			l.ask(other, "Meet", r.load)
			l.do(r, "Meet", other.load)
		}
	}
	l.do(r, "Run", true)
}

// do gives a command and waits for its end.
func (l *killLoop) do(to *role, what string, arg any) {
	l.t.Helper()
	_, err := subprocess.Call[bool](to.Client, what, arg, bound)
	require.NoError(l.t, err, "%s %s: %s", what, to, to.Output())
}

// ask gives a command. answered waits for its end.
func (l *killLoop) ask(to *role, what string, arg any) {
	l.asked = append(l.asked, request{to, what, subprocess.Go[bool](to.Client, what, arg, bound)})
}

// answered waits for all commands. Those to a life that has ended do not matter.
func (l *killLoop) answered() {
	l.mend(time.Time{})
	for _, f := range l.asked {
		_, err := f.Result()
		if !f.to.killed {
			require.NoError(l.t, err, "%s %s: %s", f.what, f.to, f.to.Output())
		}
	}
	l.asked = nil
}

// settle waits until nothing is under way and every notification has come, or for too long: that is for the report.
func (l *killLoop) settle() {
	for end := time.Now().Add(bound); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		busy := 0
		for _, r := range l.actors {
			n, err := subprocess.Call[int](r.Client, "Busy", false, bound)
			require.NoError(l.t, err, "%s: %s", r, r.Output())
			busy += n
		}
		lacks := func(v history.Violation) bool { return v.Property == history.Delivered }
		if busy == 0 && !slices.ContainsFunc(l.judge().Violations, lacks) {
			return
		}
	}
}

func (l *killLoop) judge() *history.Report {
	h, err := history.ReadFiles(l.files...)
	require.NoError(l.t, err)
	params := history.Params{Providers: strings.Split(l.provider, ","), Memory: "DRAM", Bound: bound}
	if l.moving != nil {
		l.moving.judge(&params)
	}
	report, err := history.Check(h, params)
	require.NoError(l.t, err)
	return report
}

// outputs are the last lines of what the agents printed.
func (l *killLoop) outputs() string {
	var b strings.Builder
	for _, r := range l.actors {
		out := strings.Split(strings.TrimSpace(r.Output()), "\n")
		fmt.Fprintf(&b, "\n%s printed:\n%s\n", r, strings.Join(out[max(0, len(out)-25):], "\n"))
	}
	return b.String()
}

// keep copies the histories, and what the agents printed, where somebody wants them.
func (l *killLoop) keep() {
	if dir := os.Getenv("GORAIL_TEST_HISTORY_KEEP"); dir != "" {
		to := filepath.Join(dir, strings.ReplaceAll(l.t.Name(), "/", "-"))
		for _, r := range l.all {
			name := strings.ReplaceAll(r.String(), "/", "-") + ".printed"
			require.NoError(l.t, os.WriteFile(filepath.Join(l.dir, name), []byte(r.Output()), 0o600))
		}
		if err := os.CopyFS(to, os.DirFS(l.dir)); err != nil {
			l.t.Logf("the history is not kept: %v", err)
		}
	}
}

// rail is an interface that can be taken down.
type rail struct {
	at   *host
	name string
}

// undo ends a fault that lasts.
type undo struct {
	at time.Time
	do func()
}

// onWires gives the agents two hosts with two wires between them.
func (l *killLoop) onWires(t *testing.T) {
	a, b := newHost(t), newHost(t)
	b.reboot("00000000-1111-2222-3333-444444444444")
	for i, name := range []string{"rail0", "rail1"} {
		addr := func(last byte) *net.IPNet {
			return &net.IPNet{IP: net.IPv4(10, 81, byte(i), last), Mask: net.CIDRMask(24, 32)}
		}
		a.wire(b, name, addr(1), addr(2))
		a.reach(b, addr(2).IP)
		l.rails = append(l.rails, rail{a, name}, rail{b, name})
	}
	l.place = func(i int, f func()) { []*host{a, b, b}[i].in(f) }
}

// onPods gives each agent a pod of its own.
func (l *killLoop) onPods(t *testing.T) {
	n := newNode(t)
	for range cast {
		l.pods = append(l.pods, n.pod().sees(l.dir))
	}
	l.place = func(i int, f func()) { l.pods[i].in(f) }
}

// inOnePod gives each agent a container of one pod.
func (l *killLoop) inOnePod(t *testing.T) {
	p := newNode(t).pod().sees(l.dir)
	for range cast {
		l.pods = append(l.pods, p.beside())
	}
	l.place = func(i int, f func()) { l.pods[i].in(f) }
}

// onFabric lets the agents load an imitation of the provider.
func (l *killLoop) onFabric(t *testing.T) {
	breaches := filepath.Join(l.dir, "breaches")
	l.setenv = append(fabric.Env(l.provider, 1, int64(l.seed)), "GORAIL_LIBFABRIC_PATH="+fabric.Build(t), fabric.EnvBreaches+"="+breaches)
	t.Cleanup(func() { require.Empty(t, fabric.Breaches(t, breaches)) })
}

// fault does the next fault of the schedule.
func (l *killLoop) fault() {
	victim, last := l.rng.IntN(len(cast)), time.Duration(20+l.rng.IntN(400))*time.Millisecond
	kind, long, which, gap := l.rng.IntN(100), l.rng.IntN(6) == 0, l.rng.IntN(1<<16), time.Duration(l.rng.IntN(300))*time.Millisecond
	if long {
		last *= 6
	}
	r := l.actors[victim]
	switch {
	case kind < 30:
		l.kill(victim, gap*time.Duration(which%2))
	case kind < 55:
		l.note(r, history.Stopped, last.String())
		require.NoError(l.t, r.Signal(syscall.SIGSTOP))
		l.later(last, func() {
			l.note(r, history.Resumed, "")
			_ = r.Signal(syscall.SIGCONT) // it may have been killed
		})
	case kind < 80 || len(l.rails) == 0:
		if what := l.cut(r.Pid(), which); what != "" {
			l.note(r, history.Cut, what)
		}
	default:
		rail := l.rails[which%len(l.rails)]
		l.note(r, history.Cut, rail.name)
		rail.at.cut(rail.name)
		l.later(last, func() { l.note(r, history.Mended, rail.name); rail.at.restore(rail.name) })
	}
}

func (l *killLoop) note(r *role, kind history.Kind, text string) {
	require.NoError(l.t, l.log.Add(history.Event{By: r.Engine, Kind: kind, Text: text}))
}

func (l *killLoop) later(d time.Duration, f func()) {
	l.undo = append(l.undo, undo{time.Now().Add(d), f})
}

// mend ends the faults that are due; zero: all.
func (l *killLoop) mend(now time.Time) {
	var left []undo
	for _, u := range l.undo {
		if now.IsZero() || now.After(u.at) {
			u.do()
		} else {
			left = append(left, u)
		}
	}
	l.undo = left
}

// pause waits, and ends faults meanwhile.
func (l *killLoop) pause(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		l.mend(time.Now())
	}
}

// kill kills an agent and starts it again under the same name. The others take back the memory that it wrote to.
func (l *killLoop) kill(i int, gap time.Duration) {
	old := l.actors[i]
	old.killed = true
	old.Kill()
	l.note(old, history.Killed, "")
	if l.moving != nil {
		l.moving.died(l, old)
	}
	l.pause(gap)
	l.answered() // also: nobody writes for the life before any more
	for _, other := range l.actors {
		if other != old && l.moving == nil {
			l.ask(other, "TakeBack", actor.TakeBack{Engine: old.Engine, Hold: 100 * time.Millisecond})
		}
	}
	l.start(i, old.Life+1)
	l.introduce(l.actors[i])
}

// cut shuts one of a process's TCP connections down, the control channel's or one of the data's.
func (l *killLoop) cut(pid, which int) string {
	all, err := connections(l.t, pid)
	defer closeAll(all)
	if len(all) == 0 || err != nil {
		return ""
	}
	return shut(all[which%len(all)])
}
