// Package provider says what GORAIL wants of a fabric. One implementation each for libibverbs (provider/verbs), libfabric
// (provider/ofi) and the memory of one host (provider/shm); provider/auto chooses between them, provider/fake is in-process, for tests.
//
// The Go side opens, registers and closes. Posting and polling happen in C, below the ops table of
// include/gr_provider.h, which each Rail carries.
package provider

import (
	"context"
	"errors"
	"net/netip"
	"unsafe"

	"gorail/backend/topo"
)

// Errors by phase. Implementations wrap them with the device, the option or limit, and what to do.
var (
	ErrNoLibrary  = errors.New("library cannot be loaded")
	ErrNoDevice   = errors.New("no usable device")
	ErrFiltered   = errors.New("no device matches option") // devices; there are some
	ErrUnusable   = errors.New("device is there but unusable")
	ErrNotThere   = errors.New("memory is not what its descriptor says") // beside ErrRegister
	ErrRegister   = errors.New("memory registration failed")
	ErrNoVRAM     = errors.New("the rail can't reach memory of GPUs") // beside ErrRegister: no other memory of that GPU will be taken either
	ErrEndpoint   = errors.New("endpoint failed")
	ErrBadAddress = errors.New("bad endpoint address")
)

// Provider finds and opens rails of one library.
type Provider interface {
	// Name is Device.Provider of what it finds: "verbs", "ofi", "sm".
	Name() string
	// Discover lists the devices that fit the filter, best first, without opening any of them. Those that cannot be opened now (Waits) are
	// among them only beside others that can.
	Discover(ctx context.Context, f Filter) ([]Device, error)
	// Open opens one device found by Discover.
	Open(d Device) (Rail, error)
}

// Filter narrows discovery.
type Filter struct {
	Fabrics []string // "verbs", "sm" and libfabric provider names, in order of preference; "auto" for provider/auto alone
	Devices []string // globs over device names; a leading '!' excludes; empty: all
}

// Device is one thing that can become a rail.
type Device struct {
	Provider string // Provider.Name
	Fabric   string // "verbs", "sm" or libfabric's provider name: "net", "tcp", "efa", ...
	Name     string // domain or device name: "lo", "eth0", "mlx5_0"
	Subnet   string // what a peer's device must share to be reachable, e.g. "192.0.2.0/24"; "" = any of the same Fabric
	Addr     string // an IP address of the device for the control channel, "" if it has none
	Loopback bool   // reaches only this network namespace
	Host     bool   // reaches processes of this host by their memory: goes before all others
	Hardware bool   // RDMA hardware (as opposed to sockets)
	Mbps     uint64 // link speed in megabits per second, 0 = unknown
	NUMA     int    // NUMA node, -1 = unknown
	Waits    string // why it cannot be opened now, though it may be later: "the port is DOWN"; "" = it can be
	Opaque   any    // the provider's own
}

// Caps is what the engine must know of an opened rail; what the core must know is in its gr_rail. Behaviour follows these, never a provider's name.
type Caps struct {
	ProviderKeys   bool   // the provider chooses keys; else the caller does
	KeySize        int    // bytes of a key
	Bulk           bool   // copies memory of GPUs whole, by gr_rail_bulk; else a rail that takes it moves it as any other
	PinsMemory     bool   // registering pins the memory, which takes longer the larger it is; else it is an entry in a table
	SharedEndpoint bool   // one endpoint serves all peers: closing is no fence. Else closing one ends its peer's access, and nobody else's
	Descriptors    int    // of the process that an endpoint takes, its connection included
	MaxMR          uint64 // bytes that one registration should have at most; 0: any
	MaxMsg         uint64 // bytes of one work request
	PreferUnsplit  uint64 // bytes of a work request up to which it is best left whole, as one copies it; 0: whatever the options say
}

// Rail is one opened device. Its methods are safe for concurrent use.
type Rail interface {
	Device() Device
	Caps() Caps
	// Notes are what whoever runs this should be warned of: what the device can't do as asked, or only by detours.
	Notes() []string
	// Core is the gr_rail of the device (include/gr_provider.h); valid until Close.
	Core() unsafe.Pointer
	// OpenEndpoint opens an endpoint for exactly one peer. Implements fi_endpoint, fi_enable.
	OpenEndpoint() (Endpoint, error)
	// Register makes memory reachable for local and remote operations. key is the wanted key where the caller chooses.
	// The memory need not be mapped yet where the fabric allows that. Implements fi_mr_regattr.
	Register(addr, length, key uint64) (MR, error)
	// Close closes the device; all endpoints and regions of it must be closed before.
	Close() error
}

