package provider

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"gorail/backend/limits"
	"gorail/backend/option"
	"gorail/backend/topo"
	"gorail/backend/trust"
)

// Errors by phase. Implementations wrap them with the device, the option or limit, and the advice.
var (
	ErrNoLibrary  = errors.New("library cannot be loaded")
	ErrNoDevice   = errors.New("no usable device")
	ErrAbsent     = errors.New("there is no such hardware") // together with ErrNoDevice: nobody misses it
	ErrFiltered   = errors.New("no device matches option")  // devices exist, the option excludes all of them
	ErrUnusable   = errors.New("device is there but unusable")
	ErrNotThere   = errors.New("memory is not what its descriptor says") // together with ErrRegister
	ErrRegister   = errors.New("memory registration failed")
	ErrNoVRAM     = errors.New("the rail can't reach memory of GPUs") // together with ErrRegister: other memory of that GPU will fail too
	ErrEndpoint   = errors.New("endpoint failed")
	ErrBadAddress = errors.New("bad endpoint address")
)

// Words of the option provider. Auto leaves the choice to package auto. The others are the Device.Fabric of a provider's devices, and its name.
const (
	Auto         = "auto"
	Verbs        = "verbs"
	SharedMemory = "sm"
	TCP          = "tcp"
	NVLink       = "nvlink"     // memory of GPUs between hosts of one rack
	Libfabric    = "libfabric:" // before the name of a libfabric provider, where a fabric of ours has that name
)

// Provider finds and opens rails of one library.
type Provider interface {
	// Name returns the value of Device.Provider for the devices that Discover finds: "verbs", "ofi", "sm".
	Name() string
	// Discover lists the devices that fit the filter, best first. Discover opens no device. Devices that cannot be
	// opened now (Waits) are listed only if at least one other device can be opened.
	Discover(ctx context.Context, f Filter) ([]Device, error)
	// Open opens one device found by Discover.
	Open(d Device) (Rail, error)
}

// Filter narrows discovery.
type Filter struct {
	Fabrics []string // "verbs", "sm" and libfabric provider names, in order of preference; "auto" is for provider/auto only
	Devices []string // globs over device names; a leading '!' excludes; empty: all
}

// Patterns parses Devices. Numbers ("#0") match any device here: the code that chooses rails applies them.
func (f Filter) Patterns() (topo.Patterns, error) {
	p, err := topo.ParsePatterns(f.Devices)
	if err != nil {
		return nil, fmt.Errorf("%w: option devices: %w", ErrNoDevice, err)
	}
	return p, nil
}

// Device is a device that can become a rail.
type Device struct {
	Provider string // Provider.Name
	Fabric   string // "verbs", "sm" or libfabric's provider name: "net", "tcp", "efa", ...
	Name     string // domain or device name: "lo", "eth0", "mlx5_0"
	Net      string // network interface below the device, in this network namespace; "": the device is one itself, or none is known
	Subnet   string // a peer's device must have the same Subnet to be reachable, e.g. "192.0.2.0/24"; "" = any device of the same Fabric
	Addr     string // an IP address of the device for the control channel, "" if it has none
	Loopback bool   // reaches only this network namespace
	Host     bool   // reaches processes of this host through shared memory; preferred to all other devices
	Encrypts bool   // what leaves the host over it is encrypted
	Hardware bool   // RDMA hardware (as opposed to sockets)
	Mbps     uint64 // link speed in megabits per second, 0 = unknown
	NUMA     int    // NUMA node, -1 = unknown
	Waits    string // why the device cannot be opened now but may be later: "the port is DOWN"; "" = can be opened
	Confined bool   // reaches rails of its own Subnet alone: no router joins subnets. Counts in no limit of rails
	Shards   int    // rails that are opened of this device, each with a progress thread of its own; 0: one
	Shard    int    // which of them this is, from 0. Shard n pairs with the peer's shard n
	Opaque   any    // private to the provider
}

