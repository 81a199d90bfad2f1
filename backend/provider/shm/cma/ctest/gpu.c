/* A fake GPU driver and mapper that do what a test says: they copy nothing and count mappings. */
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "world.h"

struct gr_gpu_job {
    int under_way;
};

fake_gpu fake;

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

static int stream(gr_gpu *g, int device, int peer, gr_gpu_stream **out, gr_gpu_fault *fault)
{
    (void)g;
    (void)device;
    (void)peer;
    (void)fault;
    *out = malloc(1);
    fake.streams++;
    return 0;
}

static void stream_close(gr_gpu *g, gr_gpu_stream *l)
{
    (void)g;
    fake.streams--;
    free(l);
}

static int job(gr_gpu_stream *l, gr_gpu_job **out, gr_gpu_fault *fault)
{
    (void)l;
    (void)fault;
    *out = calloc(1, sizeof(**out));
    fake.jobs++;
    return 0;
}

static int job_free(gr_gpu_job *j)
{
    CHECK(!j->under_way);
    fake.jobs--;
    free(j);
    return 0;
}

static int post(gr_gpu_job *j, const gr_gpu_work *w, gr_gpu_fault *fault)
{
    (void)fault;
    fake.work = *w;
    fake.posts++;
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

static int same(gr_gpu *g, const gr_gpu_parts *parts, uint64_t addr, uint64_t len, uint32_t need, uint64_t *at)
{
    (void)g;
    CHECK(addr >= parts->part[0].base && addr + len <= parts->part[parts->n - 1].end);
    *at = addr;
    if (need)
        return fake.here;
    fake.looked += len;
    if (fake.changed_at >= addr && fake.changed_at < addr + len)
        return -GR_GPU_CHANGED;
    fake.asked_from = addr;
    fake.asked_len = len;
    return fake.same;
}

static void ops_free(gr_gpu *g, void *mem)
{
    (void)g;
    fake.freed += mem == fake_ops();
}

static const gr_gpu_ops ops = {
    .free = ops_free,
    .same = same,
    .table = table,
    .table_free = table_free,
    .entry = entry,
    .stream = stream,
    .stream_close = stream_close,
    .job = job,
    .job_free = job_free,
    .post = post,
    .poll = poll_job,
    .cancel = cancel,
};

struct mapper {
    cma_rail *rail;
    int peer_file;
    int doorbell;
    pthread_t thread;
    _Atomic uint64_t done;
    _Atomic int stop;
};

int view_prot = PROT_READ | PROT_WRITE, view_fails;

/* The region is all of the file. */
static void do_view(cma_rail *rail, int peer_file, cma_task *t)
{
    if (t->what == CMA_VIEW_BEGIN) {
        cma_view *v = (cma_view *)(void *)((char *)t - offsetof(cma_view, begin));
        CHECK(v->len == MEM);
        if (view_fails) {
            v->retry_ns = view_fails-- % 2 ? 0 : cma_now();
            atomic_store(&v->state, CMA_VIEW_FAILED);
            return;
        }
        v->at = mmap(NULL, v->len, view_prot, MAP_SHARED, peer_file, 0);
        CHECK(v->at != MAP_FAILED);
        v->writable = (view_prot & PROT_WRITE) != 0;
        struct stat st;
        CHECK(fstat(peer_file, &st) == 0);
        v->dev = (uint64_t)major(st.st_dev) << 32 | minor(st.st_dev);
        v->inode = st.st_ino;
        atomic_store(&v->state, CMA_VIEW_READY);
        return;
    }
    cma_view *v = (cma_view *)(void *)((char *)t - offsetof(cma_view, end));
    CHECK(v->users == 0 && (!v->at || munmap(v->at, v->len) == 0));
    atomic_fetch_sub(&rail->mapper.views, 1);
    atomic_fetch_sub(&rail->mapper.view_bytes, v->len);
    free(v);
}

static void do_task(cma_rail *rail, int peer_file, cma_task *t)
{
    int what = t->what;
    if (what == CMA_CHANGED)
        return;
    if (what == CMA_PAIR) {
        cma_pair_make(rail, t);
        return;
    }
    if (what == CMA_VIEW_BEGIN || what == CMA_VIEW_END) {
        do_view(rail, peer_file, t);
        return;
    }
    cma_import *m = cma_task_import(t);
    if (what == CMA_BEGIN) {
        int why = fake.map_fails ? fake.why : 0;
        fake.maps++;
        fake.source = m->share.pad;
        fake.map_fails -= why != 0;
        atomic_fetch_add(&fake.mapped, !why);
        CHECK(cma_import_finish(rail, m, why, 1 << 20) == why);
        return;
    }
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    atomic_fetch_sub(&fake.mapped, atomic_load(&m->state) == CMA_READY);
    cma_import_free(m);
}

static void *map_tasks(void *arg)
{
    struct mapper *m = arg;
    uint64_t rings;
    while (!atomic_load(&m->stop)) {
        CHECK(read(m->doorbell, &rings, sizeof(rings)) == sizeof(rings));
        for (cma_task *t; (t = cma_mapper_take(m->rail)); atomic_fetch_add(&m->done, 1))
            do_task(m->rail, m->peer_file, t);
    }
    return NULL;
}

void start_mapper(end *e)
{
    e->mapper = calloc(1, sizeof(*e->mapper));
    CHECK(e->mapper);
    e->mapper->rail = e->rail;
    e->mapper->peer_file = e->peer_file;
    e->mapper->doorbell = e->mapper_fd;
    CHECK(pthread_create(&e->mapper->thread, NULL, map_tasks, e->mapper) == 0);
}

void wait_mapper(end *e)
{
    uint64_t all = cma_mapper_asked(e->rail);
    while (e->mapper && atomic_load(&e->mapper->done) < all)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

void end_mapper(end *e)
{
    if (!e->mapper)
        return;
    wait_mapper(e);
    atomic_store(&e->mapper->stop, 1);
    CHECK(write(e->mapper_fd, &(uint64_t){1}, sizeof(uint64_t)) == sizeof(uint64_t));
    CHECK(pthread_join(e->mapper->thread, NULL) == 0);
    free(e->mapper);
    e->mapper = NULL;
}

gr_gpu *fake_driver(void)
{
    static gr_gpu g = {.ops = &ops, .devices = 2, .owner = "this process"};
    fake.map_fails = fake.maps = 0;
    return &g;
}

enum { FAKES = 8 };

/* The descriptor of that region. */
static cma_vram *fake_vram(int number)
{
    static struct {
        cma_vram v;
        gr_gpu_parts parts;
        gr_gpu_part part;
    } all[FAKES];
    CHECK(number >= 0 && number < FAKES);
    all[number].parts.n = 1;
    all[number].parts.part[0] = (gr_gpu_part){fake_at(number), fake_at(number) + FAKE_SIZE, 7};
    all[number].v.parts = &all[number].parts;
    return &all[number].v;
}

/* A region of GPU 0 at a made-up address; nothing accesses it. */
uint64_t fake_region(end *e, int number, int how, uint32_t pieces_of)
{
    gr_gpu_share s = {.version = GR_GPU_SHARE_VERSION, .how = (uint32_t)how, .base = fake_at(number), .size = FAKE_SIZE, .pieces = pieces_of};
    memcpy(s.owner, "another process", 16);
    uint64_t key = open_region(e, s.base, s.size, &s);
    atomic_store(&e->rail->known[(uint32_t)key], fake_vram(number));
    return key;
}

int fake_too_many;
uint64_t fake_local;
static gr_op op;

void *fake_ops(void) { return &op; }

int fake_op = GR_WRITE, fake_far;

int fake_bulk(end *e, int number, uint64_t key)
{
    fake_vram(0)->region = fake_local;
    gr_bulk_region local = {.addr = fake_at(0), .len = FAKE_SIZE, .from = fake_at(0), .to = fake_at(0) + 64, .desc = fake_vram(0)};
    gr_bulk_region remote = {.index = (uint32_t)number, .addr = fake_at(number), .len = FAKE_SIZE, .key = key};
    remote.from = remote.addr + 4096;
    remote.to = remote.from + 64;
    gr_bulk b = {.ops = &op, .nops = 1, .bytes = 1, .local = &local, .remote = &remote, .nlocal = 1, .nremote = 1};
    if (fake_too_many)
        b.nops = UINT64_C(1) << 32;
    gr_rail_lock(&e->rail->base);
    e->ep->peer.self = !fake_far;
    int rc = cma_bulk_ops.post(&e->rail->base, e->ep, fake_op, &b, &ctx[3]);
    gr_rail_unlock(&e->rail->base);
    return rc;
}

void fake_poll(end *e)
{
    poll_end(e);
    poll_end(e->peer);
}

int fake_bulk_until(end *e, int number, uint64_t key, double seconds)
{
    int rc, posts = fake.posts, done = e->done;
    uint64_t stop = cma_now() + (uint64_t)(seconds * 1e9);
    while ((rc = fake_bulk(e, number, key)) == -EAGAIN && cma_now() < stop)
        fake_poll(e);
    while (!rc && fake.posts == posts && e->done == done && cma_now() < stop)
        fake_poll(e);
    return rc;
}
