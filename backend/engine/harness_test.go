package engine

import (
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/ofi"
	"gorail/backend/provider/shm"
	"gorail/backend/provider/tcp"
	"gorail/backend/provider/tcp/sock"
	"gorail/backend/provider/verbs"
	"gorail/backend/topo"
	"gorail/test/drive"
	"gorail/test/fabric"
	"gorail/test/fake"
	imitation "gorail/test/verbs"
)

func TestMain(m *testing.M) {
	maybeOwner()
	os.Setenv(fabric.EnvConfig, fabric.Config("efa", 1, 1)) // of onOFI: a library reads it at its first use
	goleak.VerifyTestMain(m)
}

// patience bounds every wait. On an idle host a wait takes a thousandth of it.
const patience = time.Minute

// until polls ok until ok is true. what names the condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !within(patience, ok) {
		t.Fatalf("not within %v: %s", patience, what)
	}
}

// within polls until ok holds. It returns false when the time is up. A long wait is polled less often: many tests wait at a time.
func within(limit time.Duration, ok func() bool) bool {
	pause := 20 * time.Microsecond
	for end := time.Now().Add(limit); !ok(); time.Sleep(pause) {
		if time.Now().After(end) {
			return false
		}
		pause = min(pause+pause/8, 2*time.Millisecond)
	}
	return true
}

// harness makes engines on one provider.
type harness struct {
	testing.TB
	fabric *fake.Fabric    // the fake provider
	lib    *imitation.Lib  // imitated libibverbs
	ofi    string          // path of an imitated libfabric
	gids   *imitation.GIDs // of the imitated devices; nil: fixed ones
	real   bool            // libibverbs with the host's devices
	host   bool            // shared memory
	tcp    bool            // our own tcp
	wrap   func(provider.Provider) provider.Provider
	nets   func() []topo.Interface // of the next agents; nil: the host's
	sysfs  fs.FS                   // of their machine; nil: the host's
	node   func(addr uint64) int   // NUMA node of their memory; nil: the kernel's answer
	caps   fake.Caps
	links  []fake.Link
	params []string // options of all agents, by name and value
	log    *logLines
}

// onFake is a harness over a new fake fabric. At the end of the test every engine is closed. The fabric must be empty then.
func onFake(t testing.TB, caps fake.Caps) *harness {
	h := &harness{TB: t, fabric: fake.NewFabric(1), caps: caps, links: []fake.Link{{Name: "fake0", Caps: caps}}, log: &logLines{}}
	t.Cleanup(func() {
		require.NoError(t, h.fabric.Close(), "an engine has left a rail, an endpoint or a region open")
		if t.Failed() {
			t.Log(h.log.String())
		}
	})
	return h
}

// onOFI is a harness over libfabric with an imitated EFA device. The test is skipped without libfabric.
func onOFI(t testing.TB) *harness {
	h := &harness{TB: t, ofi: fabric.Build(t), log: &logLines{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(h.log.String())
		}
	})
	return h
}

// onTCP is a harness over our own tcp on the loopback interface. In half of the tests the rail has three shards.
func onTCP(t testing.TB) *harness {
	h := onHost(t)
	h.host, h.tcp = false, true
	if crc32.ChecksumIEEE([]byte(t.Name()))%2 == 0 {
		h.params = append(h.params, "tcp_threads", "3")
	}
	return h
}

// onHost is a harness over shared memory.
func onHost(t testing.TB) *harness {
	h := &harness{TB: t, host: true, log: &logLines{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(h.log.String())
		}
	})
	return h
}

// onVerbs is a harness over an imitated libibverbs with that many devices.
func onVerbs(t testing.TB, devices int) *harness {
	h := &harness{TB: t, lib: imitation.Build(t), log: &logLines{}}
	h.lib.Set("devices", devices)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(h.log.String())
		}
	})
	return h
}

// onDevices is a harness over the host's devices if GORAIL_TEST_VERBS is set, else over one imitated device.
func onDevices(t testing.TB) *harness {
	if os.Getenv("GORAIL_TEST_VERBS") == "" {
		return onVerbs(t, 1)
	}
	h := &harness{TB: t, real: true, log: &logLines{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(h.log.String())
		}
	})
	return h
}

// onRails is a harness with n rails between all engines.
func onRails(t testing.TB, n int, caps fake.Caps) *harness {
	h := onFake(t, caps)
	h.links = nil
	for i := range n {
		h.links = append(h.links, fake.Link{Name: fmt.Sprint("fake", i), Caps: caps})
	}
	return h
}