// Compare orders devices: those that leave the host first, then the faster ones, then by name.
func (d Device) Compare(to Device) int {
	near := map[bool]int{true: 1}
	return cmp.Or(near[d.Loopback]-near[to.Loopback], cmp.Compare(to.Mbps, d.Mbps), topo.Natural(d.Name, to.Name))
}

// Label names the rail of a device in messages: "tcp/eth0", and "tcp/eth0[2]" for its shard 2.
func (d Device) Label() string { return Label(d.Fabric, d.Name, d.Shard) }

// Label names a rail in messages.
func Label(fabric, name string, shard int) string {
	if shard > 0 {
		name = fmt.Sprintf("%s[%d]", name, shard)
	}
	return fabric + "/" + name
}

// CheckRange returns an error that wraps ErrRegister for a range of memory that is empty or wraps.
func (d Device) CheckRange(addr, length uint64) error {
	if length == 0 || addr+length < addr {
		return fmt.Errorf("%w: %s: range %#x + %d is empty or wraps", ErrRegister, d.Label(), addr, length)
	}
	return nil
}

// Caps describes an opened rail to the engine. The core reads the rail's gr_rail instead. Behaviour depends on these
// fields, never on a provider's name.
type Caps struct {
	ProviderKeys   bool   // the provider chooses keys; otherwise the caller does
	OwnKeys        bool   // a registration costs less than a look for another one around it, so none is shared: each has a key of its own
	KeySize        int    // bytes of a key
	Bulk           bool   // copies whole ranges of GPU memory through gr_rail_bulk; otherwise GPU memory moves like host memory, if the rail takes it
	PinsMemory     bool   // registration pins the memory, and its time grows with the size; otherwise it adds a table entry
	SharedEndpoint bool   // one endpoint serves all peers, so closing it is no fence; otherwise closing an endpoint ends the access of its one peer
	Descriptors    int    // file descriptors that one endpoint and its connection use in this process
	MaxMR          uint64 // largest registration in bytes; 0: any size
	MaxMsg         uint64 // bytes of one work request
	VRAMOnly       bool   // takes memory of GPUs, and host memory that Lender.TakesHost, in bulk alone
	Bounces        uint64 // GPU memory moves through bounce buffers of the rail, at most so many bytes a transfer; 0: GPU memory moves directly, if the rail takes it
	PreferUnsplit  uint64 // largest work request, in bytes, that should stay unsplit because the rail copies it as one; 0: the options decide
}

// Rail is one opened device. Its methods are safe for concurrent use.
type Rail interface {
	Device() Device
	Caps() Caps
	// Notes returns warnings for the operator: requests that the device cannot meet, or meets only by a detour.
	Notes() []string
	// Core returns the device's gr_rail (include/gr_provider.h); valid until Close.
	Core() unsafe.Pointer
	// OpenEndpoint opens an endpoint for exactly one peer. Implements fi_endpoint, fi_enable.
	OpenEndpoint() (Endpoint, error)
	// Register makes memory reachable for local and remote operations. key is the requested key if the caller chooses
	// keys. The memory need not be mapped yet if the fabric allows that. peers is what peers may do with the memory; a
	// fabric whose peers copy by themselves (sm) cannot enforce it. Implements fi_mr_regattr.
	Register(addr, length, key uint64, peers option.Rights) (MR, error)
	// Later reports that Register has the same result now and later, while the memory stays mapped: it pins nothing, and
	// looks at nothing that may change. The application's registration then returns before Register is called.
	Later(addr, length uint64) bool
	// Close closes the device. All its endpoints and regions must be closed before.
	Close() error
}

// Endpoint talks to one peer. A session calls Connect without its lock, where it may take long: Close may come meanwhile.
type Endpoint interface {
	// Addr returns the address for the peer's Connect. Implements fi_getname.
	Addr() []byte
	// Connect sets the peer's endpoint. Connect does not wait for the peer. Implements fi_av_insert.
	Connect(peer []byte) error
	// Core returns the `ep` of the ops table; valid until Close.
	Core() unsafe.Pointer
	// Close ends the peer's access to our memory through this endpoint, and our own operations on the endpoint. After
	// Close has returned, the library no longer touches their local buffers, unless the error is a GPUBusy. Implements fi_close.
	Close() error
}

