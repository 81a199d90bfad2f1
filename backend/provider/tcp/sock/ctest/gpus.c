/* Two rails that copy memory of GPUs, over a driver of ours. Its memory cannot be touched at its address: only copies reach it. Copies
 * end late, and sometimes fail. Lives by seed: WRITEs, READs and messages between memories of all kinds, ends that do not poll for a
 * while, deregistrations, failures, closes. What holds:
 *   - an operation that has succeeded has moved the right bytes, and its message comes after the bytes before it;
 *   - each operation ends once; after its end, or after a close or a deregistration, no copy touches its memory;
 *   - at the end all bounce buffers are free. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../sock.h"

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "life %d: %s:%d: %s (errno %d)\n", life_number, __FILE__, __LINE__, #x, errno), abort()))

enum { SLOTS = 12, SLOT = 1 << 20, SIZE = SLOTS * SLOT, KINDS = 3 /* host, GPU 0, GPU 1 */, RECVS = 16 };

static int life_number;
static uint64_t seed;
static int closing; /* a rail waits for copies for a second of the clock at most, which a busy machine gives few polls: they end soon */

static uint32_t rnd(uint32_t below)
{
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (uint32_t)(seed >> 33) % below;
}

/* ---- the driver ---- */

typedef struct memory {
    uint8_t *at, *seen; /* its address, and where the driver and the test see it */
    uint8_t busy[SLOTS]; /* copies may touch it */
    uint32_t number;
    int live;
} memory;

typedef struct side {
    tcp_rail *rail;
    memory mem[KINDS];
} side;
static side sides[2];
static int soon[2]; /* a poll of the side has seen something small */

struct gr_gpu_job {
    gr_gpu_work w;
    gr_op ops[TCP_COPY_OPS];
    int polls, posted, fails;
};

static int fail_one_in;

/* Where the driver sees memory of a GPU. */
static uint8_t *seen(uint64_t addr, uint64_t len)
{
    for (int s = 0; s < 2; s++)
        for (int k = 1; k < KINDS; k++) {
            memory *m = &sides[s].mem[k];
            uint64_t off = addr - (uintptr_t)m->at;
            if (addr < (uintptr_t)m->at || off + len > SIZE)
                continue;
            CHECK(m->busy[off / SLOT] && m->busy[(off + len - 1) / SLOT]);
            return m->seen + off;
        }
    CHECK(!"memory of a GPU");
    return NULL;
}

static void move(const gr_gpu_job *j)
{
    for (uint32_t i = 0; i < j->w.nops; i++) {
        const gr_op *o = &j->ops[i];
        void *device = seen(o->local, o->len), *host = (void *)(uintptr_t)o->remote;
        memcpy(j->w.write ? host : device, j->w.write ? device : host, o->len);
    }
}

#include "driver.h"
static int job_free(gr_gpu_job *j)
{
    CHECK(!j->posted);
    free(j);
    return 0;
}
static int is_mapped(gr_gpu *g, int device, const gr_op *ops, uint64_t nops, uint32_t need, uint64_t *at)
{
    (void)g, (void)device, (void)ops, (void)nops, (void)need, (void)at;
    return 0;
}

static int post(gr_gpu_job *j, const gr_gpu_work *w, gr_gpu_fault *fault)
{
    (void)fault;
    CHECK(!j->posted && w->nops && w->nops <= TCP_COPY_OPS);
    if (fail_one_in && rnd((uint32_t)fail_one_in) == 0)
        return -GR_GPU_DRIVER;
    j->w = *w;
    memcpy(j->ops, w->ops, w->nops * sizeof(gr_op));
    j->posted = 1;
    j->polls = (int)rnd(rnd(8) ? 4 : 1000);
    j->fails = fail_one_in && rnd((uint32_t)fail_one_in) == 0;
    return 0;
}
static int poll_job(gr_gpu_job *j, gr_gpu_fault *fault)
{
    (void)fault;
    CHECK(j->posted);
    if (closing && j->polls > 4)
        j->polls = 4;
    if (j->polls-- > 0)
        return 1;
    if (!j->fails)
        move(j);
    j->posted = 0;
    return j->fails ? -GR_GPU_LOST : 0;
}
static const gr_gpu_ops table = {
    .alloc = alloc, .free = drop, .stream = stream, .stream_close = stream_close, .job = job, .job_free = job_free, .post = post, .mapped = is_mapped, .poll = poll_job};
