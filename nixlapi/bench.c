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

// times are where a stream adds its times; NULL: nowhere.
typedef struct {
    gn_hist *lat, *post, *make;
} times;

// slot is the place of one transfer in flight.
typedef struct {
    int64_t t0;     // 0: none in flight
    uint64_t turns; // posts in this stream
    uint64_t set;   // next set of blocks
} slot;

// begin makes the request if it consists of blocks, and posts it. Returns the status of a failed call, else the post's.
static int begin(gn_bench *b, slot *sl, size_t i, const times *to)
{
    if (b->blocks) {
        const gn_blocks *k = &b->blocks[i];
        size_t at = sl->set++ % k->sets * k->n;
        int64_t start = gn_now_ns();
        int s = gn_make_xfer_req(b->agent, k->op, k->local, k->local_ids + at, k->n, k->remote, k->remote_ids + at, k->n, &b->req[i], k->opt);
        if (s < 0)
            return s;
        if (to)
            gn_hist_add(to->make, gn_now_ns() - start);
    }
    int64_t start = gn_now_ns();
    int s = gn_post_xfer_req(b->agent, b->req[i], NULL);
    if (s < 0)
        return s;
    if (to)
        gn_hist_add(to->post, gn_now_ns() - start);
    sl->t0 = start;
    sl->turns++;
    b->posts[i]++;
    b->posted++;
    return s;
}

// drop releases a request made by begin.
static int drop(gn_bench *b, size_t i)
{
    if (!b->blocks || !b->req[i])
        return 0;
    int s = gn_release_xfer_req(b->agent, b->req[i]);
    if (s == 0) {
        s = gn_destroy_xfer_req(b->req[i]);
        b->req[i] = NULL;
    }
    return s;
}

// stream posts each request again when it has ended: count times, or until the time is over, but each at least once, and each set of
// blocks at least once.
static int stream(gn_bench *b, slot *sl, uint64_t count, int64_t until, int64_t end, const times *to, uint64_t *done)
{
    uint64_t posted = 0, turns = 0;
    size_t flying = 0, fresh = b->depth; // fresh: slots that must still post
    int more = 1, late = 0;
    int64_t last = gn_now_ns(); // completion
    for (size_t i = 0; i < b->depth; i++)
        sl[i].t0 = 0, sl[i].turns = 0;
    while (more || flying || fresh) {
        for (size_t i = 0; i < b->depth; i++) {
            uint64_t least = b->blocks ? b->blocks[i].sets : 1;
            int s = 1;
            if (sl[i].t0) {
                s = gn_get_xfer_status(b->agent, b->req[i]);
                if (s < 0)
                    return s;
            } else if (more || sl[i].turns < least) {
                s = begin(b, &sl[i], i, to);
                if (s < 0)
                    return s;
                flying++;
                posted++;
                fresh -= sl[i].turns == least;
            }
            if (sl[i].t0 && s == 0) {
                int64_t now = gn_now_ns();
                if (to)
                    gn_hist_add(to->lat, now - sl[i].t0);
                if (to && now - last > b->gap_ns)
                    b->gap_ns = now - last;
                last = now;
                sl[i].t0 = 0;
                flying--;
                ++*done;
                late = now >= until;
                if ((s = drop(b, i)) < 0)
                    return s;
            }
            more = !late && (count == 0 || posted < count);
        }
        if (++turns % 256 == 0 && gn_now_ns() > end)
            return 1;
    }
    return 0;
}

// leave releases what a failed stream left in flight. NIXL may refuse at first.
static void leave(gn_bench *b)
{
    int64_t end = gn_now_ns() + 1000000000;
    for (size_t i = 0; i < b->depth; i++)
        while (drop(b, i) != 0 && gn_now_ns() < end)
            sched_yield();
}

int gn_bench_run(gn_bench *b)
{
    int64_t end = gn_now_ns() + b->limit_ns;
    slot *sl = calloc(b->depth, sizeof *sl);
    uint64_t warmed = 0;
    if (!sl)
        return b->status = -1;
    b->status = b->warmup ? stream(b, sl, b->warmup, end, end, NULL, &warmed) : 0;
    int late = wait_gate(b->gate, end); // also after an error: the others wait
    while (gn_now_ns() < b->start_ns)
        sched_yield();
    if (b->status == 0)
        b->status = late;
    if (b->status == 0) {
        times to = {&b->lat, &b->post, &b->make};
        int64_t start = gn_now_ns();
        b->status = stream(b, sl, b->count, b->count ? end : start + b->time_ns, end, &to, &b->done);
        b->began_ns = start;
        b->wall_ns = gn_now_ns() - start;
    }
    leave(b);
    free(sl);
    return b->status;
}

// take counts an agent's notifications.
static int take(void *agent, void *map, uint64_t *seen)
{
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
    return senders ? gn_notif_map_clear(map) : 0;
}

int gn_serve(void *const *agents, void *const *maps, size_t n, const uint64_t *want, const int *stop, int64_t limit_ns, int64_t nap_ns,
             uint64_t *seen)
{
    int64_t end = gn_now_ns() + limit_ns;
    *seen = 0;
    for (unsigned i = 1; *seen < __atomic_load_n(want, __ATOMIC_RELAXED) && !__atomic_load_n(stop, __ATOMIC_RELAXED); i++) {
        uint64_t before = *seen;
        for (size_t j = 0; j < n; j++) {
            int rc = take(agents[j], maps[j], seen);
            if (rc != 0)
                return rc;
        }
        if (nap_ns && *seen == before)
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
