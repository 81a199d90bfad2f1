package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// rack is two machines of a rack with NVLink between them: other network, pid, uts and mount namespaces and boot ids, one IMEX domain. A wire joins them, too.
type rack struct {
	t      *testing.T
	env    testenv.Env
	lib    string // the imitated driver
	domain string
	hosts  map[string]*host
}

// joinedGPUs is what NVML says of two GPUs in clique 7.
const joinedGPUs = "3,0,ab,7;3,0,ab,7"

func newRack(t *testing.T) *rack {
	t.Helper()
	a, b := twoHosts(t)
	return newRackOf(t, a, b)
}

func newRackOf(t *testing.T, a, b *host) *rack {
	t.Helper()
	r := &rack{t: t, env: testenv.Need(t), lib: cuda.Build(t).Path, domain: t.TempDir(), hosts: map[string]*host{"alice": a, "bob": b}}
	cuda.NVML(t, r.lib)
	return r
}

// channels makes a folder with an IMEX channel, or without one.
func (r *rack) channels(has bool) string {
	dir := r.t.TempDir()
	if has {
		require.NoError(r.t, os.WriteFile(filepath.Join(dir, "channel0"), nil, 0o600))
	}
	return dir
}

// tray is how an agent's machine is.
type tray struct {
	domain   string // "": the rack's
	gpus     string // NVML's answer; "": joinedGPUs
	noIMEX   bool   // no channel
	node     string // "": another one for each agent
	switches string
	stuck    bool // NVML does not answer
	provider string
	opts     []option
}

// start starts an agent on its machine.
func (r *rack) start(name string, m tray) *worker.Agent {
	r.t.Helper()
	h := r.hosts[strings.TrimRight(name, "0123456789")]
	own := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS} // as on another machine
	a := agent(h.worker(worker.Options{Env: r.env, Setenv: r.setenv(name, m), Attr: own}), r.env, name, m.opts...)
	a.Polling(name == "bob")
	return a
}

// setenv is the environment of processes on a machine.
func (r *rack) setenv(name string, m tray) []string {
	if m.domain == "" {
		m.domain = r.domain
	}
	if m.gpus == "" {
		m.gpus = joinedGPUs
	}
	if m.provider == "" {
		m.provider = "tcp,nvlink"
	}
	if m.switches != "" {
		m.switches = "," + m.switches
	}
	if m.node == "" {
		m.node = name[:1]
	}
	channels := r.channels(!m.noIMEX)
	setenv := []string{
		"GORAIL_PROVIDER=" + m.provider, "GORAIL_CUDA_PATH=" + r.lib, "GORAIL_LOG=info", "GORAIL_IMEX_CHANNELS=" + channels, "GORAIL_TEST_IMEX=" + m.domain,
		"GORAIL_TEST_IMEX_NODE=" + m.node, "GORAIL_TEST_IMEX_CHANNELS=" + channels, "GORAIL_TEST_NVML=" + m.gpus, "GORAIL_TEST_GPU_SWITCHES=fabric=1" + m.switches}
	if m.stuck {
		setenv = append(setenv, "GORAIL_TEST_NVML_STUCK="+channels)
	}
	return setenv
}

// fabricMem is memory of a GPU with so many handles for NVLink between hosts.
func fabricMem(device, handles int) worker.GPUMem {
	return worker.GPUMem{Device: device, Handles: handles, Fabric: true}
}

// wire is the bytes that the wire has carried.
func (r *rack) wire() (n uint64) {
	for _, h := range r.hosts {
		n += h.Sent("fast0") + h.Sent("slow0")
	}
	return n
}