static gr_gpu driver = {.ops = &table};

/* ---- a life ---- */

typedef struct work {
    gr_ctx ctx; /* first */
    int kind, from, done, checked, err, local, remote, slot, nseg;
    uint32_t order;
    gr_seg seg[GR_MAX_IOV];
    uint8_t fill;
} work;

static tcp_conn *conns[2];
static work works[400], receives[2][RECVS];
static int nworks, nreceived;
static uint8_t messages[400][8], inbox[2][RECVS][8];
static const uint8_t salt[16] = {3}, secret[32] = {4};

static memory *memory_of(int s, int kind) { return &sides[s].mem[kind]; }

/* The bytes of the operation are at their end. */
static void compare(const work *w)
{
    const memory *m = memory_of(w->kind == GR_READ ? w->from : 1 - w->from, w->kind == GR_READ ? w->local : w->remote);
    for (int i = 0; i < w->nseg; i++) {
        uint64_t off = w->kind == GR_READ ? w->seg[i].laddr - (uintptr_t)m->at : TCP_OFFSET(w->seg[i].raddr);
        for (uint64_t n = 0; n < w->seg[i].len; n++)
            CHECK(m->seen[off + n] == w->fill);
    }
}

static void set_busy(const work *w, uint8_t busy)
{
    memory_of(w->from, w->local)->busy[w->slot] = busy;
    memory_of(1 - w->from, w->remote)->busy[w->slot] = busy;
}

static void post_receive(int s, int i)
{
    if (conns[s]) /* it is not closed */
        (void)sides[s].rail->base.ops->recv(&sides[s].rail->base, conns[s], inbox[s][i], 8, NULL, &receives[s][i].ctx);
}

/* A message has come: the WRITEs that were posted before it, and have not failed, are in place. */
static void heard(int s, int i)
{
    uint64_t order;
    memcpy(&order, inbox[s][i], 8);
    nreceived++;
    for (int k = 0; k < nworks; k++)
        if (works[k].kind == GR_WRITE && works[k].from == 1 - s && works[k].order < order && !works[k].done && !works[k].checked) {
            compare(&works[k]);
            works[k].checked = 1;
        }
}

static void poll_side(int s)
{
    gr_comp c[8];
    gr_rail *base = &sides[s].rail->base;
    gr_rail_lock(base);
    int n = base->ops->poll(base, c, 8);
    soon[s] |= base->soon;
    base->soon = 0;
    gr_rail_unlock(base);
    for (int i = 0; i < n; i++) {
        work *w = (work *)c[i].ctx;
        if (w >= &receives[s][0] && w < &receives[s][RECVS]) {
            if (!c[i].err) {
                heard(s, (int)(w - receives[s]));
                gr_rail_lock(base);
                post_receive(s, (int)(w - receives[s]));
                gr_rail_unlock(base);
            }
            continue;
        }
        CHECK(!w->done);
        w->done = 1;
        w->err = c[i].err;
        if (!w->err && w->kind >= 0 && !w->checked)
            compare(w);
        if (!w->err && w->kind >= 0)
            set_busy(w, 0); /* otherwise the peer's copies may go on until both ends are closed */
        else if (w->kind >= 0)
            memory_of(w->from, w->local)->busy[w->slot] = 0;
    }
}

