/* The exported symbols. Programs reach all other calls through objects. */
#include <stdio.h>

#include "fab.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT uint32_t fi_version(void) { return (uint32_t)SW(FAB_CXI, version); }

EXPORT int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints, struct fi_info **info)
{
    (void)node;
    (void)service;
    return fab_getinfo(version, flags, hints, info);
}

EXPORT void fi_freeinfo(struct fi_info *info)
{
    const fab_real *real = fab_real_get();
    if (real)
        real->freeinfo(info);
}

EXPORT struct fi_info *fi_dupinfo(const struct fi_info *info)
{
    const fab_real *real = fab_real_get();
    return real ? real->dupinfo(info) : NULL;
}

EXPORT int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context) { return fab_fabric_open(attr, fabric, context); }

EXPORT const char *fi_strerror(int err)
{
    const fab_real *real = fab_real_get();
    return real ? real->strerror(err) : "no real libfabric";
}