// TestNVLink: memory of GPUs of two machines of a rack moves without the wire, whole and in blocks, in both directions. The owner's memory has
// several handles for NVLink, the other side's is from cudaMalloc.
func TestNVLink(t *testing.T) {
	t.Parallel()
	eachOp(t, func(t *testing.T, op nixlapi.Op) {
		const n, size = 5, 5 * cuda.Granule
		r := newRack(t)
		ini, tgt := r.start("alice", tray{}), r.start("bob", tray{})
		a, b := ini.GPUBuffer(size, seedA, device(0)), tgt.AllocGPU(size, fabricMem(1, n))
		b.Fill(seedB)
		require.NoError(t, tgt.Register(b.Span(0, 3*cuda.Granule+5), b.Span(3*cuda.Granule+5, 2*cuda.Granule-5)))
		ini.Learn(tgt)
		la, lb := scattered(7, 4096, 100, 1000, 1), scattered(9, 4096, 300, 1000, 2)
		x := ini.Xfer(worker.XferSpec{Op: op, Local: a.At(la), Remote: b.At(lb), Peer: "bob", Notif: []byte("here")})
		require.True(t, worker.Eventually(limit, func() bool { // mapping takes longer than 100 ms on a busy machine: the first go over the wire
			before := r.wire()
			x.Do(limit)
			return len(tgt.WaitNotifs(1, limit)) == 1 && r.wire()-before < cuda.Granule
		}), "bytes go over the wire")
		before := r.wire()
		for range 3 {
			x.Do(limit)
			require.Len(t, tgt.WaitNotifs(1, limit), 1)
		}
		want(op, a, b, la, lb)
		require.NoError(t, x.Release())
		whole := ini.Xfer(worker.XferSpec{Op: op, Local: a.Span(0, 3*cuda.Granule), Remote: b.Span(0, 3*cuda.Granule), Peer: "bob"})
		a.Fill(seedA)
		b.Fill(seedB)
		for range 8 {
			whole.Do(limit)
		}
		if op == nixlapi.Write {
			require.EqualValues(t, -1, b.Diff(0, 3*cuda.Granule, seedA, 0))
		} else {
			require.EqualValues(t, -1, a.Diff(0, 3*cuda.Granule, seedB, 0))
		}
		require.NoError(t, whole.Release())
		require.Less(t, r.wire()-before, uint64(cuda.Granule), "bytes went over the wire")
		require.Positive(t, ini.GPUCount("imports"))
		require.NotContains(t, ini.Output(), "bounce buffers")
		says(t, ini.Worker, "peer connected", "nvlink/gpus")
		require.NoError(t, ini.Close())
		require.NoError(t, tgt.Close())
		a.Free()
		b.Free()
		gpuEmpty(t, ini, tgt)
	})
}

