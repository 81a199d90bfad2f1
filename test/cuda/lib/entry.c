/* The list of calls, with the driver version that introduced each. */
#include <string.h>

#include "ct.h"

#define DECLARE(name, since, args) cu_result name args;
/* Calls that CU_ENTRIES of cuda_abi.h lacks, most of them for applications. Versions are those of the driver's documentation. */
#define ALSO(X) \
    X(cuDriverGetVersion, 2020, (int *version)) X(cuDevicePrimaryCtxGetState, 7000, (cu_device device, unsigned *flags, int *active)) \
    X(cuCtxGetCurrent, 4000, (cu_ctx *ctx)) X(cuCtxSynchronize, 2000, (void)) \
    X(cuMemGetInfo, 3020, (size_t *left, size_t *all)) \
    X(cuMemAllocManaged, 6000, (cu_ptr *ptr, size_t size, unsigned flags)) \
    X(cuMemAllocAsync, 11020, (cu_ptr *ptr, size_t size, cu_stream stream)) \
    X(cuMemcpyHtoD, 3020, (cu_ptr to, const void *from, size_t len)) X(cuMemcpyDtoH, 3020, (void *to, cu_ptr from, size_t len))
ALSO(DECLARE)

#define CALLS(X) \
    X(cuInit, 2000) X(cuGetErrorName, 6000) X(cuDeviceGetCount, 2000) X(cuDeviceGet, 2000) X(cuDeviceGetName, 2000) X(cuDeviceGetUuid, 11040) \
    X(cuDeviceTotalMem, 3020) X(cuDeviceGetAttribute, 2000) X(cuDeviceGetPCIBusId, 4010) X(cuDeviceCanAccessPeer, 4000) \
    X(cuDevicePrimaryCtxRetain, 7000) X(cuDevicePrimaryCtxRelease, 11000) X(cuCtxPushCurrent, 4000) X(cuCtxPopCurrent, 4000) \
    X(cuCtxGetStreamPriorityRange, 5050) X(cuCtxEnablePeerAccess, 4000) X(cuPointerSetAttribute, 6000) X(cuFlushGPUDirectRDMAWrites, 11030) X(cuPointerGetAttribute, 4000) X(cuPointerGetAttributes, 7000) \
    X(cuMemAlloc, 3020) X(cuMemFree, 3020) X(cuMemHostAlloc, 2020) X(cuMemFreeHost, 2000) X(cuMemHostRegister, 6050) \
    X(cuMemHostUnregister, 4000) X(cuIpcGetMemHandle, 4010) X(cuIpcOpenMemHandle, 11000) X(cuIpcCloseMemHandle, 4010) \
    X(cuMemRetainAllocationHandle, 11000) X(cuMemCreate, 10020) X(cuMemRelease, 10020) \
    X(cuMemExportToShareableHandle, 10020) X(cuMemImportFromShareableHandle, 10020) X(cuMemAddressReserve, 10020) \
    X(cuMemAddressFree, 10020) X(cuMemMap, 10020) X(cuMemUnmap, 10020) X(cuMemSetAccess, 10020) X(cuMemGetAccess, 10020) X(cuMemGetHandleForAddressRange, 11070) \
    X(cuStreamCreateWithPriority, 5050) X(cuStreamDestroy, 4000) X(cuStreamQuery, 2000) X(cuStreamSynchronize, 2000) X(cuEventCreate, 2000) \
    X(cuEventDestroy, 4000) X(cuEventRecord, 2000) X(cuEventQuery, 2000) X(cuMemcpyAsync, 4000) X(cuMemcpyHtoDAsync, 3020) \
    X(cuMemsetD8Async, 3020) X(cuModuleLoadDataEx, 2010) X(cuModuleUnload, 2000) X(cuModuleGetFunction, 2000) X(cuLaunchKernel, 4000) \
    X(cuThreadExchangeStreamCaptureMode, 10010)

#define DECLARED(name, since) extern void name##_(void) __asm__(#name);
CALLS(DECLARED)

/* The real driver returns the newest form of a call that is not newer than version. This library has one form of each call. */
cu_result cuGetProcAddress(const char *name, void **to, int version, uint64_t flags)
{
    static const struct { const char *name; int since; void (*call)(void); } calls[] = {
#define CALL(name, since) { #name, since, name##_ },
        CALLS(CALL)
#define CALL2(name, since, args) { #name, since, (void (*)(void))name },
        ALSO(CALL2)
    };
    *to = NULL;
    if (flags)
        return CU_INVALID_VALUE;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (strcmp(calls[i].name, name) == 0 && calls[i].since <= version && calls[i].since <= ct_switch[SW_version]) {
            memcpy(to, &calls[i].call, sizeof(*to));
            return CU_OK;
        }
    return CU_NOT_FOUND;
}
