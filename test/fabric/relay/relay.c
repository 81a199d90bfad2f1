/* An external provider, like those of vendors. libfabric loads the provider from FI_PROVIDER_PATH. It offers the native tcp provider
 * under the name "relay", for endpoints of type FI_EP_RDM. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>
#include <stdlib.h>
#include <string.h>

/* Calls of the libfabric that loads this provider. That library may be loaded by path with RTLD_LOCAL; its soname finds it. */
static struct {
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
    void (*freeinfo)(struct fi_info *);
    struct fi_info *(*dupinfo)(const struct fi_info *);
    int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
    uint32_t (*version)(void);
} host;

static const char *native; /* name of the native tcp provider ("net" or "tcp"), NULL until found */

/* Internal flags of libfabric, set when a layered provider looks for its core provider. */
#define INTERNAL (15ULL << 58)

/* Keeps the native provider's entries, frees those of layered providers, and clears the provider name: libfabric sets "relay". */
static struct fi_info *keep_native(struct fi_info *list, const char *name)
{
    struct fi_info *kept = NULL, **end = &kept, *next;
    for (struct fi_info *p = list; p; p = next) {
        next = p->next;
        p->next = NULL;
        if (strcmp(p->fabric_attr->prov_name, name)) {
            host.freeinfo(p);
            continue;
        }
        free(p->fabric_attr->prov_name);
        p->fabric_attr->prov_name = NULL;
        *end = p;
        end = &p->next;
    }
    return kept;
}

static int relay_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints, struct fi_info **info)
{
    static const char *const names[] = {"net", "tcp"};
    *info = NULL;
    if (!hints || !hints->ep_attr || hints->ep_attr->type != FI_EP_RDM || flags & INTERNAL)
        return -FI_ENODATA;
    for (int i = 0; i < 2 && !*info; i++) {
        struct fi_info *ask = host.dupinfo(hints), *list = NULL;
        if (!ask)
            return -FI_ENOMEM;
        free(ask->fabric_attr->prov_name);
        ask->fabric_attr->prov_name = strdup(names[i]);
        if (ask->fabric_attr->prov_name && host.getinfo(version, node, service, flags, ask, &list) == 0)
            *info = keep_native(list, names[i]);
        host.freeinfo(ask);
        if (*info)
            native = names[i];
    }
    return *info ? 0 : -FI_ENODATA;
}

static int relay_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
    struct fi_fabric_attr real = *attr;
    if (!native)
        return -FI_ENODATA;
    real.prov_name = (char *)native;
    return host.fabric(&real, fabric, context);
}

static void relay_cleanup(void) {}

static struct fi_provider relay = {
    .version = FI_VERSION(1, 0),
    .name = "relay",
    .getinfo = relay_getinfo,
    .fabric = relay_fabric,
    .cleanup = relay_cleanup,
};

__attribute__((visibility("default"))) struct fi_provider *fi_prov_ini(void)
{
    void *dl = dlopen("libfabric.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!dl)
        return NULL;
    *(void **)&host.getinfo = dlsym(dl, "fi_getinfo");
    *(void **)&host.freeinfo = dlsym(dl, "fi_freeinfo");
    *(void **)&host.dupinfo = dlsym(dl, "fi_dupinfo");
    *(void **)&host.fabric = dlsym(dl, "fi_fabric");
    *(void **)&host.version = dlsym(dl, "fi_version");
    if (!host.getinfo || !host.freeinfo || !host.dupinfo || !host.fabric || !host.version)
        return NULL;
    relay.fi_version = host.version();
    return &relay;
}
