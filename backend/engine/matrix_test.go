package engine

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"gorail/backend/errcode"
	"gorail/backend/provider"
	"gorail/backend/provider/auto"
	"gorail/backend/provider/shm"
	"gorail/backend/provider/shm/ipc"
	"gorail/backend/transfer"
	"gorail/backend/wire"
	"gorail/internal/pattern"
	"gorail/test/skip"
	imitation "gorail/test/verbs"
)

// inNetwork runs the test again, in a child process with a new network namespace, and returns true. In the child it gives the
// loopback interface a host's address, and returns false.
func inNetwork(t *testing.T) bool {
	const inside = "GORAIL_TEST_NETWORK"
	if os.Getenv(inside) != "" {
		lo, err := netlink.LinkByName("lo")
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetUp(lo))
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 81, 0, 1), Mask: net.CIDRMask(32, 32)}}
		if err := netlink.AddrAdd(lo, addr); err != syscall.EEXIST { // an earlier test has added it
			require.NoError(t, err)
		}
		return false
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	c := exec.Command(exe, "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), inside+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := c.CombinedOutput()
	if c.Process == nil {
		skip.OrFail(t, fmt.Errorf("make a network namespace: %w", err))
	}
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
	return true
}

// apart makes an agent of the same process look as if it ran elsewhere. alone: the hosts' shared memory differs.
type apart struct {
	name               string
	alone, nets, hosts bool
}

var elsewhere = []apart{
	{name: "same process"},
	{name: "other shared memory", alone: true},
	{name: "other network namespace, no folder", nets: true},
	{name: "other host", alone: true, nets: true, hosts: true},
}

func (p apart) near() bool { return !p.alone && !p.nets && !p.hosts }

// conn is the agent's connection blob, as if the agent ran elsewhere.
func (p apart) conn(a *agent) []byte {
	b, err := wire.DecodeConn(a.Conn())
	require.NoError(a.t, err)
	if p.nets {
		b.NetNS++
	}
	if p.hosts {
		b.Boot = "another"
	}
	for i := range b.Rails {
		o := &b.Rails[i]
		if o.Fabric != provider.SharedMemory {
			continue
		}
		if p.alone {
			o.Subnet = "another " + o.Subnet
		}
		if p.nets {
			at, ok := ipc.Decode(o.Proof)
			require.True(a.t, ok)
			at.NetNS++
			o.Proof = append(at.Append(nil), o.Proof[ipc.PlaceSize:]...)
		}
	}
	raw, err := b.Encode()
	require.NoError(a.t, err)
	return raw
}

// withMemory is a harness over imitated devices and shared memory. The auto provider chooses between them.
func withMemory(t *testing.T, devices int) *gpuHarness {
	h := onGPUDevices(t, devices)
	wire := h.wrap
	h.wrap = func(p provider.Provider) provider.Provider {
		return auto.Provider{OFI: wire(p), Sys: h.sys,
			Fabrics: []provider.Provider{asVerbs{wire(p)}, shm.New(shm.Options{Threads: 1, CUDA: h.cuda.Path})}}
	}
	h.params = append(h.params, "control_devices", "lo")
	return h
}

// lacks makes the next registration fail on one device. GPU memory can't be registered there in another way.
func (h *gpuHarness) lacks(call string, device int) {
	h.lib.FailMany(call, device+1, 1, syscall.EOPNOTSUPP)
}

// pairApart is two agents that have loaded each other's metadata, as if they ran apart.
func (h *gpuHarness) pairApart(p apart) (a, b *agent) {
	a, b = h.agent("ann"), h.agent("bob")
	require.NoError(h, a.LoadConn("bob", p.conn(b)))
	require.NoError(h, b.LoadConn("ann", p.conn(a)))
	return a, b
}

// small is a size that is registered on one rail after the other, not in parallel.
const small = 60 << 10