// onThreads is a harness with three rails that two threads poll. Small transfers use the first two in turn.
func onThreads(t testing.TB) *harness {
	h := onRails(t, 3, fake.TCPCaps())
	h.links[2].Worker = 1
	return h
}

// onTwoNodes is a harness with three rails on each of two NUMA nodes. Memory has at most two of them: those near to it.
func onTwoNodes(t testing.TB) *harness {
	h := onWide(t, 3, 2, fake.SecuredCaps())
	h.node = func(addr uint64) int { return int(addr>>12) & 1 }
	return h
}

// onLinks is a harness with one rail between all engines, and n links per session.
func onLinks(t testing.TB, n int, caps fake.Caps) *harness {
	h := onFake(t, caps)
	h.params = []string{"qps_per_rail", fmt.Sprint(n)}
	return h
}

// verbsOptions are those of the next agents over imitated devices.
func (h *harness) verbsOptions(ib option.IB) verbs.Options {
	o := verbs.Options{LibraryPath: h.lib.Path, Sys: imitation.Sys(4, 1, true), IB: ib}
	if h.gids != nil {
		nets := h.nets
		o.Sys, o.Interfaces = h.gids, func() ([]topo.Interface, error) { return nets(), nil }
	}
	return o
}

// rounds returns the number of rounds: short with -short, else full.
func rounds(short, full int) int {
	if testing.Short() {
		return short
	}
	return full
}

// everywhere runs body in parallel on fakes of each kind, imitated devices, tcp and shared memory. The long form adds
// libfabric.
func everywhere(t *testing.T, body func(h *harness)) {
	fabrics := map[string]func(t testing.TB) *harness{
		"fake-tcp":    func(t testing.TB) *harness { return onFake(t, fake.TCPCaps()) },
		"fake-efa":    func(t testing.TB) *harness { return onFake(t, fake.EFACaps()) },
		"fake-3rails": onThreads,
		"fake-3links": func(t testing.TB) *harness { return onLinks(t, 3, fake.SecuredCaps()) },
		"fake-wide":   onTwoNodes,
		"verbs":       func(t testing.TB) *harness { return onVerbs(t, 1) },
		"tcp":         onTCP,
		"host":        onHost,
	}
	if !testing.Short() {
		fabrics["ofi"] = onOFI
	}
	sideBySide(t, body, fabrics)
}

// onFakes runs body in parallel on an ordered and on an unordered fake.
func onFakes(t *testing.T, body func(h *harness)) {
	sideBySide(t, body, map[string]func(t testing.TB) *harness{
		"ordered":   func(t testing.TB) *harness { return onFake(t, fake.TCPCaps()) },
		"unordered": func(t testing.TB) *harness { return onFake(t, fake.EFACaps()) },
	})
}

func sideBySide(t *testing.T, body func(h *harness), fabrics map[string]func(t testing.TB) *harness) {
	for name, open := range fabrics {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body(open(t))
		})
	}
}

// agent is an engine, with the state that a test needs to drive it.
type agent struct {
	*Engine
	t    testing.TB
	prov *fake.Provider
	got  []string // notifications taken and not yet compared, "sender:text"
}

// agent makes an engine. The end of the test closes it. params are options: name, value, name, value.
func (h *harness) agent(name string, params ...string) *agent {
	h.Helper()
	a, err := h.open(name, params...)
	require.NoError(h, err)
	h.Cleanup(func() { require.NoError(h, a.Close()) })
	return a
}

