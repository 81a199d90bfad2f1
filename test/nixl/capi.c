#define _GNU_SOURCE
#include "capi.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

// Each call goes through a pointer that dlsym filled, or says GN_MISSING.
#define GN_DEFINE(name, params, args)                                                              \
    static int(*p_##name) params;                                                                  \
    int gn_##name params {                                                                         \
        return p_##name ? p_##name args : GN_MISSING;                                              \
    }
GN_CALLS(GN_DEFINE)
#undef GN_DEFINE

const char *gn_preload(const char *path) {
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL) ? NULL : dlerror();
}

const char *gn_open(const char *path) {
    // Never closed: NIXL's plugin manager lives as long as the process.
    void *h = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    if (!h) {
        return dlerror();
    }
#define GN_LOOKUP(name, params, args) p_##name = (int(*) params)dlsym(h, "nixl_capi_" #name);
    GN_CALLS(GN_LOOKUP)
#undef GN_LOOKUP
    return NULL;
}

int gn_xfer_list(int mem, const gn_desc *d, size_t n, void **out) {
    int rc = gn_create_xfer_dlist(mem, out);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = gn_xfer_dlist_add_desc(*out, d[i].addr, d[i].len, d[i].dev);
    }
    return rc;
}

int gn_reg_list(int mem, const gn_desc *d, size_t n, void **out) {
    int rc = gn_create_reg_dlist(mem, out);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = gn_reg_dlist_add_desc(*out, d[i].addr, d[i].len, d[i].dev, NULL, 0);
    }
    return rc;
}

static uint8_t *put(uint8_t *p, const void *d, size_t n) {
    if (n) {
        memcpy(p, d, n);
    }
    return p + n;
}

// Walks the map: with p NULL only adds up the size, else writes the records.
static size_t walk(void *map, size_t senders, uint8_t *p) {
    size_t total = 0;
    for (size_t i = 0; i < senders; i++) {
        const char *name = NULL;
        size_t count = 0;
        if (gn_notif_map_get_agent_at(map, i, &name) != 0 ||
            gn_notif_map_get_notifs_size(map, name, &count) != 0) {
            continue;
        }
        uint32_t nlen = (uint32_t)strlen(name);
        for (size_t j = 0; j < count; j++) {
            const void *msg = NULL;
            size_t len = 0;
            if (gn_notif_map_get_notif(map, name, j, &msg, &len) != 0) {
                continue;
            }
            uint32_t mlen = (uint32_t)len;
            total += 8 + nlen + len;
            if (p) {
                p = put(p, &nlen, 4);
                p = put(p, &mlen, 4);
                p = put(p, name, nlen);
                p = put(p, msg, len);
            }
        }
    }
    return total;
}

int gn_notifs(void *agent, void *map, uint8_t **out, size_t *len) {
    size_t senders = 0;
    *out = NULL;
    *len = 0;
    int rc = gn_get_notifs(agent, map, NULL);
    if (rc != 0) {
        return rc;
    }
    rc = gn_notif_map_size(map, &senders);
    if (rc != 0 || senders == 0) {
        return rc;
    }
    *len = walk(map, senders, NULL);
    *out = malloc(*len ? *len : 1);
    walk(map, senders, *out);
    return gn_notif_map_clear(map);
}

bool gn_same_backend(void *a, void *b) {
    // A handle is a struct whose only member points at the agent's backend.
    return a && b && *(void **)a == *(void **)b;
}
