package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/fabric"
	"gorail/test/lab"
	"gorail/test/skip"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// placement is how far apart the two agents of a pair are. The default options must work for each.
type placement struct {
	name  string
	near  bool   // shared memory carries everything
	wire  string // device of the control channel and of tcp
	start func(t *testing.T, o worker.Options) (ini, tgt *worker.Worker)
}

var placements = []placement{
	{"same process", true, "lo", func(t *testing.T, o worker.Options) (ini, tgt *worker.Worker) {
		w := process(t, o)
		return w, w
	}},
	{"same host", true, "lo", func(t *testing.T, o worker.Options) (ini, tgt *worker.Worker) {
		return process(t, o), process(t, o)
	}},
	{"other pid namespace", true, "lo", func(t *testing.T, o worker.Options) (ini, tgt *worker.Worker) {
		o.Setenv = append(o.Setenv, "GORAIL_TEST_GPU_NODE="+t.TempDir())
		inside := o
		inside.Attr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		if os.Getenv("GORAIL_TEST_CUDA") != "" {
			inside.Attr.Cloneflags |= syscall.CLONE_NEWNS
			inside.Setenv = append(slices.Clone(o.Setenv), worker.OwnProc+"=1")
		}
		probe := exec.Command("true")
		probe.SysProcAttr = &syscall.SysProcAttr{Cloneflags: inside.Attr.Cloneflags}
		if err := probe.Run(); err != nil {
			skip.OrFail(t, fmt.Errorf("cannot make a pid namespace: %w", err))
		}
		return process(t, o), process(t, inside)
	}},
	{"other network namespace", true, "wire0", func(t *testing.T, o worker.Options) (ini, tgt *worker.Worker) {
		a, b := wired(t)
		o.Setenv = append(o.Setenv, "GORAIL_LOCAL_DIR="+t.TempDir())
		return a.worker(o), b.worker(o)
	}},
	{"other network namespace, no folder", false, "wire0", func(t *testing.T, o worker.Options) (ini, tgt *worker.Worker) {
		a, b := wired(t)
		o.Setenv = append(o.Setenv, "GORAIL_LOCAL_DIR=off")
		return a.worker(o), b.worker(o)
	}},
	{"other host", false, "wire0", func(t *testing.T, o worker.Options) (ini, tgt *worker.Worker) {
		a, b := wired(t)
		b.Reboot("00000000-1111-2222-3333-444444444444")
		return a.worker(o), b.worker(o)
	}},
}

// wired makes two network namespaces with one wire between them. It skips the test where the machine forbids them.
func wired(t *testing.T) (a, b *host) {
	t.Helper()
	if err := lab.Possible(t); err != nil {
		skip.OrFail(t, fmt.Errorf("cannot make network namespaces: %w", err))
	}
	return hosts(t, 80, "wire0")
}

// railSet are the rails that both agents have beside shared memory.
type railSet struct {
	name   string
	fabric string // imitated fabric; "": tcp of this machine
	vram   bool   // the rails reach GPU memory
}

var railSets = []railSet{
	{"tcp", "", false},
	{"efa", "efa", false}, {"efa, VRAM", "efa", true},
	{"cxi", "cxi", false}, {"cxi, VRAM", "cxi", true},
}

// inShort reports whether the short form has these rails in a placement: tcp in each, fabrics between hosts. Where shared memory carries
// everything, the other rails only differ in name.
func (p placement) inShort(r railSet) bool {
	return r.fabric == "" || p.name == "other host" && r.name != "cxi"
}

// matrixCase is a pair of agents in one placement with one railSet.
type matrixCase struct {
	t        *testing.T
	place    placement
	rails    railSet
	ini, tgt *worker.Agent
	all      []*worker.Buf // freed by end
}

// TestMatrix: in each placement and with each railSet, host and GPU memory transfers to host and GPU memory.
func TestMatrix(t *testing.T) {
	t.Parallel()
	ours(t)
	for _, place := range placements {
		t.Run(place.name, func(t *testing.T) {
			t.Parallel()
			for _, rails := range railSets {
				if testing.Short() && !place.inShort(rails) {
					continue
				}
				t.Run(rails.name, func(t *testing.T) {
					m := startMatrix(t, place, rails)
					m.exchange(m.ini, m.tgt)
					m.exchange(m.tgt, m.ini)
					m.path()
					m.end()
				})
			}
		})
	}
}

