/* Pieces of WRITEs that a polling target copies. */
#include <string.h>

#include "world.h"

static void helping_target(pair *p)
{
    atomic_store(&p->me.rail->base.attended, 1);
    wait_target(p);
}

void lent(void)
{
    for (uint32_t threads = 0; threads < 3; threads += 2) {
        pair p = split(threads, helping_target);
        uint8_t *want = malloc(MEM);
        CHECK(want);
        memset(want, 0, MEM);
        atomic_store(&p.me.rail->base.attended, 1);
        for (int i = 0; i < 400; i++) {
            uint64_t len = (uint64_t)rand() % (i % 4 ? 1000000 : 100000) + 1, from = (uint64_t)rand() % (MEM - len), to = (uint64_t)rand() % (MEM - len);
            for (uint64_t k = 0; k < len; k++)
                p.me.mem[from + k] = (uint8_t)rand();
            memcpy(want + to, p.me.mem + from, len);
            CHECK(rma(&p.me, GR_WRITE, &p.peer, from, to, len) == 0);
        }
        CHECK(rma(&p.me, GR_READ, &p.peer, 0, 0, MEM) == 0);
        CHECK(memcmp(want, p.me.mem, MEM) == 0);
        free(want);
        tell(&p, 'q');
        finish(&p);
    }
}
