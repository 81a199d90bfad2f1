/* The part of the CUDA driver's binary interface that we use, declared here, so that no CUDA toolkit is needed to build.
 * The values come from the driver's documentation. Each entry point is requested in a named version: a newer driver then
 * gives the form that we know. */
#ifndef GORAIL_CUDA_ABI_H
#define GORAIL_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int cu_result;
typedef int cu_device;
typedef uint64_t cu_ptr;
typedef uint64_t cu_mem; /* CUmemGenericAllocationHandle */
typedef struct CUctx_st *cu_ctx;
typedef struct CUstream_st *cu_stream;
typedef struct CUevent_st *cu_event;
typedef struct CUmod_st *cu_module;
typedef struct CUfunc_st *cu_function;

enum {
    CU_OK = 0,
    CU_INVALID_VALUE = 1,
    CU_OUT_OF_MEMORY = 2,
    CU_NOT_INITIALIZED = 3,
    CU_DEINITIALIZED = 4,
    CU_STUB = 34,
    CU_NO_DEVICE = 100,
    CU_INVALID_DEVICE = 101,
    CU_INVALID_CONTEXT = 201,
    CU_MAP_FAILED = 205,
    CU_ALREADY_MAPPED = 208,
    CU_ECC = 214,
    CU_PEER_UNSUPPORTED = 217,
    CU_INVALID_PTX = 218,
    CU_NO_JIT = 221,
    CU_PTX_VERSION = 222,
    CU_JIT_OFF = 223,
    CU_INVALID_HANDLE = 400,
    CU_OS = 304,
    CU_NOT_FOUND = 500,
    CU_NOT_READY = 600,
    CU_ILLEGAL_ADDRESS = 700,
    CU_LAUNCH_TIMEOUT = 702,
    CU_PEER_ENABLED = 704,
    CU_CONTEXT_DESTROYED = 709,
    CU_ASSERT = 710,
    CU_TOO_MANY_PEERS = 711,
    CU_HOST_REGISTERED = 712,
    CU_HOST_NOT_REGISTERED = 713,
    CU_HARDWARE_STACK = 714,
    CU_ILLEGAL_INSTRUCTION = 715,
    CU_MISALIGNED = 716,
    CU_ADDRESS_SPACE = 717,
    CU_INVALID_PC = 718,
    CU_LAUNCH_FAILED = 719,
    CU_NOT_PERMITTED = 800,
    CU_NOT_SUPPORTED = 801,
};

/* CUdevice_attribute */
enum {
    CU_DEV_SMS = 16,
    CU_DEV_UNIFIED = 41,
    CU_DEV_HOST_POINTER = 91,
    CU_DEV_VMM = 102,
    CU_DEV_POSIX_FD = 103,
    CU_DEV_VMM_RDMA = 110,
    CU_DEV_FLUSH_OPTIONS = 117,
    CU_DEV_WRITES_ORDERING = 118,
    CU_DEV_DMABUF = 124,
    CU_DEV_FABRIC = 128,
};

/* CUpointer_attribute */
enum {
    CU_PTR_TYPE = 2,
    CU_PTR_SYNC_MEMOPS = 6,
    CU_PTR_BUFFER = 7,
    CU_PTR_MANAGED = 8,
    CU_PTR_DEVICE = 9,
    CU_PTR_START = 11,
    CU_PTR_SIZE = 12,
    CU_PTR_HANDLE_TYPES = 14,
    CU_PTR_ACCESS = 16,
    CU_PTR_POOL = 17,
    CU_PTR_MAPPING_SIZE = 18,
    CU_PTR_MAPPING_BASE = 19,
};
enum { CU_TYPE_HOST = 1, CU_TYPE_DEVICE = 2 };

enum { CU_STREAM_NON_BLOCKING = 1, CU_CAPTURE_RELAXED = 2, CU_EVENT_NO_TIMING = 2, CU_IPC_LAZY_PEER = 1, CU_HANDLE_FD = 1, CU_HANDLE_FABRIC = 8, CU_RANGE_DMABUF = 1 };
/* How devices reach memory behind a dmabuf: over the platform's default path, or over the GPU's own PCIe past C2C (12.8). */
enum { CU_RANGE_PLAIN = 0, CU_RANGE_PCIE = 1 };
/* CU_DEV_WRITES_ORDERING: ordering of writes by other devices. CU_DEV_FLUSH_OPTIONS: a bit mask. */
enum { CU_WRITES_UNORDERED = 0, CU_WRITES_TO_OWNER = 100, CU_WRITES_TO_ALL = 200, CU_FLUSH_BY_HOST = 1, CU_FLUSH_CURRENT = 0 };
enum { CU_HOST_PORTABLE = 1, CU_HOST_MAPPED = 2 };
enum { CU_LOCATION_DEVICE = 1, CU_LOCATION_HOST_NUMA = 3, CU_ACCESS_NONE = 0, CU_ACCESS_READ = 1, CU_ACCESS_READWRITE = 3 };

