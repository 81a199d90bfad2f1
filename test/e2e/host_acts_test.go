package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
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
	begins  string        // the worker begins so: a value of envLimit
	setenv  []string      // of the worker
	act     string        // a name of worker.ActArgs; "": none
	lasts   time.Duration // transfers run beside the act
	beside  func(t *testing.T, pid int) (end func())
	stopped time.Duration // the process is stopped for so long
	user    bool          // both processes run without privileges
	ring    [2]bool       // over shared memory an act of the initiator's, or of the target's, makes the initiator take the ring
}

const besides = 500 * time.Millisecond

func hostActs() []hostAct {
	return []hostAct{
		{name: "setuid", root: true, act: worker.Setuid, ring: [2]bool{true, false}}, // a target's root initiator may still access it
		{name: "not dumpable", root: true, user: true, act: worker.NotDumpable, ring: [2]bool{false, true}},
		{name: "first thread ends", act: worker.MainEnds, ring: [2]bool{false, true}}, // the kernel finds a process's memory by that thread
		{name: "a filter of system calls", act: worker.FilterPerm, ring: [2]bool{true, false}},
		{name: "a filter of system calls, EACCES", act: worker.FilterAccess, ring: [2]bool{true, false}},
		{name: "a filter of system calls, ENOSYS", act: worker.FilterNoCall, ring: [2]bool{true, false}},
		{name: "no new privileges", act: worker.NoNewPrivs},
		{name: "mlockall", root: true, act: worker.Mlockall},
		{name: "one CPU", act: worker.OneCPU},
		{name: "SCHED_FIFO", root: true, act: worker.FIFO},
		{name: "chroot", root: true, act: worker.Chroot},
		{name: "another network namespace", root: true, act: worker.OtherNet},
		{name: "no free descriptors", act: worker.NoFDs},
		{name: "RLIMIT_MEMLOCK 0", act: worker.NoMemlock},
		{name: "short-lived threads", act: worker.ShortThreads, lasts: besides},
		{name: "spawns", act: worker.Spawns, lasts: besides},
		{name: "setenv in two threads", act: worker.Setenvs, lasts: besides},
		{name: "MALLOC_PERTURB_", setenv: []string{"MALLOC_PERTURB_=165", "GLIBC_TUNABLES=glibc.malloc.perturb=165"}},
		{name: "small stacks", begins: smallStacks},
		{name: "unlimited stacks", begins: unlimitedStacks},
		{name: "stopped", stopped: 3 * time.Second},
		{name: "strace", beside: attached("strace", "strace", "-f", "-q", "-e", "trace=munmap", "-o", "/dev/null", "-p")},
		{name: "gdb", beside: attached("gdb", "gdb", "-batch", "-nx", "-ex", "thread apply all bt 3", "-ex", "detach", "-p")},
		{name: "jemalloc", setenv: preloaded("libjemalloc.so.2")},
		{name: "tcmalloc", setenv: preloaded("libtcmalloc_minimal.so.4")},
		{name: "mimalloc", setenv: preloaded("libmimalloc.so.2", "libmimalloc.so.2.0", "libmimalloc.so")},
	}
}

// packages have what acts need.
var packages = map[string]string{"jemalloc": "libjemalloc2", "tcmalloc": "libtcmalloc-minimal4", "mimalloc": "libmimalloc2.0"}

func preloaded(names ...string) []string {
	for _, name := range names {
		found, _ := filepath.Glob("/usr/lib/*/" + name)
		if len(found) > 0 {
			return []string{"LD_PRELOAD=" + found[0]}
		}
	}
	return []string{}
}

// attached runs a debugger beside the transfers.
func attached(tool string, args ...string) func(t *testing.T, pid int) func() {
	return func(t *testing.T, pid int) func() {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs the package %s: %v", tool, err)
		}
		c := exec.Command(args[0], append(args[1:], fmt.Sprint(pid))...)
		require.NoError(t, c.Start())
		time.Sleep(200 * time.Millisecond) // it may be attached by then; right without, too
		return func() {
			_ = c.Process.Signal(syscall.SIGINT)
			_ = c.Wait()
		}
	}
}

// TestHostActs: what hosts do before and after they load the plugin breaks no transfer, at either end, over shared memory and tcp.
func TestHostActs(t *testing.T) {
	t.Parallel()
	ours(t)
	for i, provider := range []string{"sm", "tcp"} {
		for j, act := range hostActs() {
			for k, atTarget := range []bool{false, true} {
				if testing.Short() && (i+j+k)%2 != 0 && act.ring == [2]bool{} { // at one end over shared memory, at the other over tcp
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/target=%v", act.name, provider, atTarget), func(t *testing.T) {
					t.Parallel()
					act.run(t, provider, atTarget)
				})
			}
		}
	}
}

func (h hostAct) run(t *testing.T, provider string, atTarget bool) {
	t.Helper()
	if h.root {
		skip.UnlessRoot(t, h.name+" needs root")
	}
	if name := packages[h.name]; name != "" && len(h.setenv) == 0 {
		t.Skipf("needs the package %s", name)
	}
	env, of := ours(t), [2]worker.Options{}
	if h.user {
		of = [2]worker.Options{asUser(honest, ""), asUser(honest, "")}
	}
	odd := &of[index(atTarget)]
	odd.Setenv = append(odd.Setenv, h.setenv...)
	if h.begins != "" {
		odd.Setenv = append(odd.Setenv, envLimit+"="+h.begins)
	}
	var agents [2]*worker.Agent
	for i, name := range []string{"alice", "bob"} {
		of[i].Env = env
		agents[i] = agent(process(t, of[i]), env, name, params("provider", provider))
	}
	p := &pairOf{env: env, ini: agents[0], tgt: agents[1]}
	host := agents[index(atTarget)]
	a, b := p.buffers(1 << 20)
	m := &moved{p: p, a: a, b: b}
	m.both(t)
	in := worker.ActArgs{Name: h.act, For: h.lasts, Dir: t.TempDir()}
	switch {
	case h.beside != nil:
		end := h.beside(t, host.Pid())
		for stop := time.Now().Add(besides); time.Now().Before(stop); {
			m.both(t)
		}
		end()
	case h.lasts > 0:
		act := host.ActAsync(in)
		for stop := time.Now().Add(h.lasts); time.Now().Before(stop); {
			m.both(t)
		}
		act.Wait()
	case h.stopped > 0:
		host.Stop()
		time.Sleep(h.stopped)
		host.Cont()
	case h.ring != [2]bool{}: // while transfers of all sizes are in flight
		in.For = time.Nanosecond
		large, small := m.made[fmt.Sprint("WRITE ", a.Size)], m.made["WRITE 64"]
		loop := large.LoopAsync(worker.LoopArgs{N: 2000, Timeout: limit, Beside: []int{small.ID(), m.made["READ 4096"].ID(), m.made[fmt.Sprint("READ ", a.Size)].ID()}})
		host.ActAsync(in).Wait()
		got := loop.Wait()
		require.Equal(t, nixlapi.Success, got.Status, p.ini.Output())
		require.GreaterOrEqual(t, got.Done, 2000)
	case h.act != "":
		if err := host.Act(in); err != nil {
			skip.OrFail(t, fmt.Errorf("%s: %w", h.name, err))
		}
	}
	for range 5 {
		m.both(t)
	}
	require.NotContains(t, p.ini.Output(), "transfer failed")
	if provider == "sm" && h.ring[index(atTarget)] {
		says(t, p.ini.Worker, "level=WARN", "does not let us access the memory of process", "take the ring")
	}
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
