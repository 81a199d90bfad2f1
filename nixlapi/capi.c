#define _GNU_SOURCE
#include "capi.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Each call uses a pointer from dlsym, or returns GN_MISSING.
#define GN_DEFINE(name, params, args)                                                                                                                \
    static int(*p_##name) params;                                                                                                                    \
    int gn_##name params { return p_##name ? p_##name args : GN_MISSING; }
GN_CALLS(GN_DEFINE)
#undef GN_DEFINE

const char *gn_preload(const char *path) { return dlopen(path, RTLD_LAZY | RTLD_GLOBAL) ? NULL : dlerror(); }

const char *gn_open(const char *path)
{
    // Never closed: NIXL's plugin manager lives as long as the process.
    void *h = dlopen(path, RTLD_LAZY | RTLD_GLOBAL | RTLD_NODELETE);
    if (!h) {
        return dlerror();
    }
#define GN_LOOKUP(name, params, args) p_##name = (int(*) params)dlsym(h, "nixl_capi_" #name);
    GN_CALLS(GN_LOOKUP)
#undef GN_LOOKUP
    return NULL;
}

int gn_xfer_list(int mem, const gn_desc *d, size_t n, void **out)
{
    int rc = gn_create_xfer_dlist(mem, out);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = gn_xfer_dlist_add_desc(*out, d[i].addr, d[i].len, d[i].dev);
    }
    return rc;
}

int gn_reg_list(int mem, const gn_desc *d, size_t n, const void *meta, size_t meta_len, void **out)
{
    int rc = gn_create_reg_dlist(mem, out);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = gn_reg_dlist_add_desc(*out, d[i].addr, d[i].len, d[i].dev, meta, meta_len);
    }
    return rc;
}

static uint8_t *put(uint8_t *p, const void *d, size_t n)
{
    if (n) {
        memcpy(p, d, n);
    }
    return p + n;
}

// Walks the map. With p NULL it only adds up the size, otherwise it writes the records.
static size_t walk(void *map, size_t senders, uint8_t *p)
{
    size_t total = 0;
    for (size_t i = 0; i < senders; i++) {
        const char *name = NULL;
        size_t count = 0;
        if (gn_notif_map_get_agent_at(map, i, &name) != 0 || gn_notif_map_get_notifs_size(map, name, &count) != 0) {
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

int gn_notifs(void *agent, void *map, uint8_t **out, size_t *len)
{
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

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int gn_loop(void *agent, void *req, size_t n, int64_t timeout_ns, int64_t *lat, int64_t *post, size_t *done)
{
    int64_t end = now_ns() + timeout_ns;
    int s = 0;
    for (*done = 0; *done < n; (*done)++) {
        int64_t t0 = now_ns();
        s = gn_post_xfer_req(agent, req, NULL);
        int64_t t1 = now_ns();
        for (unsigned i = 1; s == 1; i++) {
            s = gn_get_xfer_status(agent, req);
            if (i % 256 == 0 && now_ns() > end) {
                break;
            }
        }
        if (s != 0) {
            return s;
        }
        if (lat) {
            lat[*done] = now_ns() - t0;
        }
        if (post) {
            post[*done] = t1 - t0;
        }
    }
    return s;
}

int gn_stream(void *agent, void *const *req, size_t depth, size_t n, int64_t timeout_ns, int64_t nap_ns, size_t *done)
{
    int64_t end = now_ns() + timeout_ns;
    char flying[GN_MAX_DEPTH] = {0};
    size_t posted = 0;
    *done = 0;
    for (unsigned turn = 0; *done < n && (turn % 64 || now_ns() < end); turn++) { // reading the clock is a system call in some guests
        int idle = 1;
        for (size_t i = 0; i < depth; i++) {
            int s = flying[i] ? gn_get_xfer_status(agent, req[i]) : 0;
            if (s == 1) {
                continue;
            }
            if (s != 0) {
                return s;
            }
            if (flying[i]) {
                flying[i] = 0;
                idle = 0;
                (*done)++;
            }
            if (posted < n) {
                s = gn_post_xfer_req(agent, req[i], NULL);
                if (s < 0) {
                    return s;
                }
                flying[i] = 1;
                posted++;
            }
        }
        if (idle) {
            struct timespec nap = {.tv_nsec = nap_ns};
            nanosleep(&nap, NULL);
        }
    }
    return 0;
}

bool gn_same_backend(void *a, void *b)
{
    // A handle is a struct whose only member points at the agent's backend.
    return a && b && *(void **)a == *(void **)b;
}
