/* Questions to the owner of GPU memory: is it still what was mapped? Over a fake driver and mapper. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "world.h"

static end a, b;
static uint64_t key;

static void open_both(int op, int far)
{
    a = open_end(0), b = open_end(0);
    atomic_store(&a.rail->gpu.driver, fake_driver());
    atomic_store(&b.rail->gpu.driver, fake_driver());
    join(&a, &b);
    start_mapper(&a);
    start_mapper(&b);
    fake.posts = 0;
    fake_op = op;
    fake_far = far;
    key = fake_region(&b, 1, GR_GPU_SHARE_IPC, 1);
    CHECK(fake_bulk_until(&a, 1, key, LIMIT_S) == 0);
    for (uint64_t stop = limit(); a.done < 1; fake_poll(&a))
        CHECK(cma_now() < stop);
    CHECK(a.err == 0 && fake.posts == 1 && fake.asked_from == fake_at(1) + 4096 && fake.asked_len == 64);
}

static void close_both(void)
{
    CHECK(close_region(b.rail, key) == 0);
    close_end(&a);
    close_end(&b);
    CHECK(atomic_load(&fake.mapped) == 0);
}

/* Posts, and polls our end alone for a while: the peer's answer is missing. Returns the jobs that this has posted. */
static int unanswered(void)
{
    int posts = fake.posts;
    CHECK(fake_bulk(&a, 1, key) == 0);
    for (int i = 0; i < 100; i++)
        poll_end(&a);
    return fake.posts - posts;
}

/* The end of the transfer: its error. */
static int ended(void)
{
    int before = a.done;
    a.err = 0;
    for (uint64_t stop = limit(); a.done == before; fake_poll(&a))
        CHECK(cma_now() < stop);
    return a.err;
}

/* Other memory is there now, or none: nothing is posted, and the next transfer maps it anew. */
void asked_write(void)
{
    open_both(GR_WRITE, 1);
    CHECK(unanswered() == 0 && !cma_bulk_busy(a.rail)); /* a thread may sleep meanwhile */
    CHECK(ended() == 0 && fake.posts == 2);
    for (int i = 0; i < 2; i++) {
        int posts = fake.posts, maps = fake.maps;
        fake.same = i ? -GR_GPU_UNMAPPED : -GR_GPU_CHANGED;
        CHECK(unanswered() == 0 && ended() == EREMCHG && fake.posts == posts && atomic_load(&b.rail->changed));
        wait_mapper(&a);
        CHECK(atomic_load(&fake.mapped) == 0);
        fake.same = 0;
        CHECK(fake_bulk_until(&a, 1, key, LIMIT_S) == 0 && ended() == 0 && fake.posts == posts + 1 && fake.maps == maps + 1);
    }
    close_both();
}

/* A READ is posted at once, and is done with the answer. */
void asked_read(void)
{
    open_both(GR_READ, 1);
    int done = a.done;
    CHECK(unanswered() == 1 && a.done == done && !cma_bulk_busy(a.rail));
    CHECK(ended() == 0);
    fake.same = -GR_GPU_CHANGED;
    CHECK(unanswered() == 1 && ended() == EREMCHG);
    wait_mapper(&a);
    CHECK(atomic_load(&fake.mapped) == 0);
    fake.same = 0;
    CHECK(fake_bulk_until(&a, 1, key, LIMIT_S) == 0 && ended() == 0);
    atomic_store(&fake.held, 1); /* the answer comes before the end of the copy, and ends it */
    fake.same = -GR_GPU_CHANGED;
    CHECK(unanswered() == 1 && ended() == EREMCHG);
    atomic_store(&fake.held, 0);
    fake.same = 0;
    close_both();
    open_both(GR_READ, 0); /* our own memory: not before the answer */
    CHECK(unanswered() == 0 && ended() == 0);
    close_both();
}

/* Our own memory: other memory than was registered is not copied here, nor is none. */
void asked_here(void)
{
    open_both(GR_READ, 1);
    for (int i = 0; i < 2; i++) {
        int posts = fake.posts, before = a.done;
        fake.here = i ? -GR_GPU_CHANGED : -GR_GPU_UNMAPPED;
        a.err = 0;
        CHECK(fake_bulk(&a, 1, key) == 0);
        poll_end(&a);
        CHECK(a.done == before + 1 && a.err == EREMCHG && fake.posts == posts && atomic_load(&a.rail->changed));
    }
    fake.here = 0;
    close_both();
}

