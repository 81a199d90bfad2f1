/* A driver of GPUs that does what a test says: nothing is copied, mappings are counted. */
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "world.h"

struct gr_gpu_job { int under_way; };

fake_gpu fake;

static int find(gr_gpu *g, const uint8_t uuid[16])
{
    (void)g;
    return uuid[0];
}

static int fails(gr_gpu_fault *fault)
{
    if (!fake.map_fails)
        return 0;
    fake.map_fails--;
    if (fault)
        *fault = (gr_gpu_fault){ .why = fake.why, .call = "map" };
    return -fake.why;
}

static int map(gr_gpu *g, const gr_gpu_share *s, int device, gr_gpu_map **out, int *feeder, gr_gpu_fault *fault)
{
    (void)g;
    fake.maps++;
    int rc = fails(fault);
    if (rc)
        return rc;
    gr_gpu_map *m = calloc(1, sizeof(*m));
    CHECK(m);
    m->at = s->base + (1 << 20);
    m->base = s->base;
    m->size = s->size;
    m->device = device;
    m->pieces = s->pieces;
    *feeder = s->how == GR_GPU_SHARE_FDS;
    atomic_store(&m->state, *feeder ? GR_GPU_MAP_OPENING : GR_GPU_MAP_READY);
    atomic_fetch_add(&fake.mapped, 1);
    *out = m;
    return 0;
}

static int map_add(gr_gpu *g, gr_gpu_map *m, uint32_t n, const int *fds, const uint64_t *sizes, gr_gpu_fault *fault)
{
    (void)g;
    (void)sizes;
    (void)fault;
    for (uint32_t i = 0; i < n; i++)
        close(fds[i]);
    if (atomic_fetch_add(&m->have, n) + n == m->pieces)
        atomic_store(&m->state, GR_GPU_MAP_READY);
    return 0;
}

static void map_fail(gr_gpu *g, gr_gpu_map *m, int why)
{
    (void)g;
    m->why = why;
    atomic_store(&m->state, GR_GPU_MAP_FAILED);
}

static int unmap(gr_gpu *g, gr_gpu_map *m, gr_gpu_fault *fault)
{
    (void)g;
    (void)fault;
    free(m);
    nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
    atomic_fetch_sub(&fake.mapped, 1);
    return 0;
}

static int pieces(gr_gpu *g, const gr_gpu_mem *mem, uint32_t first, uint32_t n, int *fds, uint64_t *sizes, gr_gpu_fault *fault)
{
    (void)g;
    (void)fault;
    CHECK(first + n <= mem->pieces);
    for (uint32_t i = 0; i < n; i++) {
        CHECK((fds[i] = dup(1)) >= 0);
        sizes[i] = 4096;
    }
    return 0;
}

static int table(gr_gpu *g, int device, gr_gpu_table **out, gr_gpu_fault *fault)
{
    (void)g;
    (void)device;
    (void)fault;
    *out = malloc(1);
    return 0;
}

static void table_free(gr_gpu_table *t) { free(t); }

static int entry(gr_gpu_table *t, uint32_t index, uint64_t delta, gr_gpu_fault *fault)
{
    (void)t;
    (void)index;
    (void)delta;
    (void)fault;
    return 0;
}

static int lane(gr_gpu *g, int device, int peer, gr_gpu_lane **out, gr_gpu_fault *fault)
{
    (void)g;
    (void)device;
    (void)peer;
    (void)fault;
    *out = malloc(1);
    return 0;
}

static void lane_close(gr_gpu *g, gr_gpu_lane *l)
{
    (void)g;
    free(l);
}

static int job(gr_gpu_lane *l, gr_gpu_job **out, gr_gpu_fault *fault)
{
    (void)l;
    (void)fault;
    *out = calloc(1, sizeof(**out));
    return 0;
}

static int job_free(gr_gpu_job *j)
{
    free(j);
    return 0;
}

static int post(gr_gpu_job *j, const gr_gpu_work *w, gr_gpu_fault *fault)
{
    (void)fault;
    fake.work = *w;
    j->under_way = 1;
    return 0;
}

static int poll_job(gr_gpu_job *j, gr_gpu_fault *fault)
{
    (void)fault;
    if ((j->under_way == 1 && atomic_load(&fake.held)) || (j->under_way == 3 && atomic_load(&fake.stuck)))
        return 1;
    int rc = j->under_way >= 2 ? -GR_GPU_CANCELLED : 0;
    j->under_way = 0;
    return rc;
}

static void cancel(gr_gpu_job *j) { j->under_way = 2 + atomic_load(&fake.stuck); }

static const gr_gpu_ops ops = {
    .find = find, .map = map, .map_add = map_add, .map_fail = map_fail, .unmap = unmap, .pieces = pieces, .table = table, .table_free = table_free,
    .entry = entry, .lane = lane, .lane_close = lane_close, .job = job, .job_free = job_free, .post = post, .poll = poll_job, .cancel = cancel,
};

gr_gpu *fake_driver(void)
{
    static gr_gpu g = { .ops = &ops, .devices = 2, .owner = "this process" };
    fake.map_fails = fake.maps = 0;
    return &g;
}

/* A region of GPU 0: made up, nobody touches it. */
uint64_t fake_region(end *e, int number, int how, uint32_t pieces_of)
{
    gr_gpu_share s = { .version = GR_GPU_SHARE_VERSION, .how = (uint32_t)how, .base = fake_at(number), .size = FAKE_SIZE, .pieces = pieces_of };
    memcpy(s.owner, "another process", 16);
    return open_region(e, s.base, s.size, &s);
}

int fake_bulk(end *e, int number, uint64_t key)
{
    static lc_vram here;
    static gr_op op;
    gr_bulk_region local = { .desc = &here }, remote = { .index = (uint32_t)number, .addr = fake_at(number), .len = FAKE_SIZE, .key = key };
    gr_bulk b = { .ops = &op, .nops = 1, .bytes = 1, .local = &local, .remote = &remote, .nlocal = 1, .nremote = 1 };
    gr_rail_lock(&e->rail->base);
    int rc = lc_ops.bulk(&e->rail->base, e->ep, GR_WRITE, &b, &ctx[3]);
    gr_rail_unlock(&e->rail->base);
    return rc;
}

int fake_bulk_until(end *e, int number, uint64_t key, double seconds)
{
    int rc;
    for (uint64_t stop = lc_now() + (uint64_t)(seconds * 1e9); (rc = fake_bulk(e, number, key)) == -EAGAIN && lc_now() < stop;)
        poll_end(e);
    return rc;
}
