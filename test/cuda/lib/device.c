/* Devices and primary contexts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ct.h"

int ct_ready;
struct CUctx_st ct_ctx[CT_DEVICES];
__thread int ct_depth;
static __thread cu_ctx stack[16];

cu_ctx ct_current(void) { return ct_depth ? stack[ct_depth - 1] : NULL; }

enum { MODE_GLOBAL = 0, MODE_RELAXED = 2, CAPTURE_UNSUPPORTED = 900 };
static __thread int capture_mode = MODE_GLOBAL;

cu_result cuThreadExchangeStreamCaptureMode(int *mode)
{
    pthread_mutex_lock(&ct_mu);
    int old = capture_mode;
    ct_count[CT_relaxed] += (*mode == MODE_RELAXED) - (old == MODE_RELAXED);
    capture_mode = *mode;
    *mode = old;
    pthread_mutex_unlock(&ct_mu);
    return CU_OK;
}

/* Calls that the driver refuses while another thread captures in mode global, as far as its documents and torch's experience name them. */
static int unsafe_in_capture(int call)
{
    static const int calls[] = {CALL_MemAlloc, CALL_MemHostAlloc, CALL_MemHostRegister, CALL_MemCreate, CALL_MemMap, CALL_MemSetAccess, CALL_MemAddressReserve,
        CALL_IpcOpenMemHandle, CALL_CtxEnablePeerAccess, CALL_StreamCreateWithPriority, CALL_StreamQuery, CALL_StreamSynchronize, CALL_EventCreate,
        CALL_EventQuery, CALL_ModuleLoadDataEx, CALL_MemGetHandleForAddressRange};
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (calls[i] == call)
            return 1;
    return 0;
}

int ct_begin(int call, int with_ctx)
{
    pthread_mutex_lock(&ct_mu);
    int r = !ct_ready ? CU_NOT_INITIALIZED : ct_dead;
    if (!r && ct_switch[SW_capturing] && capture_mode != MODE_RELAXED && unsafe_in_capture(call)) {
        ct_breach("call %d while a graph is captured: the capture is lost", call);
        r = CAPTURE_UNSUPPORTED;
    }
    if (!r && with_ctx && (!ct_current() || !ct_current()->refs))
        r = CU_INVALID_CONTEXT;
    if (!r && call >= 0)
        r = ct_fails(call);
    if (r)
        pthread_mutex_unlock(&ct_mu);
    return r;
}

cu_result cuDriverGetVersion(int *version)
{
    *version = (int)ct_switch[SW_version];
    return CU_OK;
}

/* CUDA_VISIBLE_DEVICES as of the first cuInit: numbers of the machine's GPUs, in the process's order. */
static int visible[CT_DEVICES], visibles = -1;

static void look_visible(void)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (!list || !*list)
        return;
    visibles = 0;
    for (char *end; visibles < CT_DEVICES; list = end + 1) {
        long gpu = strtol(list, &end, 10);
        if (end == list || gpu < 0 || gpu >= ct_switch[SW_devices])
            return;
        visible[visibles++] = (int)gpu;
        if (*end != ',')
            return;
    }
}

int ct_device_count(void) { return visibles >= 0 ? visibles : (int)ct_switch[SW_devices]; }
int ct_gpu(int device) { return visibles >= 0 && device < visibles ? visible[device] : device; }

int ct_device_of(int gpu)
{
    for (int i = 0; i < ct_device_count() && i < CT_DEVICES; i++)
        if (ct_gpu(i) == gpu)
            return i;
    return -1;
}

cu_result cuInit(unsigned flags)
{
    pthread_mutex_lock(&ct_mu);
    int r = flags ? CU_INVALID_VALUE : (int)ct_switch[SW_init];
    if (r == CU_OK && !ct_ready)
        look_visible();
    ct_ready |= r == CU_OK;
    END(r);
}

