/* Everything that tests may change, count or break, by name. */
#ifndef CT_SWITCHES_H
#define CT_SWITCHES_H

/* name, value at first, what it does */
#define CT_SWITCHES(X) \
    X(devices, 2, "GPUs there are, up to 8") \
    X(version, 13000, "of CUDA that the driver is for; entry points of later ones are missing") \
    X(init, 0, "what cuInit says: a CUresult") \
    X(jit, 0, "what loading PTX says: a CUresult; 221 no compiler, 223 switched off") \
    X(ptx, 90, "newest .version of PTX that is known, 90: 9.0") \
    X(peers, 1, "GPUs have access to each other") \
    X(dmabuf, 1, "memory can be had as dmabufs") \
    X(slow_import, 0, "microseconds that importing a descriptor takes") \
    X(fabric, 0, "VMM memory can be had for NVLink between hosts") \
    X(dmabuf_pcie, 1, "those past C2C, too; 0: the driver does not know the flag") \
    X(writes_order, 100, "of other devices' writes: CUflushGPUDirectRDMAWritesScope's, 0: none, a flush is needed") \
    X(late, 200, "microseconds, at most, that each piece of work of a stream waits for") \
    X(seed, 1, "of how long that is") \
    X(op, 0, "microseconds that the kernel takes for an operation more") \
    X(hold, 0, "1: streams stand still")

/* objects first: what is open; then what was done */
#define CT_COUNTERS(X) \
    X(contexts, "primary contexts retained") \
    X(pushed, "contexts pushed and not popped, all threads") \
    X(mems, "allocations of cuMemAlloc and its like") \
    X(ipc_maps, "mappings of IPC handles, each opening counted") \
    X(reservations, "address ranges reserved") \
    X(vmm_maps, "handles mapped") \
    X(handles, "VMM handles, each reference counted") \
    X(hosts, "pinned allocations") \
    X(registered, "ranges of host memory registered") \
    X(streams, "streams") \
    X(events, "events") \
    X(modules, "modules loaded") \
    X(launches, "kernels launched") \
    X(blocks, "blocks of them") \
    X(copies, "copies queued") \
    X(copied_host, "those of them that touch host memory") \
    X(ipc_opens, "IPC handles opened anew") \
    X(imports, "descriptors imported") \
    X(exports, "descriptors made") \
    X(dmabufs, "dmabufs made") \
    X(dmabufs_pcie, "those of them past C2C") \
    X(synced, "calls that make copies of an allocation synchronous") \
    X(flushes, "flushes of other devices' writes") \
    X(waits, "calls that wait for a stream")

/* Calls that can be made to fail, by what follows "cu". */
#define CT_CALLS(X) \
    X(DeviceGet) X(DevicePrimaryCtxRetain) X(CtxPushCurrent) X(CtxEnablePeerAccess) X(PointerGetAttributes) X(MemAlloc) X(MemHostAlloc) \
    X(MemHostRegister) X(IpcGetMemHandle) X(IpcOpenMemHandle) X(MemRetainAllocationHandle) X(MemExportToShareableHandle) \
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
