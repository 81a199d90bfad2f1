package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/skip"
	"gorail/test/worker"
)

// hostAct is what a host does to the process that has loaded the plugin.
type hostAct struct {
	name    string
	root    bool
	begins  string   // the worker begins so: a value of envLimit
	setenv  []string // of the worker
	act     string   // a name of worker.ActArgs; "": none
	early   bool     // also before the plugin is loaded
	times   int      // so often, beside transfers
	agents  int      // and beside so many agents more in the process
	beside  func(t *testing.T, pid int) (end func())
	stopped time.Duration // the process is stopped for so long
	user    bool          // both processes run without privileges
	ring    [2]bool       // over shared memory an act of the initiator's, or of the target's, makes the initiator take the ring
	comes   string        // a peer that is loaded later is reached so by default
}

// besides is how long debuggers are attached beside transfers.
const besides = 500 * time.Millisecond

func hostActs() []hostAct {
	return []hostAct{
		{name: "setuid", root: true, act: worker.Setuid, ring: [2]bool{true, false}, comes: "tcp/"}, // a target's root initiator may still access it
		{name: "not dumpable", root: true, user: true, act: worker.NotDumpable, early: true, ring: [2]bool{false, true}, comes: "sm/memory"},
		{name: "seccomp", act: worker.Seccomp, ring: [2]bool{true, false}, comes: "tcp/"}, // new links need memfd_create
		{name: "seccomp, EACCES", act: worker.SeccompAccess, ring: [2]bool{true, false}},
		{name: "seccomp, ENOSYS", act: worker.SeccompNoCall, ring: [2]bool{true, false}},
		{name: "first thread ends", act: worker.MainEnds, ring: [2]bool{false, true}}, // the kernel finds a process's memory by that thread
		{name: "no new privileges", act: worker.NoNewPrivs, early: true, comes: "sm/memory"},
		{name: "mlockall", root: true, act: worker.Mlockall, early: true, comes: "sm/memory"},
		{name: "one CPU", act: worker.OneCPU, early: true, comes: "sm/memory"},
		{name: "SCHED_FIFO", root: true, act: worker.FIFO, early: true, comes: "sm/memory"},
		{name: "chroot", root: true, act: worker.Chroot, comes: "tcp/"},
		{name: "another network namespace", root: true, act: worker.OtherNet},
		{name: "no free descriptors", act: worker.NoFDs},
		{name: "RLIMIT_MEMLOCK 0", act: worker.NoMemlock, early: true, comes: "sm/memory"},
		{name: "2,200 short-lived threads", act: worker.ShortThreads, times: 2200},
		{name: "150 spawns", act: worker.Spawns, times: 150},
		{name: "setenv in two threads", act: worker.Setenvs, times: 5000, agents: 12},
		{name: "MALLOC_PERTURB_", setenv: []string{"MALLOC_PERTURB_=165", "GLIBC_TUNABLES=glibc.malloc.perturb=165"}},
		{name: "stacks of 128 KiB", begins: smallStacks},
		{name: "unlimited stacks", begins: unlimitedStacks},
		{name: "stopped", stopped: 3 * time.Second},
		{name: "strace", beside: attached("strace", "-f", "-q", "-e", "trace=munmap", "-o", "/dev/null", "-p")},
		{name: "gdb", beside: attached("gdb", "-batch", "-nx", "-ex", "thread apply all bt 3", "-ex", "detach", "-p")},
		{name: "jemalloc", setenv: preloaded("libjemalloc.so.2")},
		{name: "tcmalloc", setenv: preloaded("libtcmalloc_minimal.so.4")},
		{name: "mimalloc", setenv: preloaded("libmimalloc.so.2", "libmimalloc.so.3")},
	}
}

// preloads are names of acts that need a library. tools/setup.sh installs them.
var preloads = []string{"jemalloc", "tcmalloc", "mimalloc"}

func preloaded(names ...string) []string {
	for _, name := range names {
		found, _ := filepath.Glob("/usr/lib/*/" + name)
		if len(found) > 0 {
			return []string{"LD_PRELOAD=" + found[0]}
		}
	}
	return []string{}
}