// TestMatrixVerbs moves host and GPU memory in both directions. The peer is near or elsewhere, and the devices of each side reach
// GPU memory or not. A transfer uses a device that has the memory of both sides registered. Without such a device it is staged.
func TestMatrixVerbs(t *testing.T) {
	t.Parallel()
	if inNetwork(t) {
		return
	}
	none := func(h *gpuHarness) { h.lib.Set("dmabuf", 0) }
	for _, c := range []struct {
		name         string
		devices      int
		first        func(h *gpuHarness)
		mine, theirs func(h *gpuHarness) // called before ann's, bob's memory is registered
		staged       string              // v: GPU to GPU, h: host to GPU, d: GPU to host
	}{
		{name: "none", devices: 1, first: none, staged: "vhd"},
		{name: "dmabuf", devices: 1},
		{name: "peermem", devices: 1, first: func(h *gpuHarness) { none(h); h.lib.Peermem(h.cuda.Peermem()) }},
		{name: "not theirs", devices: 1, theirs: none, staged: "vh"},
		{name: "not ours", devices: 1, mine: func(h *gpuHarness) { h.lacks("reg_dmabuf_mr", 0) }, staged: "vd"},
		{name: "one of two", devices: 2, mine: func(h *gpuHarness) { h.lacks("reg_dmabuf_mr", 0) }, theirs: func(h *gpuHarness) { h.lacks("reg_dmabuf_mr", 0) }},
		{name: "not the same", devices: 2, mine: func(h *gpuHarness) { h.lacks("reg_dmabuf_mr", 0) }, theirs: func(h *gpuHarness) { h.lacks("reg_dmabuf_mr", 1) },
			staged: "v"},
	} {
		for _, place := range elsewhere {
			t.Run(c.name+", "+place.name, func(t *testing.T) {
				h := withMemory(t, c.devices)
				do := func(f func(h *gpuHarness)) {
					if f != nil {
						f(h)
					}
				}
				do(c.first)
				a, b := h.pairApart(place)
				do(c.mine)
				vramA := h.gpu(a, 0, small, 0)
				do(c.theirs)
				vramB := h.gpu(b, 1, small, 0)
				hostA, hostB := h.dram(a, small), h.dram(b, small)
				staged := c.staged
				if place.near() {
					staged = "hd"
				}
				for _, way := range []struct {
					kind         string
					mine, theirs *vram
				}{{"p", hostA, hostB}, {"v", vramA, vramB}, {"h", hostA, vramB}, {"d", vramA, hostB}} {
					h.moves(a, b, way.mine, way.theirs) // a transfer may be staged until its memory is mapped
					before := a.staging.Counts().Transfers
					h.moves(a, b, way.mine, way.theirs)
					require.Equal(t, strings.Contains(staged, way.kind), a.staging.Counts().Transfers > before, "staged: %s", way.kind)
				}
				require.NoError(t, a.Notify("bob", []byte("alone")))
				b.expect("ann:alone")
				require.Equal(t, place.near(), h.lib.Count("sends") == 0, "a near peer's notification takes shared memory, another's takes verbs")
			})
		}
	}
}

// One list has host memory and GPU memory. No rail has the GPU memory of both sides registered. The transfer is staged in part,
// whatever comes first in the list.
func TestMatrixMixed(t *testing.T) {
	t.Parallel()
	h := withMemory(t, 1)
	a, b := h.pairApart(apart{alone: true})
	mine := []*vram{h.dram(a, small), h.gpu(a, 0, small, 0), h.gpu(a, 1, small, 0)}
	h.lib.Set("dmabuf", 0)
	theirs := []*vram{h.dram(b, small), h.gpu(b, 1, small, 0), h.dram(b, small)}
	for op := range 2 {
		var from, to [][]byte
		var local, remote []Desc
		for i := range mine {
			from, to = append(from, mine[i].fill()), append(to, theirs[i].fill())
			local, remote = append(local, mine[i].desc(0, small)), append(remote, theirs[i].seenBy(a).desc(0, small))
		}
		if op == transfer.Read {
			from = to
		}
		x := a.prep(op, local, remote, "bob")
		for range 2 {
			x.run("mixed")
			b.expect("ann:mixed")
		}
		for i := range mine {
			pattern.Same(t, from[i], mine[i].bytes())
			pattern.Same(t, from[i], theirs[i].bytes())
		}
		x.release()
	}
}

