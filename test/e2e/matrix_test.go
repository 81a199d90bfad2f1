package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/fabric"
	"gorail/test/skip"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// placement is where the two agents of a pair live, which decides what options nobody has to set.
type placement struct {
	name  string
	near  bool   // shared memory carries all
	wire  string // device that the control channel goes over, tcp too
	start func(t *testing.T, o worker.Options) (ini, tgt *worker.Worker)
}

var placements = []placement{
	{"same process", true, "lo", func(t *testing.T, o worker.Options) (ini, tgt *worker.Worker) {
		w := worker.Start(t, o)
		return w, w
	}},
	{"same host", true, "lo", func(t *testing.T, o worker.Options) (ini, tgt *worker.Worker) {
		return worker.Start(t, o), worker.Start(t, o)
	}},
	{"other pid namespace", false, "lo", func(t *testing.T, o worker.Options) (ini, tgt *worker.Worker) {
		inside := o
		inside.Attr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		if os.Getenv("GORAIL_TEST_CUDA") != "" {
			inside.Attr.Cloneflags |= syscall.CLONE_NEWNS
			inside.Setenv = append(slices.Clone(o.Setenv), worker.OwnProc+"=1")
		}
		probe := exec.Command("true")
		probe.SysProcAttr = &syscall.SysProcAttr{Cloneflags: inside.Attr.Cloneflags}
		if err := probe.Run(); err != nil {
			skip.OrFail(t, fmt.Errorf("no pid namespace can be made here: %w", err))
		}
		return worker.Start(t, o), worker.Start(t, inside)
	}},
	{"other network namespace", false, "wire0", func(t *testing.T, o worker.Options) (ini, tgt *worker.Worker) {
		a, b := wired(t)
		return a.worker(o), b.worker(o)
	}},
	{"other host", false, "wire0", func(t *testing.T, o worker.Options) (ini, tgt *worker.Worker) {
		a, b := wired(t)
		b.reboot("00000000-1111-2222-3333-444444444444")
		return a.worker(o), b.worker(o)
	}},
}

// wired are two network namespaces with one wire between them, or a skip where the machine forbids such.
func wired(t *testing.T) (a, b *host) {
	t.Helper()
	if err := canWire(t); err != nil {
		skip.OrFail(t, fmt.Errorf("no hosts can be made of namespaces here: %w", err))
	}
	a, b = newHost(t), newHost(t)
	addr := func(last byte) *net.IPNet {
		return &net.IPNet{IP: net.IPv4(10, 80, 0, last), Mask: net.CIDRMask(24, 32)}
	}
	a.wire(b, "wire0", addr(1), addr(2))
	a.reach(b, addr(2).IP)
	return a, b
}

// canWire tries in a namespace of its own what hosts need.
func canWire(t *testing.T) (err error) {
	(&host{t: t}).aside(func() {
		var ns netns.NsHandle
		if ns, err = netns.New(); err != nil {
			return
		}
		defer ns.Close()
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "try0"}, PeerName: "try1"}
		if err = netlink.LinkAdd(veth); err == nil {
			err = ownMounts("/dev/null")
		}
	})
	return err
}

// railSet is what rails both agents have beside shared memory, without an option for it where the machine decides.
type railSet struct {
	name   string
	fabric string // imitated; "": this machine's tcp
	vram   bool   // rails reach memory of GPUs
}

var railSets = []railSet{
	{"tcp", "", false},
	{"efa", "efa", false}, {"efa, VRAM", "efa", true},
	{"cxi", "cxi", false}, {"cxi, VRAM", "cxi", true},
}

// matrixCase is a pair of agents over some rails with memory of each kind.
type matrixCase struct {
	t        *testing.T
	place    placement
	rails    railSet
	ini, tgt *worker.Agent
	all      []*worker.Buf
}

// TestMatrix: wherever the other agent lives and whatever rails both have, memory of every kind goes to memory of every kind.
func TestMatrix(t *testing.T) {
	t.Parallel()
	ours(t)
	for _, place := range placements {
		t.Run(place.name, func(t *testing.T) {
			t.Parallel()
			for _, rails := range railSets {
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
		t.Skip("an imitated fabric does not reach memory of real GPUs")
	}
	o := worker.Options{Env: env, Setenv: []string{"GORAIL_LOG=info", "GORAIL_CUDA_PATH=" + driver, "GORAIL_PROVIDER=auto"}} // the default
	if rails.fabric != "" {                                                                                                  // what auto takes where such hardware is there
		lib, breaches := fabric.Build(t), filepath.Join(t.TempDir(), "breaches")
		t.Cleanup(func() { require.Empty(t, fabric.Breaches(t, breaches)) })
		o.Setenv = append(o.Setenv, "GORAIL_PROVIDER="+rails.fabric+",sm", "GORAIL_LIBFABRIC_PATH="+lib, fabric.EnvBreaches+"="+breaches,
			fabric.EnvConfig+"="+fabric.Config(rails.fabric, 1, 1, "on="+place.wire), "GORAIL_CONTROL_DEVICES="+place.wire)
	}
	m := &matrixCase{t: t, place: place, rails: rails}
	a, b := place.start(t, o)
	if rails.vram { // a process that uses GPUs already when its agent is made: FI_HMEM is asked for
		for i, w := range []*worker.Worker{a, b} {
			m.all = append(m.all, w.AllocGPU(4096, device(i)))
		}
	}
	m.ini, m.tgt = agent(a, env, "alice"), agent(b, env, "bob")
	return m
}

// exchange moves bytes from and to memory of every kind, and sends notifications; from is the initiator.
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

// move posts one request of blocks in another order on each side, twice, and looks at every byte of both buffers.
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
		s := x.Post()
		if s == nixlapi.InProgress {
			s = x.Wait(limit)
		}
		if s != nixlapi.Success { // the others may go well
			m.t.Errorf("%s: %s\n%s", what, s, from.Output())
			break
		}
		require.Equal(m.t, []nixlapi.Notif{{From: from.Name, Msg: []byte(what)}}, to.WaitNotifs(1, limit))
		want(op, a, b, la, lb)
	}
	release(m.t, x)
}

// path looks whether the initiator took the way that it should, and staged what has no other.
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
		if holds(line, []string{"transfers are staged", "agent=alice", "peer=bob"}) {
			_, rest, _ := strings.Cut(line, `between="`)
			between, _, _ := strings.Cut(rest, `"`)
			got = append(got, between)
		}
	}
	slices.Sort(got)
	require.Equal(m.t, staged, got, m.ini.Output())
}

// end closes both agents: nothing of the driver's is left open.
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