// attached runs a debugger beside the transfers, and waits until the kernel says so.
func attached(tool string, args ...string) func(t *testing.T, pid int) func() {
	return func(t *testing.T, pid int) func() {
		if _, err := exec.LookPath(tool); err != nil {
			skip.OrFail(t, fmt.Errorf("%w: tools/setup.sh tests installs it", err))
		}
		c := exec.Command(tool, append(args, fmt.Sprint(pid))...)
		var said bytes.Buffer
		c.Stdout, c.Stderr = &said, &said
		require.NoError(t, c.Start())
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		require.True(t, worker.Eventually(worker.Deadline, func() bool { return tracer(pid) == c.Process.Pid || len(ended) > 0 }))
		if len(ended) > 0 && !strings.Contains(said.String(), "detached") { // gdb may have come and gone
			skip.OrFail(t, fmt.Errorf("%s has not attached: %s", tool, said.String()))
		}
		return func() {
			_ = c.Process.Signal(syscall.SIGINT)
			require.True(t, worker.Eventually(worker.Deadline, func() bool { return tracer(pid) == 0 && len(ended) > 0 }), "%s stays: %s", tool, said.String())
		}
	}
}

// tracer is the process that traces another one, or 0.
func tracer(pid int) (by int) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(status), "TracerPid:")
	_, _ = fmt.Sscan(rest, &by)
	return by
}

// TestHostActs: what hosts do before and after they load the plugin breaks no transfer, at either end, over shared memory and tcp.
func TestHostActs(t *testing.T) {
	t.Parallel()
	ours(t)
	for i, provider := range []string{"sm", "tcp"} {
		for j, act := range hostActs() {
			for k, atTarget := range []bool{false, true} {
				if rings := act.ring != [2]bool{}; testing.Short() && (rings && (provider != "sm" || !act.ring[k]) || !rings && 2*i+k != j%4) {
					continue // one way and end for each act: that which takes the ring, if one does
				}
				t.Run(fmt.Sprintf("%s/%s/target=%v", act.name, provider, atTarget), func(t *testing.T) {
					t.Parallel()
					act.run(t, provider, atTarget)
				})
			}
		}
	}
}

// TestHostActsFirst: the same, for what a host has done before it loads the plugin.
func TestHostActsFirst(t *testing.T) {
	t.Parallel()
	ours(t)
	for i, act := range hostActs() {
		for j, provider := range []string{"sm", "tcp"} {
			if !act.early || testing.Short() && (i+j)%2 != 0 {
				continue
			}
			t.Run(act.name+"/"+provider, func(t *testing.T) {
				t.Parallel()
				m := act.pair(t, provider, false, true)
				m.both(t)
				m.both(t)
			})
		}
	}
}

// TestHostActsNewPeer: a peer that is loaded after the act is reached, by whatever way is left. A line says why where it is not the best one.
func TestHostActsNewPeer(t *testing.T) {
	t.Parallel()
	ours(t)
	for i, act := range hostActs() {
		for j, atTarget := range []bool{false, true} {
			if act.comes == "" || testing.Short() && (i+j)%2 != 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s/target=%v", act.name, atTarget), func(t *testing.T) {
				t.Parallel()
				act.newPeer(t, atTarget)
			})
		}
	}
}

// needs skips the test if the machine lacks what the act needs.
func (h hostAct) needs(t *testing.T) {
	t.Helper()
	if h.root {
		skip.UnlessRoot(t, h.name+" needs root")
	}
	if slices.Contains(preloads, h.name) && len(h.setenv) == 0 {
		skip.OrFail(t, fmt.Errorf("no library of %s: tools/setup.sh tests installs it", h.name))
	}
}

// do does what is done once.
func (h hostAct) do(t *testing.T, act func(worker.ActArgs) error) {
	t.Helper()
	if err := act(worker.ActArgs{Name: h.act, Dir: t.TempDir()}); err != nil {
		skip.OrFail(t, fmt.Errorf("%s: %w", h.name, err))
	}
}

// options are those of a process of the act; odd: of the one that acts.
func (h hostAct) options(t *testing.T, odd bool) worker.Options {
	t.Helper()
	o := worker.Options{}
	if h.user {
		o = asUser(honest, "")
	}
	o.Env = ours(t)
	if odd {
		o.Setenv = append(o.Setenv, h.setenv...)
		if h.begins != "" {
			o.Setenv = append(o.Setenv, envLimit+"="+h.begins)
		}
	}
	return o
}

// pair makes two agents, and moves bytes. first: the host acts before the plugin is loaded.
func (h hostAct) pair(t *testing.T, provider string, atTarget, first bool) *moved {
	t.Helper()
	h.needs(t)
	var agents [2]*worker.Agent
	for i, name := range []string{"alice", "bob"} {
		odd := i == index(atTarget)
		o := h.options(t, odd)
		w := process(t, o)
		if odd && first {
			h.do(t, w.Act)
		}
		agents[i] = agent(w, o.Env, name, params("provider", provider))
	}
	p := &pairOf{env: ours(t), ini: agents[0], tgt: agents[1]}
	a, b := p.buffers(1 << 20)
	m := &moved{p: p, a: a, b: b}
	m.both(t)
	return m
}