// TestNVLinkTraps: where NVLink between hosts is not what the machine's attributes say, transfers go another way with the right bytes, and one
// WARN says what failed and what to do.
func TestNVLinkTraps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		alice, bob tray
		mem        worker.GPUMem
		warns      []string // in the log of one of them
		daemon     bool     // of the domain is down from the allocation on
		ring       bool     // bytes go over NVLink all the same
	}{
		"no channel here":        {alice: tray{noIMEX: true}, mem: fabricMem(1, 1), warns: []string{"fabric not used", "fabric=nvlink", "there is no IMEX channel here", "ComputeDomain"}},
		"fabric not joined":      {alice: tray{gpus: "2,0,ab,7;2,0,ab,7"}, mem: fabricMem(1, 1), warns: []string{"fabric not used", "no GPU has joined the fabric", "fabric state in progress"}},
		"joining failed":         {alice: tray{gpus: "3,999,ab,7;3,999,ab,7"}, mem: fabricMem(1, 1), warns: []string{"fabric not used", "status 999"}},
		"NVML is stuck":          {alice: tray{stuck: true}, mem: fabricMem(1, 1), warns: []string{"fabric not used", "fabric=nvlink", "NVML does not answer"}},
		"another clique":         {alice: tray{gpus: "3,0,ab,8;3,0,ab,8"}, mem: fabricMem(1, 1), warns: []string{"NVLink between hosts not used for a peer", "its GPUs have another clique in the same cluster"}},
		"another cluster":        {alice: tray{gpus: "3,0,cd,7;3,0,cd,7"}, mem: fabricMem(1, 1), warns: []string{"NVLink between hosts not used for a peer", "its GPUs have another cluster UUID"}},
		"another domain":         {alice: tray{domain: "other"}, mem: fabricMem(1, 1), warns: []string{"cannot map memory of a peer over NVLink", "cuMemImportFromShareableHandle", "INVALID_DEVICE", "IMEX domain"}},
		"containers of one node": {alice: tray{node: "n", switches: "fabric_local=1"}, bob: tray{node: "n"}, mem: fabricMem(1, 1), warns: []string{"cannot map memory of a peer over NVLink", "INVALID_DEVICE", "containers of one node"}},
		"import not permitted":   {alice: tray{switches: "fabric_result=800"}, mem: fabricMem(1, 1), warns: []string{"cannot map memory of a peer over NVLink", "NOT_PERMITTED", "IMEX channel"}},
		"import not supported":   {alice: tray{switches: "fabric_result=801"}, mem: fabricMem(1, 1), warns: []string{"cannot map memory of a peer over NVLink", "NOT_SUPPORTED", "IMEX daemon"}},
		"cuMemCreate 800":        {bob: tray{switches: "fabric_result=800"}, mem: device(1)},
		"cuMemCreate 801":        {bob: tray{switches: "fabric_result=801"}, mem: device(1)},
		"the daemon has died":    {mem: fabricMem(1, 1), daemon: true, warns: []string{"the driver does not export it", "NOT_SUPPORTED", "IMEX daemon"}},
		"memory of cudaMalloc":   {mem: device(1), ring: true},
		"memory without handles": {mem: worker.GPUMem{Device: 1, Handles: 1, Private: true}, ring: true},
		"option gpu_mapping":     {bob: tray{opts: []option{params("gpu_mapping", "off")}}, mem: fabricMem(1, 1), warns: []string{"fabric not used", "fabric=nvlink", "option gpu_mapping=off forbids it"}},
		"option encryption":      {alice: tray{opts: []option{params("encryption", "on")}}, bob: tray{opts: []option{params("encryption", "on")}}, mem: fabricMem(1, 1)},
		"encryption, trusted":    {alice: tray{opts: []option{params("encryption", "on", "rdma", "trusted")}}, bob: tray{opts: []option{params("encryption", "on", "rdma", "trusted")}}, mem: fabricMem(1, 1), ring: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRack(t)
			if c.alice.domain != "" {
				c.alice.domain = t.TempDir()
			}
			ini, tgt := r.start("alice", c.alice), r.start("bob", c.bob)
			a, b := ini.GPUBuffer(trapSize, seedA, device(0)), tgt.GPUBuffer(trapSize, seedB, c.mem)
			if c.daemon {
				require.NoError(t, os.WriteFile(filepath.Join(r.domain, "down"), nil, 0o600))
			}
			before := r.wire()
			moves(t, ini, tgt, a, b)
			if over := r.wire() - before; c.ring {
				require.Less(t, over, uint64(trapSize), "bytes went over the wire")
			} else {
				require.Greater(t, over, uint64(8*trapSize))
			}
			if len(c.warns) > 0 {
				require.True(t, worker.Eventually(limit, func() bool { return warned(ini, tgt, c.warns[0]) != nil }), "%s", ini.Output()+tgt.Output())
				lines := warned(ini, tgt, c.warns[0])
				require.Len(t, lines, 1)
				for _, w := range c.warns {
					require.Contains(t, lines[0], w)
				}
			} else {
				require.NotContains(t, ini.Output()+tgt.Output(), "NVLink, transfers go another way")
			}
			if c.daemon { // it returns
				require.NoError(t, os.Remove(filepath.Join(r.domain, "down")))
				c := tgt.GPUBuffer(trapSize, seedB, fabricMem(1, 2))
				ini.Learn(tgt)
				before := r.wire()
				moves(t, ini, tgt, a, c)
				require.Less(t, r.wire()-before, uint64(trapSize), "bytes went over the wire")
				defer c.Free()
			}
			require.NoError(t, ini.Close())
			require.NoError(t, tgt.Close())
			a.Free()
			b.Free()
			if !c.daemon {
				gpuEmpty(t, ini, tgt)
			}
		})
	}
}

