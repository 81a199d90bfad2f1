/* The ring of completions (gr_ready.h), compared with a count: in any sequence of puts, takes and growth each
 * completion comes out once and in order, and the ring takes as many as it has room for. */
#include <stdint.h>

#include "world.h"

static void put(gr_ready *r, uint64_t *next)
{
    gr_ready_owe(r);
    gr_ready_put(r, (gr_comp){.len = (*next)++});
}

static void take(gr_ready *r, int max, uint64_t *next)
{
    gr_comp out[64];
    int n = gr_ready_take(r, out, max);
    CHECK(n == max || gr_ready_empty(r));
    for (int i = 0; i < n; i++)
        CHECK(out[i].len == (*next)++);
}

void ready_ring(void)
{
    for (uint32_t start = UINT32_MAX - 5000, n = 0; n < 2; start = 3, n++) { /* one start lets the numbers wrap */
        gr_ready r = {0};
        uint64_t in = 0, out = 0;
        CHECK(gr_ready_full(&r) && gr_ready_empty(&r));
        CHECK(gr_ready_room(&r, 1) == 0 && r.size == GR_READY_LEAST);
        r.head = r.tail = start;
        for (uint32_t want = 2; r.size < 16 * GR_READY_LEAST; want = r.size + 1) {
            for (int i = 0; i < 300; i++) {
                for (int k = rand() % 64; k > 0 && !gr_ready_full(&r); k--)
                    put(&r, &in);
                take(&r, rand() % 64, &out);
                CHECK(in - out == r.owed);
            }
            while (!gr_ready_full(&r))
                put(&r, &in);
            CHECK(in - out == r.size);
            take(&r, rand() % 64, &out);
            CHECK(gr_ready_room(&r, want) == 0 && r.size >= want);
        }
        gr_ready_owe(&r); /* posted and not completed: it keeps its room */
        while (!gr_ready_empty(&r))
            take(&r, 64, &out);
        CHECK(in == out && r.owed == 1 && r.tail == 0); /* the next completion is in the first page again */
        gr_ready_free(&r);
        CHECK(gr_ready_full(&r));
    }
}
