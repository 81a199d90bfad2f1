package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/fabric"
	"gorail/test/history"
	"gorail/test/history/play"
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
		where          func(l *killLoop)
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
					l := newKillLoop(t, env, c.provider, seed)
					if c.where != nil {
						c.where(l)
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

// killLoop is one round of TestHistory.
type killLoop struct {
	play.Round
	t     *testing.T
	rails []rail
}

func newKillLoop(t *testing.T, env testenv.Env, provider string, seed uint64) *killLoop {
	return &killLoop{t: t, Round: play.Round{T: t, Env: env, Provider: provider, Seed: seed, Dir: t.TempDir(), Cast: play.Cast, Rng: rand.New(rand.NewPCG(seed, 0))}}
}

// play plays the round and judges it.
func (l *killLoop) play(length time.Duration) {
	l.Open()
	for end := time.Now().Add(length); time.Now().Before(end); {
		l.Pause(time.Duration(50+l.Rng.IntN(500)) * time.Millisecond)
		l.fault()
	}
	l.Close()
}

// rail is an interface that can be taken down.
type rail struct {
	at   *host
	name string
}

// onWires gives the agents two hosts with two wires between them.
func (l *killLoop) onWires() {
	a, b := hosts(l.t, 81, "rail0", "rail1")
	b.Reboot("00000000-1111-2222-3333-444444444444")
	l.rails = []rail{{a, "rail0"}, {b, "rail0"}, {a, "rail1"}, {b, "rail1"}}
	l.Place = func(i int, f func()) { []*host{a, b, b}[i].In(f) }
}

// onPods gives each agent a pod of its own.
func (l *killLoop) onPods() {
	n := newNode(l.t)
	var pods []*pod
	for range l.Cast {
		pods = append(pods, n.pod().sees(l.Dir))
	}
	l.in(pods)
}

// inOnePod gives each agent a container of one pod.
func (l *killLoop) inOnePod() {
	p := newNode(l.t).pod().sees(l.Dir)
	var pods []*pod
	for range l.Cast {
		pods = append(pods, p.beside())
	}
	l.in(pods)
}

// in gives each agent one of these pods.
func (l *killLoop) in(pods []*pod) {
	l.Arenas = l.Dir
	l.Place = func(i int, f func()) { pods[i].In(f) }
	l.Attr = func(i int) (*syscall.SysProcAttr, []string) { return pods[i].Attr(), []string{pods[i].Setenv()} }
}

// onFabric lets the agents load an imitation of the provider.
func (l *killLoop) onFabric() {
	breaches := filepath.Join(l.Dir, "breaches")
	l.Setenv = append(fabric.Env(l.Provider, 1, int64(l.Seed)), "GORAIL_LIBFABRIC_PATH="+fabric.Build(l.t), fabric.EnvBreaches+"="+breaches)
	l.t.Cleanup(func() { require.Empty(l.t, fabric.Breaches(l.t, breaches)) })
}

// fault does the next fault of the schedule.
func (l *killLoop) fault() {
	victim, last := l.Rng.IntN(len(l.Cast)), time.Duration(20+l.Rng.IntN(400))*time.Millisecond
	kind, long, which, gap := l.Rng.IntN(100), l.Rng.IntN(6) == 0, l.Rng.IntN(1<<16), time.Duration(l.Rng.IntN(300))*time.Millisecond
	if long {
		last *= 6
	}
	r := l.Actors[victim]
	switch {
	case kind < 30:
		l.Kill(victim, gap*time.Duration(which%2))
	case kind < 55:
		l.Note(r, history.Stopped, last.String())
		require.NoError(l.t, r.Signal(syscall.SIGSTOP))
		l.Later(last, func() {
			l.Note(r, history.Resumed, "")
			_ = r.Signal(syscall.SIGCONT) // it may have been killed
		})
	case kind < 80 || len(l.rails) == 0:
		if what := l.cut(r.Pid(), which); what != "" {
			l.Note(r, history.Cut, what)
		}
	default:
		rail := l.rails[which%len(l.rails)]
		l.Note(r, history.Cut, rail.name)
		rail.at.Cut(rail.name)
		l.Later(last, func() { l.Note(r, history.Mended, rail.name); rail.at.Restore(rail.name) })
	}
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