const trapSize = 2 * cuda.Granule

// moves moves bytes both ways between two buffers of GPUs, several times, and compares them.
func moves(t *testing.T, ini, tgt *worker.Agent, a, b *worker.Buf) {
	t.Helper()
	ini.Learn(tgt)
	for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
		a.Fill(seedA)
		b.Fill(seedB)
		x := ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
		for range 5 {
			x.Do(limit)
			require.Len(t, tgt.WaitNotifs(1, limit), 1)
		}
		require.NoError(t, x.Release())
		if op == nixlapi.Write {
			b.Want(seedA)
		} else {
			a.Want(seedB)
		}
	}
}

// warned are the warnings of two agents with this text.
func warned(a, b *worker.Agent, text string) (lines []string) {
	for line := range strings.SplitSeq(a.Output()+b.Output(), "\n") {
		if strings.Contains(line, text) && strings.Contains(line, "level=WARN") {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestNVLinkArena: a region of more handles than one frame carries, and than stock UCX bears.
func TestNVLinkArena(t *testing.T) {
	t.Parallel()
	const n = 1200
	r := newRack(t)
	ini, tgt := r.start("alice", tray{}), r.start("bob", tray{})
	const part = 64 << 10
	a, b := ini.GPUBuffer(4*part, seedA, device(0)), tgt.AllocGPU(n*cuda.Granule, fabricMem(1, n))
	require.NoError(t, tgt.Register(b.All()))
	ini.Learn(tgt)
	la, lb := worker.Layout{Len: part, Stride: part, Count: 4}, worker.Layout{Off: 3, Len: part, Stride: 399 * cuda.Granule, Count: 4}
	x := ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.At(la), Remote: b.At(lb), Peer: "bob"})
	require.True(t, worker.Eventually(limit, func() bool { x.Do(limit); return ini.GPUCount("imports") >= n }), "%d handles imported", ini.GPUCount("imports"))
	before := r.wire()
	a.Fill(seedC)
	x.Do(limit)
	require.Less(t, r.wire()-before, uint64(part), "bytes went over the wire")
	for i := range uint64(4) {
		require.EqualValues(t, -1, b.Diff(3+i*399*cuda.Granule, part, seedC, i*part))
	}
}

// TestNVLinkGivenBack: within two seconds after its owner has ended, was killed, has deregistered or unmapped memory, or after the importer has
// removed the owner, no process of another machine holds a byte of it.
func TestNVLinkGivenBack(t *testing.T) {
	t.Parallel()
	for _, e := range takings {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			r := newRack(t)
			l := lend(t, fabricMem(1, 2), 2, func(name string) *worker.Agent { return r.start(name, tray{}) })
			e.do(l)
			require.Empty(t, l.back(l.importers...), "after %v", soon)
		})
	}
}

// TestNVLinkStopped: an importer is stopped while the owner deregisters. The owner's log says that memory may still be accessed: no device of its
// own ends that. The importer gives it back when it continues, and no byte of a WRITE that it had posted before lands.
func TestNVLinkStopped(t *testing.T) {
	t.Parallel()
	r := newRack(t)
	l := lend(t, fabricMem(1, 2), 1, func(name string) *worker.Agent { return r.start(name, tray{}) })
	alice := l.importers[0]
	x := alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: l.mine[0].All(), Remote: l.lent.All(), Peer: "bob"})
	x.Do(limit)
	alice.Stop()
	require.NoError(t, l.owner.Deregister(l.lent.All())) // NIXL drops the error
	says(t, l.owner.Worker, "deregister", "may map the memory over NVLink")
	require.NotZero(t, l.holds(alice), "a stopped process has given something back")
	l.lent.Fill(seedC)
	alice.Cont()
	require.Empty(t, l.back(alice))
	require.True(t, x.Try(limit).Failed())
	l.lent.Want(seedC)
}

