/* Errors of failed calls. Posts and polls fill them in. */
#include <stdio.h>

#include "gpu_int.h"

#define NAME(field, name, version, needed, args) const char gg_name_##field[] = name;
CU_ENTRIES(NAME)

#define TEXT(name, text) text,
static const char *const texts[] = {GR_GPU_WHYS(TEXT)};

const char *gr_gpu_why_text(int why) { return why >= 0 && why < GR_GPU_WHY_COUNT ? texts[why] : "unknown"; }

int gg_fail(gr_gpu_fault *fault, int why, const char *what)
{
    if (fault)
        *fault = (gr_gpu_fault){.why = why, .call = what};
    return -why;
}

/* Errors after which all calls of this process fail. */
int gg_lost(cu_result result)
{
    switch (result) {
    case CU_DEINITIALIZED:
    case CU_ECC:
    case CU_ILLEGAL_ADDRESS:
    case CU_LAUNCH_TIMEOUT:
    case CU_CONTEXT_DESTROYED:
    case CU_ASSERT:
    case CU_HARDWARE_STACK:
    case CU_ILLEGAL_INSTRUCTION:
    case CU_MISALIGNED:
    case CU_ADDRESS_SPACE:
    case CU_INVALID_PC:
    case CU_LAUNCH_FAILED: return 1;
    }
    return 0;
}

int gg_result(gg *g, gr_gpu_fault *fault, cu_result result, const char *call)
{
    if (result == CU_OK)
        return 0;
    int why = gg_lost(result) ? GR_GPU_LOST : result == CU_OUT_OF_MEMORY ? GR_GPU_NO_MEMORY : GR_GPU_DRIVER;
    if (fault) {
        const char *name = NULL;
        *fault = (gr_gpu_fault){.why = why, .result = result, .call = call};
        if (g->cu.error_name && g->cu.error_name(result, &name) == CU_OK && name)
            snprintf(fault->text, sizeof(fault->text), "%s", name);
    }
    return -why;
}
