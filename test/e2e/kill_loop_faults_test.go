package e2e

import (
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/fabric"
	"gorail/test/history"
	"gorail/test/history/actor"
)

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