// Watcher is a Rail that hears of its device going down and coming up; the network interface of the others says so.
type Watcher interface {
	// Watch tells until ctx ends, from one goroutine. The rail must not be closed before it has returned.
	Watch(ctx context.Context, tell func(up bool, why string)) error
}

// Prover is a Rail that may reach a peer or not, whatever their subnets: it is asked before they pair.
type Prover interface {
	// Proof travels with the rail's offer.
	Proof() []byte
	// Reach tries; the error says what stands in the way and what would help.
	Reach(proof []byte) error
}

// VRAM is a Rail that moves memory of GPUs.
type VRAM interface {
	// RegisterVRAM makes memory of a GPU reachable. device is the GPU that the caller takes it to be on, as the driver numbers them. The
	// error wraps ErrRegister, and ErrNotThere where the memory isn't what the caller says, or ErrNoVRAM where that's the rail's, the
	// driver's or the kernel's fault for good. Nothing is done to any GPU before the first. The MR is a GPUMemory.
	RegisterVRAM(addr, length uint64, device int) (MR, error)
	// LastError is why a copy could not be made, last; "" without.
	LastError() string
}

// Reporter is a Rail that learns things after it was opened.
type Reporter interface {
	// Reports is what the operator should know since the last call.
	Reports() []string
}

// Warner is a Rail that finds after it was opened what the operator should do something about.
type Warner interface {
	// Warnings are those since the last call.
	Warnings() []string
}

// Assistant is a Rail whose peers copy for each other, to and from memory of this host.
type Assistant interface {
	// Assisted are the bytes that we have copied for peers, and that peers have for us.
	Assisted() (forPeers, byPeers uint64)
}

// Mapper is a Rail that maps peers' memory when a transfer wants it.
type Mapper interface {
	// Mapping says that some is not there yet.
	Mapping() bool
}

// Renewable is an MR of memory that its owner may have freed meanwhile.
type Renewable interface {
	// Same is nil while the memory is the one that was registered.
	Same() error
}

// GPUMemory is an MR of a device's that reaches memory of a GPU by itself.
type GPUMemory interface {
	Renewable
	// How it does, for the log: "dmabuf", "nvidia_peermem".
	How() string
	// Distance of device and GPU: a topo.Closeness.
	Distance() topo.Closeness
	// Flush is a function of C's, void call(void *arg), that makes the GPU's work see what the device has written; nil: it sees that by
	// itself. Good until the rail is closed. Implements cuFlushGPUDirectRDMAWrites.
	Flush() (call, arg unsafe.Pointer)
}

// Importer is an Endpoint that maps the peer's memory.
type Importer interface {
	// Forget unmaps a region of the peer's, by the core's number of it; no operation names it any more. It may last milliseconds.
	Forget(region uint32)
}

// Endpoint talks to one peer.
type Endpoint interface {
	// Addr is what the peer's Connect wants. Implements fi_getname.
	Addr() []byte
	// Connect names the peer's endpoint; it does not wait for the peer. Implements fi_av_insert.
	Connect(peer []byte) error
	// Core is the `ep` of the ops table; valid until Close.
	Core() unsafe.Pointer
	// Close ends the peer's access to our memory through this endpoint and our own operations on it: when it has
	// returned the library no longer touches their local buffers. Implements fi_close.
	Close() error
}

// AcceptFilter is an Endpoint to which the peer connects over a network. Connect lets it in.
type AcceptFilter interface {
	// Admit says from which addresses the peer may come, besides that of its endpoint. Before Connect.
	Admit(from []netip.Addr)
	// Shut ends that: the peer is there, or does not come.
	Shut()
	// Ends are this side's address and port and the peer's, for messages; the peer's is empty before Connect.
	Ends() (own, peer string)
}

// MR is one registered range on one rail.
type MR interface {
	Key() uint64  // what the peer must present
	Base() uint64 // remote address of the range's first byte, as the wire wants it (0 where offsets are used)
	Desc() unsafe.Pointer
	Close() error
}