// GPUBusy is the error of Endpoint.Close if a GPU of this process has not ended copies of the endpoint within a second after they
// were cancelled. The endpoint is closed all the same. What the GPU may still touch stays allocated until polls find the copies
// ended. The operations get no completion: the core ends them.
type GPUBusy struct {
	Err  error
	Over func() bool // all such copies of the rail have ended, or the rail is closed. Takes a lock of the rail
}

func (e *GPUBusy) Error() string { return e.Err.Error() }
func (e *GPUBusy) Unwrap() error { return e.Err }

// Salt makes the keys of a session. Both ends have it, and no other session.
type Salt = [16]byte

// MR is one registered range on one rail.
type MR interface {
	// Key returns the key that the peer must present in the session with this salt. Where keys differ between sessions, no session can use
	// another's (tcp). Else it is the same for all.
	Key(s Salt) uint64
	Base() uint64 // remote address of the range's first byte in the wire's form (0 if the fabric uses offsets)
	Desc() unsafe.Pointer
	// Same returns nil while GPU memory is still what was registered: its owner may have freed it since. Host memory: always.
	Same() error
	Close() error
}

// Below are the optional parts: the comment of the package says who has them.

// Enterer is a Rail that makes what only peers need of a registration when a peer asks for its keys. EnterAll does so for several at once; else MR.Key
// does. It skips those that have it or are closed, tries all, and returns the first error. MR.Key is 0 for those that failed: peers get none.
type Enterer interface {
	EnterAll(list []MR) error
}

// Watcher is a Rail that reports when its device goes down and comes up. For other rails, the network interface reports
// that.
type Watcher interface {
	// Watch calls report from one goroutine until ctx ends. The rail must stay open until Watch has returned.
	Watch(ctx context.Context, report func(up bool, why string)) error
}

// Mover is a Rail whose interface may get another address while the rail is open.
type Mover interface {
	// Move gives the rail another address of its interface, of the family of its own. Endpoints that are opened later have it, and connections
	// begin from it. Those that are open keep the old one, and need a fence. On error nothing has changed.
	Move(to netip.Prefix) error
}

// Reporter is a Rail that finds problems after it was opened, and has bounds of its own for what peers take.
type Reporter interface {
	// Warnings returns the warnings since the last call. The operator should act on them.
	Warnings() []string
	// Limited returns how often each bound took effect since the rail was opened.
	Limited() map[limits.Limit]uint64
	// Packed returns the bytes that went out compressed (option compression), and how many they became.
	Packed() (before, after uint64)
}

// Host is the rail of shared memory: its peers are processes of this host, which copy for each other and map each other's memory.
type Host interface {
	// Proof returns data that travels with the rail's offer: equal subnets do not decide whether the rail reaches a peer.
	Proof() []byte
	// Reach tests whether the rail reaches the peer with this proof, before the rails pair. way is "" if it does so in the best way. Otherwise
	// way names the way, and in parentheses why it is not the best: "ring, mapped where it is a shared memory file (the peer is in another pid namespace)". The
	// error names the obstacle and the remedy.
	Reach(proof []byte) (way string, err error)
	// Assisted returns the bytes that we have copied for peers, and the bytes that peers have copied for us.
	Assisted() (forPeers, byPeers uint64)
	Mapper
	// Mapped returns the bytes that went through mappings of peers' host memory.
	Mapped() uint64
	// ForgetKey unmaps the region of host memory that the peer's key names, as Forget does. The memory stays mapped until copies under
	// way have ended.
	ForgetKey(of Endpoint, key uint64)
	// Recheck looks at registered files, and at peers' files that are mapped here, and gives up those that were replaced. It returns false
	// if there was nothing to look at: it need not be called again until Changed says so.
	Recheck() (more bool)
	// Reports returns the messages for the operator since the last call.
	Reports() []string
}