// No rail of the session can register the ring for staging. The transfer fails, and the log gives the reason.
func TestMatrixRingRefused(t *testing.T) {
	t.Parallel()
	h := withMemory(t, 1)
	h.lib.Set("dmabuf", 0)
	a, b := h.pairApart(apart{alone: true})
	mine, theirs := h.dram(a, small), h.gpu(b, 1, small, 0)
	a.connected("bob")
	h.lib.Set("mr_size", 256<<10) // a ring is larger
	defer h.lib.Set("mr_size", 0)
	x := a.prep(transfer.Write, []Desc{mine.desc(0, small)}, []Desc{theirs.seenBy(a).desc(0, small)}, "bob")
	x.post("never")
	x.fails(errcode.ErrBackend)
	x.release()
	require.True(t, h.log.has("transfer failed", "no rail of this session takes the bounce buffers' memory"), h.log.String())
}

// One rail of a session fails to connect. Memory that only this rail reaches is staged over the other rails.
func TestMatrixRailNotUp(t *testing.T) {
	t.Parallel()
	h := withMemory(t, 2)
	a, b := h.agent("ann"), h.agent("bob")
	h.lacks("reg_dmabuf_mr", 1)
	mine := h.gpu(a, 0, small, 0)
	h.lacks("reg_dmabuf_mr", 1)
	theirs := h.gpu(b, 1, small, 0)
	h.lib.Fail("modify_rtr", 1, syscall.EIO) // bob's endpoint on hca0
	require.NoError(t, a.LoadConn("bob", apart{alone: true}.conn(b)))
	r := a.connected("bob")
	until(t, "the other rail works", func() bool { return r.atWork() == 1 })
	require.True(t, h.log.has("rail not used for a peer", "rail=verbs/hca0", "peer=bob"))
	h.moves(a, b, mine, theirs)
	require.Positive(t, a.staging.Counts().Transfers)
}

// Only one rail has the GPU memory of both sides registered. It goes down during a transfer or before it. The transfer is
// staged over the other rail then. Transfers are no longer staged when the first rail is back.
func TestMatrixRailAway(t *testing.T) {
	t.Parallel()
	for _, under := range []bool{false, true} {
		for op := range 2 {
			t.Run(fmt.Sprintf("under=%v, op %d", under, op), func(t *testing.T) {
				h := withMemory(t, 2)
				a, b := h.pairApart(apart{alone: true})
				h.lacks("reg_dmabuf_mr", 0)
				mine := h.gpu(a, 0, small, 0)
				h.lacks("reg_dmabuf_mr", 0)
				theirs := h.gpu(b, 1, small, 0)
				r := a.connected("bob")
				until(t, "both rails work", func() bool { return r.atWork() == 2 })
				x := a.prep(op, []Desc{mine.desc(0, small)}, []Desc{theirs.seenBy(a).desc(0, small)}, "bob")
				moves := func(how string) {
					t.Helper()
					from, to := mine, theirs
					if op == transfer.Read {
						from, to = to, from
					}
					want := from.fill()
					x.post(how)
					if how == "under" {
						h.lib.Event(1, imitation.PortErr, 1)
						h.lib.Set("delay", 0)
					}
					require.Equal(t, errcode.Success, errcode.Status(x.wait()))
					b.expect("ann:" + how)
					pattern.Same(t, want, to.bytes())
				}
				moves("first")
				require.Zero(t, a.staging.Counts().Transfers)
				h.lib.FailMany("modify_rtr", 1, 1<<30, syscall.EIO) // the rail stays down
				if under {
					h.lib.Set("delay", 1<<30)
					moves("under")
				} else {
					h.lib.Event(1, imitation.PortErr, 1)
					until(t, "one link has stopped", func() bool { return r.atWork() == 1 })
				}
				moves("away")
				require.Positive(t, a.staging.Counts().Transfers)
				h.lib.Fail("modify_rtr", 0, 0)
				h.lib.Event(1, imitation.PortActive, 1)
				until(t, "both rails work again", func() bool { return r.atWork() == 2 })
				before := a.staging.Counts().Transfers
				moves("back")
				require.Equal(t, before, a.staging.Counts().Transfers)
			})
		}
	}
}

// asVerbs is a provider under the name of the real one.
type asVerbs struct{ provider.Provider }

func (asVerbs) Name() string { return provider.Verbs }