/* A stopped transfer, and one whose peer has gone, end without the answer. A late answer is not taken for the next question's. */
void asked_given_up(void)
{
    open_both(GR_WRITE, 1);
    CHECK(unanswered() == 0);
    int before = a.done;
    gr_rail_lock(&a.rail->base);
    cma_bulk_ops.stop(&a.rail->base, a.ep, &ctx[3]);
    gr_rail_unlock(&a.rail->base);
    poll_end(&a);
    CHECK(a.done == before + 1 && a.err == ECANCELED);
    cma_question *q = &b.ep->shm->question[0];
    uint64_t late = (uint64_t)q->seq << 32 | CMA_SAME;
    CHECK(unanswered() == 0);
    atomic_store(&q->answer, late);
    CHECK(a.done == before + 1);
    poll_end(&a);
    CHECK(a.done == before + 1);
    fake.same = -GR_GPU_CHANGED;
    CHECK(ended() == EREMCHG);
    fake.same = 0;
    CHECK(fake_bulk_until(&a, 1, key, LIMIT_S) == 0 && ended() == 0);
    CHECK(unanswered() == 0);
    atomic_store(&b.ep->shm->closed, 1);
    before = a.done;
    poll_end(&a);
    CHECK(a.done == before + 1 && a.err == ECONNRESET);
    close_both();
}

static uint32_t answer(uint32_t n, uint64_t k, uint64_t addr, uint64_t len, uint64_t inode)
{
    cma_question *q = &b.ep->shm->question[3];
    q->seq++;
    q->n = n;
    for (uint32_t i = 0; i < CMA_ASK_RANGES; i++)
        q->range[i] = (cma_range){.key = i ? key : k, .addr = i ? fake_at(1) : addr, .len = len, .inode = inode};
    atomic_fetch_or(&b.ep->shm->asked, 1u << 3);
    for (int i = 0; i < 10; i++)
        poll_end(&b);
    uint64_t is = atomic_load(&q->answer);
    CHECK(is >> 32 == q->seq && !atomic_load(&b.ep->shm->asked));
    return (uint32_t)is;
}

/* Questions that no honest peer asks get an error. */
void hostile_questions(void)
{
    open_both(GR_WRITE, 1);
    CHECK(answer(1, key, fake_at(1), 64, 0) == CMA_SAME && answer(CMA_ASK_RANGES, key, fake_at(1), FAKE_SIZE, 0) == CMA_SAME);
    CHECK(answer(0, key, fake_at(1), 64, 0) == EPROTO && answer(CMA_ASK_RANGES + 1, key, fake_at(1), 64, 0) == EPROTO);
    CHECK(answer(UINT32_MAX, key, fake_at(1), 64, 0) == EPROTO);
    CHECK(answer(2, UINT64_MAX, fake_at(1), 64, 0) == EACCES && answer(2, key + ((uint64_t)1 << 32), fake_at(1), 64, 0) == EACCES);
    CHECK(answer(2, key, fake_at(1) - 1, 64, 0) == ERANGE && answer(2, key, fake_at(1), UINT64_MAX, 0) == ERANGE);
    CHECK(answer(1, key, fake_at(1), 64, 1) == ESTALE); /* no file */
    uint64_t tasks = cma_mapper_asked(b.rail); /* one look is asked for, until it begins */
    CHECK(answer(1, key, fake_at(1), 64, 1) == ESTALE && cma_mapper_asked(b.rail) == tasks);
    cma_looks(b.rail); /* the task is still queued */
    CHECK(answer(1, key, fake_at(1), 64, 1) == ESTALE && cma_mapper_asked(b.rail) == tasks);
    wait_mapper(&b);
    cma_change_told(b.rail);
    CHECK(answer(1, key, fake_at(1), 64, 1) == ESTALE && cma_mapper_asked(b.rail) == tasks);
    cma_looks(b.rail);
    CHECK(answer(1, key, fake_at(1), 64, 1) == ESTALE && cma_mapper_asked(b.rail) == tasks + 1);
    CHECK(answer(1, b.key, (uint64_t)(uintptr_t)b.mem, 64, 0) == ESTALE && answer(1, b.key, (uint64_t)(uintptr_t)b.mem, 64, 1) == ESTALE);
    close_both();
}

/* ---- memory of many handles ---- */