static void post_one(int from)
{
    gr_rail *base = &sides[from].rail->base;
    work *w = &works[nworks];
    *w = (work){.kind = rnd(3) ? (rnd(2) ? GR_WRITE : GR_READ) : -1,
                .from = from,
                .local = (int)rnd(KINDS),
                .remote = (int)rnd(KINDS),
                .order = (uint32_t)nworks};
    gr_rail_lock(base);
    if (w->kind < 0) {
        uint64_t order = (uint64_t)nworks;
        memcpy(messages[nworks], &order, 8);
        nworks += base->ops->send(base, conns[from], messages[nworks], 8, NULL, 1, &w->ctx) == 0;
        gr_rail_unlock(base);
        return;
    }
    memory *l = memory_of(from, w->local), *r = memory_of(1 - from, w->remote);
    for (w->slot = 0; w->slot < SLOTS && (l->busy[w->slot] || r->busy[w->slot]); w->slot++)
        ;
    if (w->slot == SLOTS || !r->live || !l->live) {
        gr_rail_unlock(base);
        return;
    }
    w->fill = (uint8_t)(1 + rnd(255));
    w->nseg = (int)(1 + rnd(GR_MAX_IOV));
    uint64_t at = (uint64_t)w->slot * SLOT, to = at, most = rnd(3) ? 3000 : SLOT / GR_MAX_IOV;
    for (int i = 0; i < w->nseg; i++) {
        uint64_t len = rnd(8) ? rnd((uint32_t)most) : 0;
        w->seg[i] = (gr_seg){.laddr = (uintptr_t)l->at + at,
                             .raddr = (uint64_t)r->number << TCP_OFFSET_BITS | to,
                             .len = len,
                             .ldesc = w->local ? conns[from]->rail->table.at[l->number].gpu : NULL,
                             .rkey = tcp_session_key(salt, 50 + (uint64_t)w->remote, r->number)};
        memset(w->kind == GR_READ ? r->seen + to : l->seen + at, w->fill, len);
        memset(w->kind == GR_READ ? l->seen + at : r->seen + to, 0, len);
        at += len + rnd(64) * (at + len + 64 < (uint64_t)(w->slot + 1) * SLOT - SLOT / 4);
        to += len;
    }
    set_busy(w, 1);
    if (base->ops->rma(base, conns[from], w->kind, (uint32_t)w->nseg, w->seg, &w->ctx) == 0)
        nworks++;
    else
        set_busy(w, 0);
    gr_rail_unlock(base);
}

static void take_region(int s, int k)
{
    memory *m = memory_of(s, k);
    tcp_gpu *gpu = NULL;
    SLIST_FOREACH(gpu, &sides[s].rail->gpus, next)
    if (gpu->device == k - 1)
        break;
    CHECK(tcp_register(sides[s].rail, (uintptr_t)m->at, SIZE, 50 + (uint64_t)k, TCP_PEERS_READ | TCP_PEERS_WRITE, k ? gpu : NULL, &m->number) == 0);
    m->live = 1;
}