func startMatrix(t *testing.T, place placement, rails railSet) *matrixCase {
	t.Helper()
	env, driver := testenv.Need(t), os.Getenv("GORAIL_TEST_CUDA")
	if driver == "" {
		driver = cuda.Build(t).Path
	} else if rails.fabric != "" {
		t.Skip("an imitated fabric does not reach real GPU memory")
	}
	o := worker.Options{Env: env, Setenv: []string{"GORAIL_LOG=info", "GORAIL_CUDA_PATH=" + driver, "GORAIL_PROVIDER=auto"}} // the default
	if rails.fabric != "" {                                                                                                  // the choice of auto where such hardware is present
		lib, breaches := fabric.Build(t), filepath.Join(t.TempDir(), "breaches")
		t.Cleanup(func() { require.Empty(t, fabric.Breaches(t, breaches)) })
		o.Setenv = append(o.Setenv, "GORAIL_PROVIDER="+rails.fabric+",sm", "GORAIL_LIBFABRIC_PATH="+lib, fabric.EnvBreaches+"="+breaches,
			fabric.EnvConfig+"="+fabric.Config(rails.fabric, 1, 1, "on="+place.wire), "GORAIL_CONTROL_DEVICES="+place.wire)
	}
	m := &matrixCase{t: t, place: place, rails: rails}
	a, b := place.start(t, o)
	if rails.vram { // the processes use GPUs before their agents start, so that GORAIL asks for FI_HMEM
		for i, w := range []*worker.Worker{a, b} {
			m.all = append(m.all, w.AllocGPU(4096, device(i)))
		}
	}
	m.ini, m.tgt = agent(a, env, "alice"), agent(b, env, "bob")
	return m
}

// exchange transfers between all kinds of memory, with from as the initiator, and sends a notification alone.
func (m *matrixCase) exchange(from, to *worker.Agent) {
	m.t.Helper()
	const size = 1 << 20
	mine := map[string]*worker.Buf{"DRAM": from.Buffer(size, seedA), "VRAM": from.GPUBuffer(size, seedA, device(0))}
	theirs := map[string]*worker.Buf{"DRAM": to.Buffer(size, seedB), "VRAM": to.GPUBuffer(size, seedB, device(1))}
	from.Learn(to)
	kinds := []string{"DRAM", "VRAM"}
	for _, here := range kinds {
		for _, there := range kinds {
			for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
				m.move(from, to, op, mine[here], theirs[there], fmt.Sprint(op, " by ", from.Name, ", ", here, " here, ", there, " there"))
			}
		}
		m.all = append(m.all, mine[here], theirs[here])
	}
	require.NoError(m.t, from.GenNotif(to.Name, []byte("alone")))
	require.Equal(m.t, []nixlapi.Notif{{From: from.Name, Msg: []byte("alone")}}, to.WaitNotifs(1, limit))
}

// move posts one transfer twice and compares every byte of both buffers. Each side has its own order of the blocks.
func (m *matrixCase) move(from, to *worker.Agent, op nixlapi.Op, a, b *worker.Buf, what string) {
	m.t.Helper()
	la, lb := scattered(7, 4096, 100, 150, 1), scattered(9, 4096, 300, 150, 2)
	x, err := from.TryXfer(worker.XferSpec{Op: op, Local: a.At(la), Remote: b.At(lb), Peer: to.Name, Notif: []byte(what)})
	if err != nil {
		m.t.Errorf("%s: prepare: %v", what, err)
		return
	}
	for range 2 {
		a.Fill(seedA)
		b.Fill(seedB)
		s := x.Try(limit)
		if s != nixlapi.Success { // the test goes on with the other kinds of memory
			m.t.Errorf("%s: %s\n%s", what, s, from.Output())
			break
		}
		require.Equal(m.t, []nixlapi.Notif{{From: from.Name, Msg: []byte(what)}}, to.WaitNotifs(1, limit))
		want(op, a, b, la, lb)
	}
	release(m.t, x)
}

// path checks in the initiator's log which rails connected, and that only transfers without a direct path were staged.
func (m *matrixCase) path() {
	m.t.Helper()
	rails := m.rails.fabric + "/"
	switch {
	case m.place.near:
		rails = "rails=sm/memory"
	case m.rails.fabric == "":
		rails = "/" + m.place.wire
	}
	says(m.t, m.ini.Worker, "peer connected", "agent=alice", "peer=bob", "session=initiator", rails)
	theirs := fmt.Sprint("GPU ", worker.OnMachine(1))
	staged := []string{"GPU 0 and " + theirs, "GPU 0 and host memory", "host memory and " + theirs}
	switch {
	case m.place.near:
		staged = staged[1:]
	case m.rails.vram:
		staged = nil
	}
	var got []string
	for _, line := range logged(m.ini.Worker) {
		if holds(line, []string{"transfers go through bounce buffers", "agent=alice", "peer=bob"}) {
			_, rest, _ := strings.Cut(line, `between="`)
			between, _, _ := strings.Cut(rest, `"`)
			got = append(got, between)
		}
	}
	slices.Sort(got)
	require.Equal(m.t, staged, got, m.ini.Output())
}

// end closes both agents and frees their memory. The GPU driver then has nothing open.
func (m *matrixCase) end() {
	m.t.Helper()
	require.NoError(m.t, m.ini.Close())
	require.NoError(m.t, m.tgt.Close())
	for _, b := range m.all {
		b.Free()
	}
	gpuEmpty(m.t, m.ini)
	if m.tgt.Worker != m.ini.Worker {
		gpuEmpty(m.t, m.tgt)
	}
}