enum { HANDLES = 32 << 10, A_TURN = 8192 };
static const uint64_t HANDLE = 2 << 20, MANY = (uint64_t)HANDLES * (2 << 20), MANY_AT = UINT64_C(1) << 45;
static cma_vram many;

static uint64_t many_handles(void)
{
    gr_gpu_parts *p = calloc(1, sizeof(*p) + HANDLES * sizeof(p->part[0]));
    CHECK(p);
    p->n = HANDLES;
    for (uint32_t i = 0; i < HANDLES; i++)
        p->part[i] = (gr_gpu_part){MANY_AT + i * HANDLE, MANY_AT + (i + 1) * HANDLE, i + 1};
    gr_gpu_share s = {.version = GR_GPU_SHARE_VERSION, .how = GR_GPU_SHARE_IPC, .base = MANY_AT, .size = MANY, .pieces = 1};
    many.parts = p;
    uint64_t k = open_region(&b, MANY_AT, MANY, &s);
    atomic_store(&b.rail->known[(uint32_t)k], &many);
    return k;
}

static void question(cma_ep *ep, uint32_t i, uint32_t n, const cma_range *range)
{
    cma_question *q = &ep->shm->question[i];
    q->seq++;
    q->n = n;
    memcpy(q->range, range, n * sizeof(*range));
    atomic_fetch_or(&ep->shm->asked, UINT32_C(1) << i);
}

/* 0: not answered. */
static uint32_t answered(cma_ep *ep, uint32_t i)
{
    cma_question *q = &ep->shm->question[i];
    uint64_t is = atomic_load(&q->answer);
    return is >> 32 == q->seq ? (uint32_t)is : 0;
}

static uint32_t answer_of(uint32_t i)
{
    for (uint64_t stop = limit(); !answered(b.ep, i); poll_end(&b))
        CHECK(cma_now() < stop);
    return answered(b.ep, i);
}

/* A peer asks all that it can about memory of many handles. Each poll looks at a turn of it, so that another peer has its answer after one, and
 * all questions are answered in the end, each handle once. */
void asked_turns(void)
{
    open_both(GR_WRITE, 1);
    end c = open_end(0), beside = open_beside(&b);
    join(&c, &beside);
    uint64_t k = many_handles();
    cma_range all[CMA_ASK_RANGES], small = {.key = key, .addr = fake_at(1), .len = 64};
    for (uint32_t i = 0; i < CMA_ASK_RANGES; i++)
        all[i] = (cma_range){.key = k, .addr = MANY_AT, .len = MANY};
    for (uint32_t i = 0; i < CMA_ASKS; i++)
        question(b.ep, i, CMA_ASK_RANGES, all);
    question(beside.ep, 0, 1, &small);
    fake.looked = 0;
    for (int i = 0; i < 2; i++) {
        uint64_t before = fake.looked;
        poll_end(&b);
        CHECK(fake.looked - before <= (A_TURN + 1) * HANDLE);
    }
    CHECK(answered(beside.ep, 0) == CMA_SAME && !answered(b.ep, 0));
    for (uint32_t i = 0; i < CMA_ASKS; i++)
        CHECK(answer_of(i) == CMA_SAME);
    CHECK(fake.looked == CMA_ASKS * CMA_ASK_RANGES * MANY + small.len && !atomic_load(&b.ep->shm->asked));
    /* a change in a later turn, and in the second range */
    cma_range two[] = {{.key = k, .addr = MANY_AT + 1, .len = MANY / 2}, {.key = k, .addr = MANY_AT + MANY / 2, .len = MANY / 2}};
    fake.changed_at = MANY_AT + MANY - 1;
    question(b.ep, 5, 2, two);
    CHECK(answer_of(5) == (1 << 16 | ESTALE));
    fake.changed_at = 0;
    /* another question in the place of one that was given up begins anew */
    question(b.ep, 5, 1, all);
    poll_end(&b);
    CHECK(!answered(b.ep, 5));
    fake.looked = 0;
    question(b.ep, 5, 1, all);
    CHECK(answer_of(5) == CMA_SAME && fake.looked == MANY);
    /* a question that shrinks meanwhile */
    question(b.ep, 5, 1, all);
    poll_end(&b);
    b.ep->shm->question[5].range[0].len = 1;
    CHECK(answer_of(5) == EPROTO);
    CHECK(close_region(b.rail, k) == 0);
    close_beside(&beside);
    close_end(&c);
    free((void *)many.parts);
    close_both();
}
