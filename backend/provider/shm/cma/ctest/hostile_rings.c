/* Requests and answers that make no sense, over a ring within one process. */
#include "world.h"

static int answer(end *b, const cma_chunk *c)
{
    for (uint64_t stop = limit(); !atomic_load(&c->ended); poll_end(b))
        CHECK(cma_now() < stop);
    return atomic_load(&c->ended);
}

/* Requests that make no sense are refused, and touch nothing. */
void hostile_chunks(void)
{
    rings = 1;
    end a = open_end(0), b = open_end(0);
    join(&a, &b);
    uint64_t base = (uint64_t)(uintptr_t)b.mem;
    const struct {
        uint32_t write, n;
        uint64_t key, addr, len;
        int want;
    } bad[] = {
        {1, 0, b.key, base, 64, EPROTO},
        {1, GR_MAX_IOV + 1, b.key, base, 64, EPROTO},
        {0, UINT32_MAX, b.key, base, 64, EPROTO},
        {1, 1, b.key, base, RING / CMA_CHUNKS + 1, EMSGSIZE},
        {0, 2, b.key, base, UINT64_MAX / 2 + 1, EMSGSIZE},
        {1, 1, b.key + 1, base, 64, EACCES},
        {1, 1, UINT32_MAX, base, 64, EACCES},
        {1, 1, b.key, base - 1, 64, ERANGE},
        {0, 1, b.key, base + MEM - 63, 64, ERANGE},
        {7, 2, b.key, base, 64, 0},
    };
    cma_shm *out = a.ep->peer.shm;
    for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cma_chunk *c = &out->chunk[i % CMA_CHUNKS];
        atomic_store(&c->ended, 0);
        c->write = bad[i].write;
        c->n = bad[i].n;
        for (int k = 0; k < GR_MAX_IOV; k++) {
            c->piece[k].key = bad[i].key;
            c->piece[k].addr = bad[i].addr;
            c->piece[k].len = bad[i].len;
        }
        atomic_fetch_or(&out->requested, 1u << (i % CMA_CHUNKS));
        CHECK(answer(&b, c) == (bad[i].want ? -bad[i].want : CMA_COPIED));
    }
    atomic_store(&out->requested, UINT32_MAX << CMA_CHUNKS); /* bits without a chunk */
    for (int i = 0; i < 100; i++)
        poll_end(&b);
    region_info to = own_region(&b);
    CHECK(post_end(&a, GR_WRITE, &to, 0, 0, 64, &ctx[0]) == 0);
    for (uint64_t stop = limit(); !a.done; poll_end(&a), poll_end(&b))
        CHECK(cma_now() < stop);
    CHECK(a.err == 0);
    close_end(&a);
    close_end(&b);
}

/* Answers that make no sense end the operation with an error. */
void hostile_answers(void)
{
    const int32_t bad[] = {INT32_MIN, -4096, 2, INT32_MAX, -EFAULT};
    rings = 1;
    end a = open_end(0), b = open_end(0);
    join(&a, &b);
    region_info to = own_region(&b);
    for (int i = 0; i < 5; i++) {
        CHECK(post_end(&a, i % 2 ? GR_READ : GR_WRITE, &to, 0, 0, 64, &ctx[0]) == 0);
        atomic_store(&b.ep->shm->requested, 0);
        for (uint32_t k = 0; k < CMA_CHUNKS; k++)
            if (a.ep->ring.busy & 1u << k)
                atomic_store(&b.ep->shm->chunk[k].ended, bad[i]);
        wait_done(&a, i + 1);
        CHECK(a.err == (bad[i] == -EFAULT ? EFAULT : EPROTO));
    }
    close_end(&a);
    close_end(&b);
}
