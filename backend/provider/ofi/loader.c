/* Loads libfabric by path. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ofi.h"

/* The newest API whose structures and semantics were read; newer libraries are asked for this one. */
#define OFI_API_MAX FI_VERSION(2, 6)
#define OFI_API_MIN FI_VERSION(1, 9)

/* The symbol versions that go with the fi_info of libfabric 1.9 to 1.17, whose headers we are compiled with. A newer
 * library still carries them and converts hints to its own, longer structures (src/abi_1_0.c there). */
static int resolve(ofi_lib *lib, char *err, size_t err_len)
{
    uint32_t (*version)(void) = NULL;
    const struct {
        void **to;
        const char *name, *version;
    } want[] = {
        { (void **)&lib->getinfo, "fi_getinfo", "FABRIC_1.3" },   { (void **)&lib->freeinfo, "fi_freeinfo", "FABRIC_1.3" },
        { (void **)&lib->dupinfo, "fi_dupinfo", "FABRIC_1.3" },   { (void **)&lib->fabric, "fi_fabric", "FABRIC_1.1" },
        { (void **)&lib->strerror, "fi_strerror", "FABRIC_1.0" }, { (void **)&version, "fi_version", "FABRIC_1.0" },
    };
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        *want[i].to = dlvsym(lib->dl, want[i].name, want[i].version);
        if (!*want[i].to) {
            snprintf(err, err_len, "it has no %s@%s (not libfabric, or older than 1.9)", want[i].name, want[i].version);
            return -1;
        }
    }
    lib->version = version();
    if (lib->version < OFI_API_MIN) {
        snprintf(err, err_len, "it is libfabric %u.%u and 1.9 is the oldest usable", lib->version >> 16,
                 lib->version & 0xffff);
        return -1;
    }
    lib->api = lib->version < OFI_API_MAX ? lib->version : OFI_API_MAX;
    return 0;
}

/* FI_PROV_ATTR_ONLY is the cheapest call that makes libfabric start (and load) all of its providers. */
static void start_providers(ofi_lib *lib, char *names, size_t names_len)
{
    struct fi_info *list = NULL;
    size_t used = 0;
    if (lib->getinfo(lib->api, NULL, NULL, FI_PROV_ATTR_ONLY, NULL, &list))
        return;
    for (struct fi_info *p = list; p; p = p->next) {
        int n = p->fabric_attr && p->fabric_attr->prov_name
                    ? snprintf(names + used, names_len - used, "%s ", p->fabric_attr->prov_name)
                    : 0;
        if (n < 0 || (size_t)n >= names_len - used)
            break;
        used += (size_t)n;
    }
    names[used] = 0;
    lib->freeinfo(list);
}

ofi_lib *ofi_load(const char *path, char *names, size_t names_len, char *err, size_t err_len)
{
    ofi_lib *lib = calloc(1, sizeof(*lib));
    ofi_guard *guard = malloc(sizeof(*guard));
    int ok = 0;

    names[0] = err[0] = 0;
    if (!lib || !guard) {
        snprintf(err, err_len, "out of memory");
        goto out;
    }
    ofi_guard_begin(guard);
    lib->dl = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!lib->dl)
        snprintf(err, err_len, "%s", dlerror());
    else if (resolve(lib, err, err_len) == 0)
        ok = 1;
    if (ok)
        start_providers(lib, names, names_len);
    ofi_guard_end(guard);
out:
    free(guard);
    if (!ok) {
        free(lib);
        lib = NULL;
    }
    return lib;
}
