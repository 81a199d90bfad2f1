/* A libnvidia-ml.so.1 for tests: what GORAIL asks NVML about NVLink between hosts. GORAIL_TEST_NVML has one "state,status,cluster,clique" for
 * each GPU, separated by ";": cluster is one hexadecimal byte, which stands for 16. GORAIL_TEST_IMEX_NODE as for the imitated driver. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, GPUS = 8, V2 = 36 | 2 << 24 };

typedef struct gpu {
    unsigned state, status, cluster, clique;
} gpu;
static int up, n;
static gpu gpus[GPUS];

typedef struct info2 {
    unsigned version;
    uint8_t cluster[16];
    int status;
    unsigned clique;
    uint8_t state;
    unsigned health;
} info2;

int nvmlInit_v2(void)
{
    const char *list = getenv("GORAIL_TEST_NVML");
    if (!list)
        return NOT_SUPPORTED;
    for (const char *stuck = getenv("GORAIL_TEST_NVML_STUCK"); stuck && access(stuck, F_OK) == 0;) /* while that file is there */
        usleep(1000);
    for (n = 0; *list && n < GPUS; n++) {
        gpu *g = &gpus[n];
        if (sscanf(list, "%u,%u,%x,%u", &g->state, &g->status, &g->cluster, &g->clique) != 4)
            abort();
        list += strcspn(list, ";");
        list += *list == ';';
    }
    up++;
    return OK;
}

int nvmlShutdown(void) { return up-- > 0 ? OK : UNINITIALIZED; }

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)n;
    return up ? OK : UNINITIALIZED;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device)
{
    *device = i < (unsigned)n ? &gpus[i] : NULL;
    return !up ? UNINITIALIZED : *device ? OK : INVALID;
}

int nvmlDeviceGetUUID(void *device, char *to, unsigned len)
{
    unsigned i = (unsigned)((gpu *)device - gpus);
    const char *node = getenv("GORAIL_TEST_IMEX_NODE");
    uint8_t u[16];
    for (unsigned k = 0; k < 16; k++)
        u[k] = (uint8_t)(i * 16 + k + 1);
    u[15] ^= node ? (uint8_t)*node : 0;
    int used = snprintf(to, len, "GPU-");
    for (unsigned k = 0; k < 16; k++)
        used += snprintf(to + used, len - (unsigned)used, "%s%02x", k == 4 || k == 6 || k == 8 || k == 10 ? "-" : "", u[k]);
    return OK;
}

int nvmlDeviceGetGpuFabricInfoV(void *device, info2 *info)
{
    const gpu *g = device;
    if (info->version != V2)
        return INVALID;
    memset(info->cluster, (int)g->cluster, 16);
    info->status = (int)g->status;
    info->clique = g->clique;
    info->state = (uint8_t)g->state;
    return OK;
}