// TestNVLinkRemapped: the owner maps other memory at a registered address. A transfer that is posted afterwards moves the bytes that are there now.
// The next ones go over NVLink again. Nobody tells the plugin.
func TestNVLinkRemapped(t *testing.T) {
	t.Parallel()
	for _, to := range []int{1, 4} {
		t.Run(fmt.Sprint(to, " handles"), func(t *testing.T) {
			t.Parallel()
			eachOp(t, func(t *testing.T, op nixlapi.Op) {
				const size = 8 * cuda.Granule
				r := newRack(t)
				p := &pairOf{env: r.env, ini: r.start("alice", tray{}), tgt: r.start("bob", tray{})}
				a, b := p.ini.GPUBuffer(size, seedA, device(0)), p.tgt.GPUBuffer(size, seedB, fabricMem(1, 2))
				p.ini.Learn(p.tgt)
				m := &remapped{t: t, p: p, op: op, src: a, dst: b, moved: b}
				if op == nixlapi.Read {
					m.src, m.dst = b, a
				}
				m.x = p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob"})
				m.round(false)
				m.direct()
				for i := range uint64(4) { // each memory has bytes of its own: those of the last one would show
					b.Unmap()
					b.Remap(to)
					for range 2 {
						m.src.Fill(seedD + i + 1)
						m.dst.Fill(seedA)
						m.x.Do(limit)
						m.dst.Want(seedD + i + 1)
					}
				}
				m.direct()
				m.end(false)
			})
		})
	}
}

// TestNVLinkKilled: the owner is killed while a GPU copies to its memory, and its successor serves the same transfers.
func TestNVLinkKilled(t *testing.T) {
	t.Parallel()
	const size = 4 * cuda.Granule
	r := newRack(t)
	ini, tgt := r.start("alice", tray{}), r.start("bob", tray{})
	a, b := ini.GPUBuffer(size, seedA, device(0)), tgt.GPUBuffer(size, seedB, fabricMem(1, 2))
	ini.Learn(tgt)
	spec := worker.XferSpec{Op: nixlapi.Write, Local: a.At(scattered(0, 4096, 0, 100, 1)), Remote: b.At(scattered(0, 4096, 4096, 100, 1)), Peer: "bob"}
	z := ini.Xfer(spec)
	require.True(t, worker.Eventually(limit, func() bool { // until the handles are there, bytes go over the wire
		before := tgt.GPUCount("launches") + tgt.GPUCount("copies")
		z.Do(limit)
		return tgt.GPUCount("launches")+tgt.GPUCount("copies") == before
	}), "transfers stay staged")
	require.NoError(t, z.Release())
	copied := func() int { return ini.GPUCount("launches") + ini.GPUCount("copies") }
	ini.GPUSwitch("hold", 1)
	before, x := copied(), ini.Xfer(spec)
	require.Equal(t, nixlapi.InProgress, x.Post())
	waiting := x.WaitAsync(limit)
	require.True(t, worker.Eventually(limit, func() bool { return copied() > before }), "no copy is queued")
	tgt.Kill()
	says(t, ini.Worker, "peer lost") // a copy that ends before that has succeeded
	ini.GPUSwitch("hold", 0)
	require.True(t, waiting.Wait().Status.Failed())
	_ = x.Release()
	_ = ini.Invalidate("bob")
	next := r.start("bob", tray{})
	c := next.GPUBuffer(size, seedB, fabricMem(1, 2))
	ini.Learn(next)
	spec.Remote = c.At(scattered(0, 4096, 4096, 100, 1))
	y := ini.Xfer(spec)
	y.Do(limit)
	want(nixlapi.Write, a, c, scattered(0, 4096, 0, 100, 1), scattered(0, 4096, 4096, 100, 1))
	require.NoError(t, y.Release())
	require.NoError(t, ini.Close())
	a.Free()
	gpuEmpty(t, ini)
}