func (h hostAct) run(t *testing.T, provider string, atTarget bool) {
	t.Helper()
	m := h.pair(t, provider, atTarget, false)
	p := m.p
	host := []*worker.Agent{p.ini, p.tgt}[index(atTarget)]
	switch {
	case h.beside != nil:
		end := h.beside(t, host.Pid())
		for stop := time.Now().Add(besides); time.Now().Before(stop); {
			m.both(t)
		}
		end()
	case h.times > 0:
		for i := range h.agents { // before: NIXL itself reads the environment when it makes one
			agent(host.Worker, p.env, fmt.Sprint("agent", i), params("provider", provider))
		}
		act := host.ActAsync(worker.ActArgs{Name: h.act, Times: h.times})
		for !act.Ended() {
			m.both(t)
		}
		act.Wait()
	case h.stopped > 0:
		host.Stop()
		time.Sleep(h.stopped)
		host.Cont()
	case h.ring != [2]bool{}: // while transfers of all sizes are in flight
		large, small := m.made[fmt.Sprint("WRITE ", m.a.Size)], m.made["WRITE 64"]
		loop := large.LoopAsync(worker.LoopArgs{N: 2000, Timeout: limit,
			Beside: []int{small.ID(), m.made["READ 4096"].ID(), m.made[fmt.Sprint("READ ", m.a.Size)].ID()}})
		h.do(t, host.Worker.Act)
		got := loop.Wait()
		require.Equal(t, nixlapi.Success, got.Status, p.ini.Output())
		require.GreaterOrEqual(t, got.Done, 2000)
	case h.act != "":
		h.do(t, host.Act)
	}
	for range 5 {
		m.both(t)
	}
	require.NotContains(t, p.ini.Output(), "transfer failed")
	if provider == "sm" && h.ring[index(atTarget)] {
		const line = "does not let us access the memory of process"
		says(t, p.ini.Worker, "level=WARN", line, "take the ring")
		require.Equal(t, 1, strings.Count(p.ini.Output(), line), p.ini.Output())
	}
}

// newPeer makes two agents. One process acts before the initiator loads the target.
func (h hostAct) newPeer(t *testing.T, atTarget bool) {
	t.Helper()
	h.needs(t)
	var agents [2]*worker.Agent
	for i, name := range []string{"alice", "bob"} {
		o := h.options(t, i == index(atTarget))
		o.Setenv = append(slices.Clone(autoProvider), o.Setenv...)
		agents[i] = agent(process(t, o), o.Env, name)
	}
	h.do(t, agents[index(atTarget)].Act)
	p := &pairOf{env: ours(t), ini: agents[0], tgt: agents[1]}
	a, b := p.buffers(1 << 20)
	require.NoError(t, p.ini.GenNotif("bob", []byte("early"))) // it waits for the connection
	m := &moved{p: p, a: a, b: b}
	m.both(t)
	require.Equal(t, "early", string(p.tgt.WaitNotifs(1, limit)[0].Msg))
	says(t, p.ini.Worker, "peer connected", "peer=bob", "rails="+h.comes)
	if h.comes == "tcp/" {
		const line = "rail not used for a peer of this host"
		says(t, p.ini.Worker, "level=WARN", line, "rail=sm/memory")
		require.Equal(t, 1, strings.Count(p.ini.Output(), line), p.ini.Output())
	} else if h.ring[index(atTarget)] {
		says(t, p.ini.Worker, "level=INFO", "not in its best way", "ring")
	}
	require.NotContains(t, p.ini.Output(), "transfers failed")
}

func index(on bool) int {
	if on {
		return 1
	}
	return 0
}

// moved writes and reads, small and large, and compares.
type moved struct {
	p    *pairOf
	a, b *worker.Buf
	made map[string]*worker.Xfer
	seed uint64
}

func (m *moved) both(t *testing.T) {
	t.Helper()
	if m.made == nil {
		m.made = map[string]*worker.Xfer{}
	}
	for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
		for _, l := range []worker.Layout{worker.Span(0, m.a.Size), worker.Span(100, 4096), worker.Span(5, 64)} {
			key := fmt.Sprintf("%v %d", op, l.Len)
			x := m.made[key]
			if x == nil {
				x = m.p.ini.Xfer(worker.XferSpec{Op: op, Local: m.a.At(l), Remote: m.b.At(l), Peer: "bob"})
				m.made[key] = x
			}
			m.seed += 2
			m.a.Fill(m.seed)
			m.b.Fill(m.seed + 1)
			x.Do(limit)
			if op == nixlapi.Write {
				m.b.WantBlocks(m.seed+1, l, m.seed, l)
			} else {
				m.a.WantBlocks(m.seed, l, m.seed+1, l)
			}
		}
	}
}