// Mapper is a Rail that maps memory of peers' GPUs. Hosts are Mappers, too.
type Mapper interface {
	// Mapping reports whether a mapping of a peer's memory is still under way.
	Mapping() bool
	// Forget unmaps a region of GPU memory of an endpoint's peer, named by the core's number. No operation uses the region any more. The call
	// may take milliseconds.
	Forget(of Endpoint, region uint32)
	// Changed returns a channel that receives after a peer has found memory of ours that is no longer what was registered: it uses what was
	// behind an address when it mapped it.
	Changed() <-chan struct{}
	// LastError returns why the last failed copy of GPU memory failed; "" if none failed.
	LastError() string
}

// Lender is a Mapper between hosts (NVLink): the owner of memory gives out handles of it, over the control channel.
type Lender interface {
	Mapper
	// Handles returns handles of the region with that base and that key under the salt, from the first on, `most` at most. It takes
	// 0.1 to 0.5 ms a handle. The error is a gpu.Why.
	Handles(salt Salt, key, base uint64, first, most int) (Handles, error)
	// TakesHost reports that Register takes host memory. It is asked at each registration of such memory.
	TakesHost(addr, length uint64) bool
}

// Handles describe memory of a GPU, for the driver of another host.
type Handles struct {
	Share []byte // a gpu.Share
	List  []byte // of wire.HandleSize bytes each
}

// VRAM is a Rail that moves GPU memory.
type VRAM interface {
	// RegisterVRAM makes GPU memory reachable. device is the GPU that the caller names, in the driver's numbering. The
	// error wraps ErrRegister. It also wraps ErrNotThere if the memory does not match the arguments. It wraps ErrNoVRAM
	// if the rail, the driver or the kernel can never do it. No GPU is touched before the first call. The MR is a
	// GPUMemory if the device accesses the memory directly.
	RegisterVRAM(addr, length uint64, device int, peers option.Rights) (MR, error)
}

// GPUMemory is an MR of GPU memory that the device accesses directly.
type GPUMemory interface {
	MR
	// How returns the access method for the log: "dmabuf", "nvidia_peermem".
	How() string
	// Distance returns the distance between device and GPU: a topo.Closeness.
	Distance() topo.Closeness
	// Flush returns a C function, void call(void *arg). A call makes the device's writes visible to the GPU's work.
	// nil: they are visible without a call. Valid until the rail is closed. Implements cuFlushGPUDirectRDMAWrites.
	Flush() (call, arg unsafe.Pointer)
}

// Security is what both ends of a link know, and nobody else. Both derive it from the secret of their session.
type Security struct {
	Initiator bool                                   // the session's initiator: it makes the connections
	Link      func(t trust.Ticket) *trust.LinkSecret // of the link and its epoch; the target draws the ticket. Any thread. The caller wipes it
	Keys      Salt                                   // of the session's keys of regions: see MR.Key
	// Asks the peer for handles of a region of its, as Lender.Handles gives them. nil at a target. The error is a gpu.Why, or why there is no answer.
	Handles func(ctx context.Context, key, base uint64, first uint32) (Handles, error)
}

// Listener is an Endpoint to which the peer connects over a network, from Connect on, or which connects to the peer. Its connections prove that
// they belong to its link, with secrets of the session.
type Listener interface {
	// Secure is called once, before Connect. Connect fails without it.
	Secure(s Security)
	// Shut admits no peer any more: the peer has connected, or will not.
	Shut()
	// Ends returns address and port of this side and of the peer, for messages. The peer's is empty before Connect.
	Ends() (own, peer string)
	// Unanswered reports that the kernel sends bytes of the connection again and again, and gets no acknowledgement: the network to the peer is cut, or loses
	// much. A peer whose process is stopped acknowledges. settled: what was sent last had the time for an answer, and a call before this one.
	Unanswered(settled bool) bool
	// Packets says which packets of the connection do not arrive ("": none is known to be lost), and the counters behind that. alive: small
	// packets get through to the peer on another connection. No counters: there is no connection now.
	Packets(alive bool) (lost, counters string)
	// Copying returns how many operations wait for a GPU of this process alone. A long copy is no silent rail: option xfer_timeout ends one that a GPU
	// never ends.
	Copying() int
}
