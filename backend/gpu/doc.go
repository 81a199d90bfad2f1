// Package gpu is the GPU support of GORAIL: it queries pointers, maps memory of peers on the same host, and makes copies that
// are posted and polled without Go. It loads CUDA's driver library on demand and needs no toolkit.
//
// C code posts and polls (gr_gpu.h). Other C code calls it through Driver.Core: streams, jobs, tables, pinned memory. Go code
// registers and maps, which may take long. Both use one table of driver calls (cuda.go). docs/gpu.md has the ways of
// GPU memory, and their figures.
//
// # Files
//
// Below backend/gpu unless a path says otherwise:
//
//   - include/gr_gpu.h, core.go: the table of functions that post and poll, for all C code; a view of it for Go
//   - loader.c, cuda.go, cuda_go.h: dlopen of libcuda.so.1, entry points by version; errors; the same table, as Go
//     calls it. cuda_abi.h has the driver's interface in our own words, for CUDA 11.4 or newer
//   - device.c: primary contexts: retained on first use, pushed and popped around every call
//   - gpu.go, driver.go: opening and closing a driver; the types; errors and their meaning
//   - memory.go: the kind of memory behind a pointer; the handles of VMM memory (vmm; the walk is gc_handles_of in
//     cuda_go.h); host memory for copies (pinning)
//   - share.go, export.go: what a peer needs to map memory: an IPC handle, or a file descriptor for each VMM handle;
//     memory of ours that peers can map
//   - mapping.go, mapping_make.go: peers' memory, mapped once for each allocation and GPU
//   - proof.go: IPC handles between processes of equal number: "Containers" below
//   - export.go, core.go Flush, device.c: what other devices need: dmabufs, and the flush of their writes
//   - lazy.go, direct.go: for rails that register GPU memory: the descriptor is checked against the driver's answer; a
//     dmabuf is tried before the address
//   - arena.c: pinned memory for operations
//   - owned.c: the ranges that the driver gave us, so that no copy for the application takes them for its memory
//   - table.c: tables in GPU memory, one per core and GPU: the number to add to addresses of each remote region
//   - stream.c, post.c, copy_engine.c: CUDA streams of a pair of GPUs (gr_gpu_stream); jobs, posted, polled and
//     cancelled without Go
//   - packed.c, gr_pack.h, kernel/pack.cu: jobs that compress the application's pieces into a bounce buffer, and back
//   - gr_gather.h, kernel/: the kernel and its arguments. make.sh makes gather.ptx with clang 14 alone (PTX 6.0 for
//     sm_50, 78 registers on sm_90). TestPTX compares sources and PTX
//   - test/cuda: a libcuda.so.1 over memfds. Nobody may touch the addresses that it returns. Streams are threads with
//     random delays from a seed. Calls fail on demand, errors stick. IPC handles have process numbers, and GPUs can be
//     hidden. Tests ask who holds which memory (Behind, package test/held). App is an application beside it, also for
//     the real driver
//
// # Decisions
//
//   - The kernel reads operations where they are. The core's 32-byte gr_op lie in the arena. A launch names them, a
//     table or one delta, and a word. The kernel writes that word when all bytes are in place. Up to 128 operations
//     travel in the launch's parameter (3 KiB of 4). Reading one operation from the host costs the GPU a microsecond,
//     and readers of one address queue up.
//   - The cancel word is in the GPU's memory. A copy engine writes it, on a stream of its own. Pinned memory would be
//     simpler. But the host serves one read of an address per microsecond: 10,000 reads made 10,000 x 8 KiB take 9.3
//     ms instead of 0.23. The tables of deltas are there for the same reason. Both are written without waiting for any
//     copy. Numbers of launches are never reused, so a late cancel stops nothing.
//   - Each warp copies a slice by itself, with four words of 16 bytes per lane in flight. There is no barrier between
//     slices. The warp reads the descriptors of the next run during the copy. If the addresses of source and target
//     differ modulo 16, it copies words of 8, 4 or 1 bytes.
//   - Queued copies are waited for, whatever call fails after them. A copy without its event ends when the stream has
//     ended. If the driver answers neither yes nor no, GORAIL asks again. So a job that has ended touches nothing.
//   - Completion of a kernel copy is a word in pinned memory. The last block writes it after membar.sys. That comes
//     2.4 us before an event, and needs no call. Each 64th poll asks the stream if the context is still alive.
//   - Completion of a copy-engine copy is an event after each piece. Two pieces are queued, and polls queue the rest.
//     Pieces start at 64 MiB (host memory: 16 MiB). Then each is what takes 0.9 ms, within 16 to 256 MiB. A piece has
//     at most 8 operations.
//   - A mapping keeps the memory that it mapped, so the owner's death causes no fault (below). The driver's buffer id
//     says which memory a mapping is good for. The id is part of the mapping's name: memory that is freed and
//     allocated anew at the same address is never taken for the old.
//   - A range of several VMM handles is one range here, too. The owner makes descriptors when it sends them, and the
//     importer closes them when they are mapped. One of the callers that want the mapping brings the descriptors
//     (importer). The others see the mapping become ready.
//   - Memory of this process needs no mapping. VMM memory of another GPU gets a mapping of ours, since we must not
//     change the application's access rights.
//   - Fallback to copy engines. If the kernel cannot be loaded (no JIT library, JIT switched off, a PTX that is too
//     new), copy engines serve. One INFO line per GPU says why (Driver.Kernel).
//   - Blocks of a copy, also for staging, follow the figures below: a quarter of the SMs, 32 at most, between two GPUs
//     and towards host memory; as many as SMs within one GPU.
//   - A job that packs is a gather into the stream's scratch, gr_pack, and gr_pack_out, which writes the bounce buffer and
//     the job's word. Jobs of a stream follow each other, so one scratch serves all. A job that unpacks copies the packed
//     chunk first: a peer may still write to the bounce buffer. It clears the scratch text, since the gather that follows
//     a chunk that is none stops late: the peer would read there what another peer has sent.
//   - Drivers before CUDA 11.4 (R470) are refused: they lack the attributes of mappings.
//
// # Measurements
//
// C over the table of gr_gpu.h between two processes, GPU 0 to GPU 1 of two H200s with NVLink, driver 580.159.04: best
// of 8 to 200, from before the post until poll reports the end. The kernel has 264 blocks unless stated:
//
//   - 4 KiB: engine 6.4 us (post 1.4), kernel 8.7; one operation: engine
//   - 2 x 4 KiB, 16 x 4 KiB: engine 8.7, 34 us; kernel 8.7, 8.7; several: kernel
//   - 1 MiB: engine 9.1 us, kernel 11.3
//   - 16 x 1 MiB: engine 83 us, kernel 54
//   - 64 x 4 MiB, 64 x 16 MiB: engine 319, 367 GB/s; kernel 366, 369 GB/s; from 8 MiB an operation: engine
//   - 1 GiB: engine 390 GB/s in pieces of 64 MiB, 396 in one; kernel 370; 16 MiB pieces: 370; so pieces grow to 256
//     MiB if that takes 0.9 ms
//   - 64 x 8 KiB, 1,000 x 8 KiB: 10.1, 32 us; post 1.7 to 2.2 us, for any number
//   - 10,000 x 1 KiB: 38 us; 32 blocks 49
//   - 10,000 x 8 KiB: WRITE 232 us = 353 GB/s, READ 231; 1,000 by copy engine: 2.2 ms
//   - the same, 8, 16, 32, 48, 66, 99, 132, 264 blocks: WRITE 358, 277, 264, 253, 253, 232, 232, 232 us; READ 762,
//     413, 281, 241, 276, 233, 231, 231; default: a quarter of the SMs, 32 at most
//   - 100,000 x 8 KiB: 365 GB/s; 32 blocks 341
//   - with 32 blocks: 64 x 1 MiB; 200 x 1 MiB; 300 x 4 MiB: WRITE 339, 340, 351 GB/s; READ 337, 334, 346; four times
//     as many slices as warps. With as many slices as warps the last was READ 249
//   - 130 x 64 KiB, 300 x 64 KiB, 32 blocks: WRITE 256, 291 GB/s; READ 205, 224
//   - 10,000 x 8 KiB, alignments that differ by 8, 4, 1 bytes: 245, 271, 371 us; 32 blocks 314, 343, 1,234 us; one
//     byte at a time is slow
//   - VMM memory, 103 handles of 20 MiB, imported: all of the above within 1 %
//   - one GPU, two processes: 4 KiB 7.5 us, 10,000 x 8 KiB 53 us (132 blocks 60, 32: 141), 1 GiB 1.95 TB/s; default:
//     as many blocks as SMs
//   - host memory, pinned: engine: 4 KiB 7 us, 1 MiB 26 us, 55 GB/s; kernel 10,000 x 8 KiB 51 GB/s, engine 3; from 256
//     KiB an operation: engine
//   - cancel, worst of 10: kernel 175 us (32 blocks 80), engine 49 us; nothing else ran on the GPU
//
// # Answers of the driver
//
// memory.go relies on them:
//
//   - Attributes, cuMemRetainAllocationHandle, and queries of events and streams need no context. cuMemGetAddressRange
//     needs one.
//   - cuPointerGetAttributes takes base, size, device and handle types of a mapping in one call of 0.09 us, as long as
//     one attribute takes. A driver that refuses is asked for each.
//   - RANGE_START_ADDR of VMM memory spans handles. MAPPING_BASE_ADDR and MAPPING_SIZE are those of one handle.
//   - The driver refuses IPC handles of VMM, pool and managed memory.
//   - Opening an IPC handle twice in a context counts, and another context may open it, too.
//   - One dmabuf spans several handles of a range.
package gpu
