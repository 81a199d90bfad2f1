#define _GNU_SOURCE
#include "bench.h"

#include <sched.h>
#include <stdlib.h>

#include "capi.h"

// wait_gate waits until every thread has warmed up.
static int wait_gate(int *gate, int64_t end)
{
    __atomic_sub_fetch(gate, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(gate, __ATOMIC_ACQUIRE) > 0) {
        if (gn_now_ns() > end)
            return 1;
        sched_yield();
    }
    return 0;
}

// stream posts each request again when it has ended: count times, or until the time is over, but each at least once. It
// adds times to lat and post unless they are NULL.
static int stream(gn_bench *b, int64_t *t0, uint64_t count, int64_t until, int64_t end, gn_hist *lat, gn_hist *post, uint64_t *done)
{
    uint64_t posted = 0, turns = 0;
    size_t flying = 0;
    int more = 1, late = 0;
    for (size_t i = 0; i < b->depth; i++)
        t0[i] = 0;
    while (more || flying) {
        for (size_t i = 0; i < b->depth; i++) {
            int s = 1;
            if (t0[i]) {
                s = gn_get_xfer_status(b->agent, b->req[i]);
                if (s < 0)
                    return s;
            } else if (more) {
                int64_t start = gn_now_ns();
                s = gn_post_xfer_req(b->agent, b->req[i], NULL);
                if (s < 0)
                    return s;
                if (post)
                    gn_hist_add(post, gn_now_ns() - start);
                t0[i] = start;
                flying++;
                b->posted++;
                posted++;
            }
            if (t0[i] && s == 0) {
                int64_t now = gn_now_ns();
                if (lat)
                    gn_hist_add(lat, now - t0[i]);
                t0[i] = 0;
                flying--;
                ++*done;
                late = now >= until;
            }
            more = posted < b->depth || (!late && (count == 0 || posted < count));
        }
        if (++turns % 256 == 0 && gn_now_ns() > end)
            return 1;
    }
    return 0;
}

int gn_bench_run(gn_bench *b)
{
    int64_t end = gn_now_ns() + b->limit_ns, *t0 = calloc(b->depth, sizeof *t0);
    uint64_t warmed = 0;
    if (!t0)
        return b->status = -1;
    b->status = b->warmup ? stream(b, t0, b->warmup, end, end, NULL, NULL, &warmed) : 0;
    int late = wait_gate(b->gate, end); // also after an error: the others wait
    if (b->status == 0)
        b->status = late;
    if (b->status == 0) {
        int64_t start = gn_now_ns();
        b->status = stream(b, t0, b->count, b->count ? end : start + b->time_ns, end, &b->lat, &b->post, &b->done);
        b->wall_ns = gn_now_ns() - start;
    }
    free(t0);
    return b->status;
}

int gn_serve(void *agent, void *map, const uint64_t *want, const int *stop, int64_t limit_ns, int64_t nap_ns, uint64_t *seen)
{
    int64_t end = gn_now_ns() + limit_ns;
    *seen = 0;
    for (unsigned i = 1; *seen < __atomic_load_n(want, __ATOMIC_RELAXED) && !__atomic_load_n(stop, __ATOMIC_RELAXED); i++) {
        size_t senders = 0;
        int rc = gn_get_notifs(agent, map, NULL);
        if (rc != 0 || (rc = gn_notif_map_size(map, &senders)) != 0)
            return rc;
        for (size_t j = 0; j < senders; j++) {
            const char *name = NULL;
            size_t k = 0;
            if (gn_notif_map_get_agent_at(map, j, &name) == 0 && gn_notif_map_get_notifs_size(map, name, &k) == 0)
                *seen += k;
        }
        if (senders && (rc = gn_notif_map_clear(map)) != 0)
            return rc;
        if (nap_ns && !senders)
            nanosleep(&(struct timespec){.tv_nsec = nap_ns}, NULL);
        if ((nap_ns || i % 256 == 0) && gn_now_ns() > end)
            return 1;
    }
    return 0;
}

int gn_notify(void *agent, const char *peer, const void *msg, size_t len, void *opt, uint64_t n, uint64_t *sent)
{
    for (*sent = 0; *sent < n; ++*sent) {
        int rc = gn_gen_notif(agent, peer, msg, len, opt);
        if (rc < 0)
            return rc;
    }
    return 0;
}