// open makes an engine, which the caller closes; the error is New's.
func (h *harness) open(name string, params ...string) (*agent, error) {
	h.Helper()
	p := map[string]string{"peer_timeout": "5s", "window_min": "64KiB", "chunk_max": "128KiB", "stats_socket": "off"}
	for params := append(slices.Clone(h.params), params...); len(params) > 0; params = params[2:] {
		p[params[0]] = params[1]
	}
	a := &agent{t: h.TB}
	var prov provider.Provider
	switch {
	case h.ofi != "":
		p["provider"], p["control_devices"] = "efa", "lo"
	case h.tcp:
		p["provider"], p["devices"] = "tcp", "lo"
	}
	opt, unknown, err := option.Parse(p, nil)
	require.NoError(h, err)
	for _, name := range unknown {
		setBound(h, &opt, name, p[name])
	}
	switch {
	case h.fabric != nil:
		a.prov = h.fabric.Provider(h.links...)
		prov = a.prov
	case h.tcp:
		prov = tcp.New(tcp.Options{Threads: opt.TCPThreads, ConnectTimeout: opt.ConnectTimeout, PeerTimeout: opt.PeerTimeout,
			Encryption: opt.Encryption, Compression: sock.PackingOf(opt.Compression), CUDAPath: opt.CUDAPath})
	case h.host:
		prov = shm.New(shm.Options{Threads: 2, CUDA: opt.CUDAPath})
	case h.real:
		prov = verbs.New(verbs.Options{IB: opt.IB})
	case h.lib != nil:
		prov = verbs.New(h.verbsOptions(opt.IB))
	default:
		prov = ofi.New(ofi.Options{LibraryPath: h.ofi})
	}
	if h.wrap != nil {
		prov = h.wrap(prov)
	}
	a.Engine, err = New(Config{Agent: name, Options: opt, Provider: prov, Log: slog.New(h.log), nets: h.nets, sys: h.sysfs})
	if h.node != nil && err == nil {
		a.rails.Nodes = func(addr, _ uint64) (int, error) { return h.node(addr), nil }
	}
	return a, err
}

// setBound sets what no option sets.
func setBound(t testing.TB, o *option.Options, name, value string) {
	var err error
	f := &o.Flow
	switch name {
	case "release_wait":
		f.ReleaseWait, err = option.ParseDuration(value)
	case "max_endpoints":
		o.MaxEndpoints, err = strconv.Atoi(value)
	default:
		field := map[string]*uint64{"chunk_min": &f.ChunkMin, "chunk_max": &f.ChunkMax, "window_min": &f.WindowMin, "window_max": &f.WindowMax}[name]
		require.NotNil(t, field, name)
		*field, err = option.ParseSize(value)
	}
	require.NoError(t, err)
}

// rail is the agent's first fake rail, which a test scripts.
func (a *agent) rail() *fake.Rail { return a.prov.Rail("fake0") }

// loadBoth loads the connection blob of each agent at the other.
func loadBoth(a, b *agent) {
	a.t.Helper()
	require.NoError(a.t, a.LoadConn(b.name, b.Conn()))
	require.NoError(a.t, b.LoadConn(a.name, a.Conn()))
}

// metaObject stands for the shim's metadata object. The shim keeps the region's number at GR_MD_REGION.
type metaObject struct {
	_      [2]uint64
	region uint64
}

// memory is a registered buffer of one agent, outside Go's heap.
type memory struct {
	owner *agent
	b     []byte
	md    *metaObject
	blob  []byte
}

var pool struct {
	sync.Mutex
	free map[int][][]byte
	walk []byte // of the walk of failpoints
	used int
}

func (a *agent) memory(n int) *memory {
	a.t.Helper()
	pool.Lock()
	var b []byte
	if list := pool.free[n]; len(list) > 0 {
		b, pool.free[n] = list[len(list)-1], list[:len(list)-1]
		clear(b)
	}
	pool.Unlock()
	if b == nil {
		b = drive.Alloc(n)
	}
	m := &memory{owner: a, b: b}
	m.register()
	return m
}

// register registers the memory and encodes its metadata.
func (m *memory) register(meta ...string) {
	t := m.owner.t
	id, err := m.owner.Register(m.addr(), uint64(len(m.b)), 0, 0, []byte(strings.Join(meta, " ")))
	require.NoError(t, err)
	m.md = &metaObject{region: id}
	m.blob, err = m.owner.RegionBlob(id)
	require.NoError(t, err)
}

func (m *memory) addr() uint64 { return drive.Addr(m.b) }

func (m *memory) fill(seed uint64) *memory {
	r := rand.NewPCG(seed, 1)
	for i := 0; i+8 <= len(m.b); i += 8 {
		*(*uint64)(unsafe.Pointer(&m.b[i])) = r.Uint64()&0x83ff83ff83ff83ff | 0x3c003c003c003c00 // numbers in bfloat16, which compression packs
	}
	return m
}

func (m *memory) desc(off, n int) Desc {
	return Desc{Addr: m.addr() + uint64(off), Len: uint64(n), MD: unsafe.Pointer(m.md)}
}

// seenBy loads the memory's metadata at another agent.
func (m *memory) seenBy(a *agent) *memory {
	a.t.Helper()
	id, err := a.LoadRemote(m.owner.name, m.addr(), uint64(len(m.b)), 0, 0, m.blob)
	require.NoError(a.t, err)
	return &memory{owner: m.owner, b: m.b, md: &metaObject{region: id}, blob: m.blob}
}
