/* The names of all switches, counters and calls that tests may change, read or make fail. */
#ifndef CT_SWITCHES_H
#define CT_SWITCHES_H

/* name, initial value, effect */
#define CT_SWITCHES(X) \
    X(devices, 2, "number of GPUs, at most 8") \
    X(version, 13000, "the driver's CUDA version; entry points of later versions are missing") \
    X(init, 0, "the CUresult of cuInit") \
    X(pid, 0, "the process's number as IPC handles have it; 0: getpid()") \
    X(layout, 0, "IPC handles: 0: the owner's number is the word at byte 8; 1: it is elsewhere; 2: that word also selects the memory; 3: that word is verified") \
    X(hidden, 0, "a bit for each GPU of the machine whose device node this process cannot open") \
    X(jit, 0, "the CUresult of loading PTX; 221 no compiler, 223 switched off") \
    X(compiling, 0, "1: loading PTX does not end") \
    X(ptx, 90, "newest PTX .version that the driver knows, 90: 9.0") \
    X(peers, 1, "1: GPUs can access each other's memory") \
    X(dmabuf, 1, "1: memory can be exported as dmabufs") \
    X(slow_import, 0, "microseconds that the import of a handle takes") \
    X(fabric, 0, "1: VMM memory can be shared over NVLink between hosts") \
    X(fabric_result, 0, "with an IMEX domain: the CUresult of all calls about fabric handles; 0: the domain decides") \
    X(fabric_local, 0, "1: handles of processes of the same node cannot be imported: 101, as between containers") \
    X(dmabuf_pcie, 1, "1: dmabufs of the path past C2C, too; 0: the driver does not know the flag") \
    X(writes_order, 100, "order of other devices' writes, a CUflushGPUDirectRDMAWritesScope; 0: none, a flush is needed") \
    X(mappings, 1, "1: cuPointerGetAttributes takes the attributes of mappings; 0: it refuses them") \
    X(late, 200, "longest random delay before each task of a stream, in microseconds") \
    X(seed, 1, "seed of that delay") \
    X(op, 0, "additional microseconds that the kernel takes for each operation") \
    X(hold, 0, "1: streams do no work") \
    X(spoil, 0, "1: what the GPU packs is no packed chunk") \
    X(capturing, 0, "1: a thread captures a graph in mode global: many calls are breaches in threads that are not relaxed")

/* Open objects first, up to modules. Then counts of calls and work. */
#define CT_COUNTERS(X) \
    X(contexts, "primary contexts retained") \
    X(pushed, "contexts pushed and not popped, of all threads") \
    X(relaxed, "threads with capture mode relaxed") \
    X(mems, "allocations by cuMemAlloc, cuMemAllocManaged and cuMemAllocAsync") \
    X(ipc_maps, "open IPC handles; every open counts") \
    X(reservations, "address ranges reserved") \
    X(vmm_maps, "VMM handles mapped") \
    X(handles, "references to VMM handles") \
    X(hosts, "pinned allocations") \
    X(registered, "ranges of host memory registered") \
    X(streams, "streams") \
    X(events, "events") \
    X(modules, "modules loaded") \
    X(launches, "kernels launched") \
    X(blocks, "blocks of those kernels") \
    X(copies, "copies queued") \
    X(copied_host, "queued copies to or from host memory") \
    X(ipc_opens, "IPC handles newly mapped") \
    X(imports, "VMM handles imported") \
    X(exports, "VMM handles exported") \
    X(dmabufs, "dmabufs exported") \
    X(dmabufs_pcie, "dmabufs exported for the path past C2C") \
    X(asked, "calls that ask for attributes of a pointer") \
    X(synced, "calls that set CU_POINTER_ATTRIBUTE_SYNC_MEMOPS") \
    X(flushes, "flushes of other devices' writes") \
    X(waits, "calls of cuStreamSynchronize") \
    X(idle_waits, "calls that had to wait for all work of the GPUs")

/* Calls that a test can make fail. The names lack the prefix "cu". */
#define CT_CALLS(X) \
    X(DeviceGet) X(DevicePrimaryCtxRetain) X(CtxPushCurrent) X(CtxEnablePeerAccess) X(PointerGetAttributes) X(MemAlloc) X(MemHostAlloc) \
    X(MemHostRegister) X(IpcGetMemHandle) X(IpcOpenMemHandle) X(MemRetainAllocationHandle) X(MemCreate) X(MemExportToShareableHandle) \
    X(MemImportFromShareableHandle) X(MemAddressReserve) X(MemMap) X(MemSetAccess) X(StreamCreateWithPriority) X(EventCreate) \
    X(EventRecord) X(EventQuery) X(StreamQuery) X(StreamSynchronize) X(MemcpyAsync) X(MemcpyHtoDAsync) X(MemsetD8Async) X(ModuleLoadDataEx) \
    X(ModuleGetFunction) X(LaunchKernel) X(DeviceGetUuid) X(CtxGetStreamPriorityRange) X(MemGetHandleForAddressRange) X(FlushGPUDirectRDMAWrites)

#define CT_SW(name, value, what) SW_##name,
#define CT_CT(name, what) CT_##name,
#define CT_CL(name) CALL_##name,
enum { CT_SWITCHES(CT_SW) SW_COUNT };
enum { CT_COUNTERS(CT_CT) CT_COUNT };
enum { CT_CALLS(CT_CL) CALL_COUNT };

#endif