cu_result cuGetErrorName(cu_result result, const char **name)
{
    static const struct {
        int result;
        const char *name;
    } names[] = {
        {CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
        {CU_STUB, "CUDA_ERROR_STUB_LIBRARY"},
        {CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
        {CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
        {CU_MAP_FAILED, "CUDA_ERROR_MAP_FAILED"},
        {CU_NO_JIT, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND"},
        {CU_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
        {CU_JIT_OFF, "CUDA_ERROR_JIT_COMPILATION_DISABLED"},
        {CU_OS, "CUDA_ERROR_OPERATING_SYSTEM"},
        {CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
        {CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {CU_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
        {CU_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED"},
        {CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (names[i].result == result) {
            *name = names[i].name;
            return CU_OK;
        }
    *name = NULL;
    return CU_INVALID_VALUE;
}

cu_result cuDeviceGetCount(int *count)
{
    BEGIN(-1, NO_CTX);
    *count = ct_device_count();
    END(CU_OK);
}

static int is_device(cu_device d) { return d >= 0 && d < ct_device_count() && d < CT_DEVICES; }

cu_result cuDeviceGet(cu_device *device, int ordinal)
{
    BEGIN(CALL_DeviceGet, NO_CTX);
    *device = ordinal;
    END(is_device(ordinal) ? CU_OK : CU_INVALID_DEVICE);
}

cu_result cuDeviceGetName(char *name, int len, cu_device device)
{
    BEGIN(-1, NO_CTX);
    snprintf(name, (size_t)len, "Imitation %d", ct_gpu(device));
    END(is_device(device) ? CU_OK : CU_INVALID_DEVICE);
}

cu_result cuDeviceGetUuid(cu_uuid *uuid, cu_device device)
{
    BEGIN(CALL_DeviceGetUuid, NO_CTX);
    for (int i = 0; i < 16; i++)
        uuid->bytes[i] = (uint8_t)(ct_gpu(device) * 16 + i + 1);
    uuid->bytes[15] ^= (uint8_t)*ct_node(); /* of another machine */
    END(is_device(device) ? CU_OK : CU_INVALID_DEVICE);
}

cu_result cuDeviceTotalMem(size_t *bytes, cu_device device)
{
    BEGIN(-1, NO_CTX);
    *bytes = CT_TOTAL;
    END(is_device(device) ? CU_OK : CU_INVALID_DEVICE);
}

cu_result cuDeviceGetAttribute(int *value, int attribute, cu_device device)
{
    BEGIN(-1, NO_CTX);
    switch (attribute) {
    case CU_DEV_SMS: *value = 16; break;
    case CU_DEV_FABRIC: *value = (int)ct_switch[SW_fabric]; break;
    case CU_DEV_FLUSH_OPTIONS: *value = CU_FLUSH_BY_HOST; break;
    case CU_DEV_WRITES_ORDERING: *value = (int)ct_switch[SW_writes_order]; break;
    case CU_DEV_DMABUF: *value = (int)ct_switch[SW_dmabuf]; break;
    case CU_DEV_UNIFIED:
    case CU_DEV_HOST_POINTER:
    case CU_DEV_VMM:
    case CU_DEV_POSIX_FD: *value = 1; break;
    default: END(CU_INVALID_VALUE);
    }
    END(is_device(device) ? CU_OK : CU_INVALID_DEVICE);
}

cu_result cuDeviceGetPCIBusId(char *id, int len, cu_device device)
{
    BEGIN(-1, NO_CTX);
    snprintf(id, (size_t)len, "0000:%02X:00.0", 0xa0 + ct_gpu(device));
    END(is_device(device) ? CU_OK : CU_INVALID_DEVICE);
}

cu_result cuDeviceCanAccessPeer(int *can, cu_device device, cu_device peer)
{
    BEGIN(-1, NO_CTX);
    *can = device != peer && ct_switch[SW_peers];
    END(is_device(device) && is_device(peer) ? CU_OK : CU_INVALID_DEVICE);
}

cu_result cuDevicePrimaryCtxRetain(cu_ctx *ctx, cu_device device)
{
    BEGIN(CALL_DevicePrimaryCtxRetain, NO_CTX);
    if (!is_device(device))
        END(CU_INVALID_DEVICE);
    ct_ctx[device].device = device;
    ct_ctx[device].refs++;
    ct_count[CT_contexts]++;
    *ctx = &ct_ctx[device];
    END(CU_OK);
}

cu_result cuDevicePrimaryCtxGetState(cu_device device, unsigned *flags, int *active)
{
    BEGIN(-1, NO_CTX);
    *flags = 0;
    *active = is_device(device) && ct_ctx[device].refs > 0;
    END(is_device(device) ? CU_OK : CU_INVALID_DEVICE);
}

cu_result cuDevicePrimaryCtxRelease(cu_device device)
{
    BEGIN(-1, NO_CTX);
    if (!is_device(device) || !ct_ctx[device].refs)
        END(CU_INVALID_CONTEXT);
    ct_count[CT_contexts]--;
    if (--ct_ctx[device].refs == 0)
        ct_ctx[device].peers = 0;
    END(CU_OK);
}

cu_result cuCtxPushCurrent(cu_ctx ctx)
{
    BEGIN(CALL_CtxPushCurrent, NO_CTX);
    if (!ctx || !ctx->refs || ct_depth == 16)
        END(CU_INVALID_CONTEXT);
    stack[ct_depth++] = ctx;
    ct_count[CT_pushed]++;
    END(CU_OK);
}

/* Pops after a sticky error, too, because the stack belongs to the thread. The result is then the sticky error. */
cu_result cuCtxPopCurrent(cu_ctx *ctx)
{
    pthread_mutex_lock(&ct_mu);
    if (!ct_depth)
        END(CU_INVALID_CONTEXT);
    *ctx = stack[--ct_depth];
    ct_count[CT_pushed]--;
    END(ct_dead);
}

cu_result cuCtxGetCurrent(cu_ctx *ctx)
{
    BEGIN(-1, NO_CTX);
    *ctx = ct_current();
    END(CU_OK);
}

cu_result cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    BEGIN(CALL_CtxGetStreamPriorityRange, WITH_CTX);
    *least = 0;
    *greatest = -5;
    END(CU_OK);
}

cu_result cuCtxEnablePeerAccess(cu_ctx peer, unsigned flags)
{
    BEGIN(CALL_CtxEnablePeerAccess, WITH_CTX);
    cu_ctx ctx = ct_current();
    if (!peer || !peer->refs || flags || peer == ctx)
        END(CU_INVALID_CONTEXT);
    if (!ct_switch[SW_peers])
        END(CU_PEER_UNSUPPORTED);
    if (ctx->peers & 1u << peer->device)
        END(CU_PEER_ENABLED);
    ctx->peers |= 1u << peer->device;
    END(CU_OK);
}
