/* Finds and loads the real libfabric and its tcp provider. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fab.h"

static fab_real real;

static int resolve(void)
{
    uint32_t (*version)(void) = NULL;
    const struct {
        void **to;
        const char *name, *version;
    } want[] = {
        {(void **)&real.getinfo, "fi_getinfo", "FABRIC_1.3"},   {(void **)&real.freeinfo, "fi_freeinfo", "FABRIC_1.3"},
        {(void **)&real.dupinfo, "fi_dupinfo", "FABRIC_1.3"},   {(void **)&real.fabric, "fi_fabric", "FABRIC_1.1"},
        {(void **)&real.strerror, "fi_strerror", "FABRIC_1.0"}, {(void **)&version, "fi_version", "FABRIC_1.0"},
    };
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        *want[i].to = dlvsym(real.dl, want[i].name, want[i].version);
        if (!*want[i].to) {
            snprintf(real.error, sizeof(real.error), "symbol %s is missing", want[i].name);
            return -1;
        }
    }
    real.version = version();
    return 0;
}

static struct fi_info *ask(const char *prov, const char *interface)
{
    struct fi_info *hints = real.dupinfo(NULL), *list = NULL, *found = NULL;
    if (!hints)
        return NULL;
    hints->caps = FI_RMA | FI_MSG;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->addr_format = FI_SOCKADDR_IN;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    hints->fabric_attr->prov_name = strdup(prov);
    if (hints->fabric_attr->prov_name && real.getinfo(real.version, NULL, NULL, 0, hints, &list) == 0) {
        for (struct fi_info *p = list; p && !found; p = p->next)
            if (!strcmp(p->fabric_attr->prov_name, prov) && p->src_addr && *(uint16_t *)p->src_addr == 2 &&
                (!interface || !strcmp(p->domain_attr->name, interface)))
                found = real.dupinfo(p);
        real.freeinfo(list);
    }
    real.freeinfo(hints);
    return found;
}

static void load(void)
{
    static const char *const provs[] = {"net", "tcp"};
    const char *path = fab_config_get()->real;
    real.dl = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!real.dl) {
        snprintf(real.error, sizeof(real.error), "%s", dlerror());
        return;
    }
    if (resolve()) {
        real.dl = NULL;
        return;
    }
    for (int i = 0; i < 2 && !real.prov; i++) {
        struct fi_info *info = ask(provs[i], NULL);
        if (info)
            real.prov = provs[i];
        real.freeinfo(info);
    }
    real.lazy_sockets = real.prov && !strcmp(real.prov, "net");
    if (!real.prov)
        snprintf(real.error, sizeof(real.error), "%.150s has neither net nor tcp with FI_EP_RDM", path);
}

const fab_real *fab_real_get(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    if (real.error[0]) {
        fprintf(stderr, "fabric: the real libfabric: %s\n", real.error);
        return NULL;
    }
    return &real;
}

struct fi_info *fab_real_info(const char *interface)
{
    const fab_real *r = fab_real_get();
    return r ? ask(r->prov, interface) : NULL;
}
