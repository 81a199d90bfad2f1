// Package provider defines the interface between GORAIL and a fabric library. There is one implementation for each
// library:
//
//	provider/verbs   libibverbs
//	provider/ofi     libfabric
//	provider/tcp     sockets; NVLink between hosts, whose messages go over sockets
//	provider/shm     shared memory of one host
//	test/fake        in-process, for tests
//
// Package provider/auto lists them, and chooses between them.
//
// The folder of each provider has the same files, in this order: provider.go (Provider: Name, Discover, Open), rail.go,
// endpoint.go, mr.go, vram.go. Topics of its own come after them. Below it is one package with all its C: the binding of
// the library, or the data path.
//
// The Go side opens, registers and closes. Posting and polling happen in C, behind the ops table of
// include/gr_provider.h. Each Rail carries this table.
//
// # Go: what every provider has
//
// Four interfaces in backend/provider/provider.go:
//
//   - Provider: Discover lists devices, Open opens one; engine and rails when an engine is created; rails again for
//     devices that join late
//   - Rail: one opened device: endpoints, registration, what the device can do (Caps), the C rail (Core); any thread
//   - Endpoint: the local end of one peer's connection: address, connect, close; the session's goroutines
//   - MR: one registered range: key of a session, remote base address, local descriptor; any thread
//
// All else relies on the promise of Endpoint.Close. When Close has returned:
//
//   - The library touches no local buffer for that endpoint any more.
//   - The peer cannot access our memory through that endpoint any more.
//
// An error of Close says that this cannot be promised. An example is a stopped process of this host in the middle of a
// copy.
//
// A rail with a shared endpoint (one for all peers) cannot make the promise. It says so in three places, which must
// agree: Caps.SharedEndpoint, gr_rail.shared_ep, and gr_rail.is.private_ep = 0. The core then posts the receives of
// all peers on the shared endpoint. It keeps the contexts of posted operations until they complete. The engine drains
// links instead of fencing them.
//
// Register gets the access of peers. A rail passes it to the device, or checks it where it serves peers' requests. The
// initiator's engine refuses what is not allowed in any case, so a rail whose peers copy by themselves ignores it
// (conform trait AnyAccess).
//
// Errors wrap the sentinel of their phase (ErrNoDevice, ErrUnusable, ErrRegister, ErrEndpoint, ...). They name the
// device, the call and what to do.
//
// # Go: optional parts
//
// A rail, endpoint or MR may implement more. The engine finds out by a type assertion, and works without the part if
// it is not there. These ten are all (fake, for tests, has Listener):
//
//   - Enterer: Rail; registrations whose peers' part is made when a peer asks for keys (tcp)
//   - Watcher: Rail; reports when the device goes down and comes up; without it, the network interface's state counts.
//     verbs
//   - Mover: Rail; follows its interface to another address; without it, a rail stays on the address it has. verbs, tcp
//   - Reporter: Rail; warnings after it was opened, and how often its bounds took effect. tcp, shm
//   - Host: Rail; shared memory: whether it reaches a peer at all, before the rails pair; peers copy for each other, and
//     their memory, of GPUs and of the host, is mapped into this process. shm
//   - Mapper: Rail; its GPUs copy to memory of peers' GPUs that is mapped here. shm, NVLink (tcp)
//   - Lender: Rail; a Mapper between hosts: gives out handles of its memory over the control channel. The promise of
//     Endpoint.Close holds for peers that answer: an initiator ends its copies before it asks for a fence. A
//     deregistration whose REVOKE a peer has not answered reports that. NVLink (tcp)
//   - VRAM: Rail; registers GPU memory. verbs, ofi where the device is hardware, tcp, NVLink, shm
//   - GPUMemory: MR; GPU memory that the device reaches by itself. verbs, ofi
//   - Listener: Endpoint; connections over a network, which prove that they belong to the link, with secrets that it
//     gets before Connect: until when, from where, what is lost. tcp
//
// # C: what every provider has
//
// The rail's C structure begins with a gr_rail (backend/include/gr_provider.h). Its table gr_rail_ops begins with seven
// functions: rma, send, recv, poll, arm, reg and unreg. The core calls all of them with the rail's lock held. They
// never enter Go. Allocate the rail with calloc: gr_rail_init leaves most of limit, and all of is, unchanged.
//
// Fields of gr_rail say what the core may rely on. Each has a comment in the header:
//
//   - limit: iov_limit, tx_depth, rx_depth, max_msg (the same as Caps.MaxMsg), msg_size, window_min, window_ns
//   - is: ordered, chained, private_ep, completes_inline
//   - wait_fd:
//   - worker: the number of the core's thread that polls the rail; from Device.Shard, which comes of Device.Shards
//     (rails/choose.go)
//
// # C: extensions
//
// The rest of gr_rail_ops, and the pointer bulk of gr_rail. NULL means that there is none.
//
//   - flush: gathered posts go to the device in one call; used with the field gathered; verbs, tcp, fake
//   - assist: progress without the lock; shm, fake
//   - shut: the core is done with the rail; closes a shared endpoint, if there is one; ofi, fake
//   - round_trip: of an endpoint's path; the window of a long link has two of it more; tcp
//   - gr_rail_bulk: post, stop; without the lock ops_alloc, ops_free: GPU memory of a whole transfer is copied at
//     once; shm, fake
package provider
