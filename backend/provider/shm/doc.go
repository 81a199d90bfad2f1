// Package shm implements the provider for shared memory: copies by processors between two processes of one host, or
// within one process.
//
// The kernel allows process_vm_readv and process_vm_writev (CMA) on another process where ptrace would be allowed.
// Rail.Reach tries the access before a rail is used for a peer. docs/one-host.md has the design. Package cma, below, copies, posts and polls, in C.
// Package ipc identifies the peer's process, connects endpoints, and passes descriptors.
//
// # How a peer gets the file of mapped memory
//
// The table entry of the region says that there is a file. The first transfer to the region asks the descriptor server
// of its owner for it, in the background (mapper.go). The request needs the token in the owner's table. The
// server opens the file once more for each request, and sends that descriptor with the offset of the region. Files go
// to processes of the owner's user alone, also with local_peers=any-with-token. A region whose peers may only READ, or
// that is mapped without PROT_WRITE, is passed for reading. WRITEs then take the ring.
//
// # Copies
//
// Until the file is mapped, and if that fails, the ring serves. Then each copy is made as in the direct way: within an
// epoch, in turns of 256 KiB, after a look at the peer's table. The copying threads are those of the direct way. It is
// faster than the ring (one thread, beside other load: 256 KiB 5 us, 1 MiB 22 us, 64 MiB as long as memcpy).
//
// # Another file at the address
//
// The owner may map another file, or none, over a registered range. So it confirms each copy, as for GPU memory
// (docs/gpu.md, "Memory mapped anew"): the importer's question names the file (device, inode, offset), and the owner
// asks the kernel (PROCMAP_QUERY, Linux 6.11). A READ copies meanwhile, a WRITE afterwards. If the answer is no, the
// ring serves, by addresses, and the next transfer asks for the new file. The owner looks at its registered files four
// times a second, and when a question found a change (watch.go). While no file is mapped there, the ring serves; when
// a look finds one again, the next transfer asks for it. The log says so, once a minute at most. Memory that was
// private when it was registered is not looked at. Before Linux 6.11 an owner cannot tell cheaply: it gives out no
// files, and the ring serves. So do pieces below 32 KiB, whose owner copies as fast as it answers. A peer that
// transfers nothing more keeps a replaced file mapped until the region or the session ends. A copy that runs while the
// owner maps another file may still READ or WRITE the old one.
//
// # Untouched memory
//
// The kernel charges a page to the memory cgroup of the process that touches it first. So a file with holes in the
// region (SEEK_HOLE) is not mapped: the ring serves, and the owner touches its own pages. Later transfers try again,
// once a second.
//
// # The ring
//
// The target's endpoint owns the ring, and its peer, the initiator, maps it. The ring is a memfd of CMA_CHUNKS chunks.
// Their headers (cma_chunk) are in the endpoint's segment. The memfd has no pages before the first use. Its size is
// sealed. cma/chunks.c is the initiator, cma/serve.c the target.
//
//   - A work request of more than 16 KiB is cut into two chunks and more, so that both sides copy at once.
//   - Who copies: at either side a thread that polls, without the rail's lock (assist), or the progress thread.
//     Several threads may copy different chunks.
//   - A request is a bit in cma_shm.requested. The target clears the bit and answers in the chunk's header. A sleeping
//     side is woken by the doorbell.
//   - Nothing that the peer writes is trusted. The target reads a header once. It checks each piece against its own
//     table of regions, their remote_access, and that the memory is no GPU's.
//   - No process writes another's memory through a ring. So a deregistration waits for this process's own copies only,
//     and a stopped peer delays nothing.
//   - When a link ends, each side stops its own copies before it says so. The end of the peer shows at its pidfd, at
//     the closed socket, or at closed.
package shm