typedef struct cu_uuid {
    uint8_t bytes[16];
} cu_uuid;

typedef struct cu_ipc {
    uint8_t bytes[64];
} cu_ipc;

typedef struct cu_location {
    int type, id;
} cu_location;

typedef struct cu_access {
    cu_location location;
    int flags;
} cu_access;

typedef struct cu_alloc_prop { /* CUmemAllocationProp */
    int type;                  /* 1: pinned */
    int handle_types;
    cu_location location;
    void *win32;
    struct {
        uint8_t compression, rdma;
        uint16_t usage;
        uint8_t reserved[4];
    } flags;
} cu_alloc_prop;
_Static_assert(sizeof(cu_access) == 12 && sizeof(cu_alloc_prop) == 32, "the driver's layout");

/* field, entry point, driver version that introduced this form, needed (0: may be missing), arguments */
#define CU_ENTRIES(X)                                                                                                                                \
    X(init, "cuInit", 2000, 1, (unsigned flags))                                                                                                     \
    X(error_name, "cuGetErrorName", 6000, 1, (cu_result result, const char **name))                                                                  \
    X(device_count, "cuDeviceGetCount", 2000, 1, (int *count))                                                                                       \
    X(device_get, "cuDeviceGet", 2000, 1, (cu_device * device, int ordinal))                                                                         \
    X(device_name, "cuDeviceGetName", 2000, 1, (char *name, int len, cu_device device))                                                              \
    X(device_uuid, "cuDeviceGetUuid", 11040, 1, (cu_uuid * uuid, cu_device device))                                                                  \
    X(device_memory, "cuDeviceTotalMem", 3020, 1, (size_t *bytes, cu_device device))                                                                 \
    X(device_attr, "cuDeviceGetAttribute", 2000, 1, (int *value, int attribute, cu_device device))                                                   \
    X(device_pci, "cuDeviceGetPCIBusId", 4010, 1, (char *id, int len, cu_device device))                                                             \
    X(device_peer, "cuDeviceCanAccessPeer", 4000, 1, (int *can, cu_device device, cu_device peer))                                                   \
    X(primary_retain, "cuDevicePrimaryCtxRetain", 7000, 1, (cu_ctx * ctx, cu_device device))                                                         \
    X(primary_release, "cuDevicePrimaryCtxRelease", 11000, 1, (cu_device device))                                                                    \
    X(ctx_push, "cuCtxPushCurrent", 4000, 1, (cu_ctx ctx))                                                                                           \
    X(ctx_pop, "cuCtxPopCurrent", 4000, 1, (cu_ctx * ctx))                                                                                           \
    X(ctx_priorities, "cuCtxGetStreamPriorityRange", 5050, 1, (int *least, int *greatest))                                                           \
    X(ctx_enable_peer, "cuCtxEnablePeerAccess", 4000, 1, (cu_ctx peer, unsigned flags))                                                              \
    X(ptr_attr, "cuPointerGetAttribute", 4000, 1, (void *value, int attribute, cu_ptr ptr))                                                          \
    X(ptr_attrs, "cuPointerGetAttributes", 7000, 1, (unsigned count, int *attributes, void **values, cu_ptr ptr))                                    \
    X(ptr_set, "cuPointerSetAttribute", 6000, 0, (const void *value, int attribute, cu_ptr ptr))                                                     \
    X(flush_writes, "cuFlushGPUDirectRDMAWrites", 11030, 0, (int target, int scope))                                                                 \
    X(mem_alloc, "cuMemAlloc", 3020, 1, (cu_ptr * ptr, size_t size))                                                                                 \
    X(mem_free, "cuMemFree", 3020, 1, (cu_ptr ptr))                                                                                                  \
    X(host_alloc, "cuMemHostAlloc", 2020, 1, (void **ptr, size_t size, unsigned flags))                                                              \
    X(host_free, "cuMemFreeHost", 2000, 1, (void *ptr))                                                                                              \
    X(host_register, "cuMemHostRegister", 6050, 1, (void *ptr, size_t size, unsigned flags))                                                         \
    X(host_unregister, "cuMemHostUnregister", 4000, 1, (void *ptr))                                                                                  \
    X(ipc_get, "cuIpcGetMemHandle", 4010, 1, (cu_ipc * handle, cu_ptr ptr))                                                                          \
    X(ipc_open, "cuIpcOpenMemHandle", 11000, 1, (cu_ptr * ptr, cu_ipc handle, unsigned flags))                                                       \
    X(ipc_close, "cuIpcCloseMemHandle", 4010, 1, (cu_ptr ptr))                                                                                       \
    X(vmm_retain, "cuMemRetainAllocationHandle", 11000, 1, (cu_mem * handle, void *ptr))                                                             \
    X(vmm_create, "cuMemCreate", 10020, 1, (cu_mem * handle, size_t size, const cu_alloc_prop *prop, unsigned long long flags))                        \
    X(vmm_release, "cuMemRelease", 10020, 1, (cu_mem handle))                                                                                        \
    X(vmm_export, "cuMemExportToShareableHandle", 10020, 1, (void *shared, cu_mem handle, int type, unsigned long long flags))                       \
    X(vmm_import, "cuMemImportFromShareableHandle", 10020, 1, (cu_mem * handle, void *shared, int type))                                             \
    X(vmm_reserve, "cuMemAddressReserve", 10020, 1, (cu_ptr * ptr, size_t size, size_t align, cu_ptr at, unsigned long long flags))                  \
    X(vmm_free, "cuMemAddressFree", 10020, 1, (cu_ptr ptr, size_t size))                                                                             \
    X(vmm_map, "cuMemMap", 10020, 1, (cu_ptr ptr, size_t size, size_t offset, cu_mem handle, unsigned long long flags))                              \
    X(vmm_unmap, "cuMemUnmap", 10020, 1, (cu_ptr ptr, size_t size))                                                                                  \
    X(vmm_access, "cuMemSetAccess", 10020, 1, (cu_ptr ptr, size_t size, const cu_access *access, size_t count))                                      \
    X(vmm_allowed, "cuMemGetAccess", 10020, 0, (unsigned long long *flags, const cu_location *location, cu_ptr ptr))                                      \
    X(range_handle, "cuMemGetHandleForAddressRange", 11070, 0, (void *handle, cu_ptr ptr, size_t size, int type, unsigned long long flags))          \
    X(capture_mode, "cuThreadExchangeStreamCaptureMode", 10010, 0, (int *mode))                                                                      \
    X(stream_create, "cuStreamCreateWithPriority", 5050, 1, (cu_stream * stream, unsigned flags, int priority))                                      \
    X(stream_destroy, "cuStreamDestroy", 4000, 1, (cu_stream stream))                                                                                \
    X(stream_query, "cuStreamQuery", 2000, 1, (cu_stream stream))                                                                                    \
    X(stream_sync, "cuStreamSynchronize", 2000, 1, (cu_stream stream))                                                                               \
    X(event_create, "cuEventCreate", 2000, 1, (cu_event * event, unsigned flags))                                                                    \
    X(event_destroy, "cuEventDestroy", 4000, 1, (cu_event event))                                                                                    \
    X(event_record, "cuEventRecord", 2000, 1, (cu_event event, cu_stream stream))                                                                    \
    X(event_query, "cuEventQuery", 2000, 1, (cu_event event))                                                                                        \
    X(copy, "cuMemcpyAsync", 4000, 1, (cu_ptr to, cu_ptr from, size_t len, cu_stream stream))                                                        \
    X(copy_in, "cuMemcpyHtoDAsync", 3020, 1, (cu_ptr to, const void *from, size_t len, cu_stream stream))                                            \
    X(fill, "cuMemsetD8Async", 3020, 1, (cu_ptr to, unsigned char value, size_t len, cu_stream stream))                                              \
    X(module_load, "cuModuleLoadDataEx", 2010, 1, (cu_module * module, const void *image, unsigned n, int *options, void **values))                  \
    X(module_unload, "cuModuleUnload", 2000, 1, (cu_module module))                                                                                  \
    X(module_function, "cuModuleGetFunction", 2000, 1, (cu_function * function, cu_module module, const char *name))                                 \
    X(launch, "cuLaunchKernel", 4000, 1,                                                                                                             \
      (cu_function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, cu_stream stream,        \
       void **params, void **extra))

#define CU_FIELD(field, name, version, needed, args) cu_result(*field) args;
typedef struct cu_calls {
    CU_ENTRIES(CU_FIELD)
} cu_calls;

#endif