static void life(int sealed, int packed)
{
    int fd[2];
    int late = rnd(3) ? 0 : (int)rnd(30);
    nworks = nreceived = 0;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) == 0);
    for (int s = 0; s < 2; s++) {
        memset(receives[s], 0, sizeof(receives[s]));
        CHECK((conns[s] = tcp_conn_new(sides[s].rail)));
        tcp_conn_begin(conns[s], salt);
        CHECK(!sealed || tcp_conn_encrypt(conns[s], secret, s) == 0);
        if (packed)
            tcp_conn_pack(conns[s], NULL);
        CHECK(late || tcp_conn_attach(conns[s], fd[s]) == 0);
        gr_rail_lock(&sides[s].rail->base);
        for (int i = 0; i < RECVS; i++)
            post_receive(s, i);
        gr_rail_unlock(&sides[s].rail->base);
    }
    fail_one_in = rnd(4) ? 0 : 40;
    int quiet = rnd(6) == 0 ? 1 + (int)rnd(2) : 0, turns = 20 + (int)rnd(300), gone = rnd(5) == 0 ? (int)rnd((uint32_t)turns) : -1;
    int gone_side = (int)rnd(2), gone_kind = (int)(1 + rnd(2));
    for (int i = 0; i < turns; i++) {
        for (int s = 0; s < 2 && late && i == (late < turns ? late : turns - 1); s++) /* operations wait for their connection */
            (void)tcp_conn_attach(conns[s], fd[s]);                               /* it may have failed before */
        if (nworks < 380 && rnd(3) == 0)
            post_one((int)rnd(4) == 0);
        if (i == gone) { /* the owner's own operations there have ended, as the core sees to; the peer's may go on */
            memory *m = memory_of(gone_side, gone_kind);
            int own = 0;
            for (int k = 0; k < nworks; k++)
                own |= works[k].kind >= 0 && !works[k].done && works[k].from == gone_side && works[k].local == gone_kind;
            if (!own) {
                closing = 1;
                CHECK(tcp_deregister(sides[gone_side].rail, m->number) == 0);
                closing = 0;
                m->live = 0;
                memset(m->busy, 0, sizeof(m->busy));
            }
        }
        for (int s = 0; s < 2; s++)
            if (quiet != s + 1 || i > turns / 2)
                poll_side(s);
    }
    if (rnd(3)) /* all ends well, unless something has failed */
        for (int i = 0; i < 20000; i++) {
            int left = 0;
            for (int k = 0; k < nworks; k++)
                left |= !works[k].done;
            if (!left)
                break;
            CHECK(i < 19999);
            poll_side(0), poll_side(1);
        }
    int first = (int)rnd(2);
    closing = 1;
    tcp_conn_close(conns[first]);
    tcp_conn_close(conns[1 - first]);
    closing = 0;
    conns[0] = conns[1] = NULL;
    for (int s = 0; s < 2; s++)
        for (int k = 0; k < KINDS; k++)
            memset(memory_of(s, k)->busy, 0, SLOTS);
    for (int i = 0; i < 100; i++)
        poll_side(0), poll_side(1);
    for (int k = 0; k < nworks; k++)
        CHECK(works[k].done);
    tcp_gpu *gpu;
    tcp_copy *c;
    for (int s = 0; s < 2; s++)
        SLIST_FOREACH(gpu, &sides[s].rail->gpus, next)
        {
            int n = 0;
            TAILQ_FOREACH(c, &gpu->in, next) n++;
            TAILQ_FOREACH(c, &gpu->small, next) n++;
            TAILQ_FOREACH(c, &gpu->large, next) n++;
            CHECK(n == TCP_COPIES && TAILQ_EMPTY(&gpu->flying) && TAILQ_EMPTY(&gpu->ended));
        }
    if (!memory_of(gone_side, gone_kind)->live)
        take_region(gone_side, gone_kind);
}

void gpus(int lives)
{
    tcp_gpu *gpu[2][2];
    int err;
    char why[256];
    for (int s = 0; s < 2; s++) {
        CHECK((sides[s].rail = tcp_rail_new(0, &err)) && tcp_rail_encrypt(sides[s].rail, "", why, sizeof(why)) == 0);
        CHECK(tcp_rail_pack(sides[s].rail, TCP_PACK_ON) == 0);
        tcp_rail_tune_packing(sides[s].rail, 1, 1);
        for (int k = 0; k < KINDS; k++) {
            memory *m = memory_of(s, k);
            int fd = memfd_create("vram", MFD_CLOEXEC);
            CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
            m->seen = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            m->at = k ? mmap(NULL, SIZE, PROT_NONE, MAP_SHARED, fd, 0) : m->seen;
            CHECK(m->seen != MAP_FAILED && m->at != MAP_FAILED);
            close(fd);
            if (k) {
                CHECK(tcp_gpu_new(&driver, k - 1, -1, &gpu[s][k - 1]) == 0 && tcp_gpu_fill(gpu[s][k - 1], NULL) == 0);
                CHECK(tcp_rail_gpu(sides[s].rail, gpu[s][k - 1]) == 0);
            }
            take_region(s, k);
        }
    }
    for (life_number = 1; life_number <= lives; life_number++) {
        seed = UINT64_C(0x9e3779b97f4a7c15) * (uint64_t)life_number;
        life(life_number % 3 == 0, life_number % 2 == 0);
    }
    CHECK(soon[0] && soon[1]); /* small frames have come */
    for (int s = 0; s < 2; s++) {
        for (int k = 0; k < KINDS; k++) {
            CHECK(tcp_deregister(sides[s].rail, memory_of(s, k)->number) == 0);
            munmap(memory_of(s, k)->seen, SIZE);
        }
        CHECK(tcp_rail_free(sides[s].rail) == 0);
        for (int k = 0; k < 2; k++)
            tcp_gpu_free(gpu[s][k]);
    }
}
