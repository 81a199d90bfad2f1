/* Pieces that a polling target copies for us, from the initiator's side. */
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "offloads.h"

/* Many copies of all sizes, in both directions: every byte is in its place, and the target has copied some. */
void offloads(void)
{
    enum { PIECES = 5 };
    static const uint64_t bounds[PIECES + 1] = {0, 70000, 70000 + 140001, 1 << 20, 2 << 20, (2 << 20) + 900001};
    uint32_t each = (uint32_t)times(6); /* rounds without threads, and with two */
    for (uint32_t round = 0; round < 2 * each; round++) {
        static pair p;
        if (round % each == 0) {
            p = split(round ? 2 : 0, wait_target);
            wait_assists(&p);
        }
        end *me = &p.me;
        int had = 0;
        for (uint64_t stop = limit(); !had;) { /* repeated: a target that is not scheduled copies nothing */
            CHECK(cma_now() < stop);
            for (int i = 0; i < MEM; i++)
                me->mem[i] = (uint8_t)(i * 7 + i / 4096 + (int)round);
            me->done = me->err = 0;
            for (int i = 0; i < PIECES; i++)
                begin(&p, GR_WRITE, bounds[i], bounds[i + 1] - bounds[i], &ctx[i]);
            wait_done(me, PIECES);
            had = copied_by_peer(&p);
            forget_offers(&p);
            memset(me->mem, 0, MEM);
            for (int i = 0; i < PIECES; i++)
                begin(&p, GR_READ, bounds[i], bounds[i + 1] - bounds[i], &ctx[i]);
            wait_done(me, 2 * PIECES);
            had = had && copied_by_peer(&p);
            forget_offers(&p);
            CHECK(me->err == 0 && me->ep->pool.offers == 0 && me->rail->pool.offloaded == NULL);
            for (uint64_t i = 0; i < bounds[PIECES]; i++)
                CHECK(me->mem[i] == (uint8_t)((int)i * 7 + (int)i / 4096 + (int)round));
        }
        if (round % each == each - 1) {
            pipe_put(&p, 'q');
            finish(&p);
        }
    }
}

static void idle_target(pair *p)
{
    claims_to_assist(p);
    pipe_put(p, 'c');
    CHECK(pipe_get(p) == 'q');
}

/* With two processors no pool thread starts, because the polling threads on both sides use them. With three one starts. */
void few_cpus(void)
{
    for (uint32_t cpus = 2; cpus < 4; cpus++) {
        pair p = split(1, idle_target);
        cma_rail *rail = p.me.rail;
        CHECK(pipe_get(&p) == 'c');
        rail->cpus = cpus;
        wait_assists(&p);
        for (int i = 0; i < 3; i++)
            begin(&p, GR_WRITE, (uint64_t)i << 20, 1 << 20, &ctx[i]);
        cma_ops.assist(&rail->base);
        CHECK(rail->pool.copiers.started == cpus - 2);
        wait_done(&p.me, 3);
        pipe_put(&p, 'q');
        finish(&p);
    }
}

/* An offer that the target has not begun is withdrawn. */
void withdrawn(void)
{
    pair p = split(0, idle_target);
    CHECK(pipe_get(&p) == 'c');
    wait_assists(&p);
    for (int op = 0; op < 2; op++) {
        memset(p.me.mem, 5, MEM);
        CHECK(rma(&p.me, op ? GR_READ : GR_WRITE, &p.peer, 0, 0, MEM / 4) == 0);
        CHECK(p.me.ep->pool.offers == 0 && !copied_by_peer(&p));
    }
    for (int i = 0; i < MEM; i++)
        CHECK(p.me.mem[i] == 5);
    pipe_put(&p, 'q');
    finish(&p);
}

/* We copy what the peer cannot. After -EPERM the peer gets no more offers. */
void refused(void)
{
    pair p = split(0, answering);
    CHECK(pipe_get(&p) == 'c');
    wait_assists(&p);
    for (int op = 0; op < 2; op++) {
        pipe_put(&p, op ? 'p' : 'a');
        for (uint64_t stop = limit(); !copied_by_peer(&p);) {
            CHECK(cma_now() < stop);
            CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, MEM / 4) == 0);
        }
        CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, MEM / 4) == 0);
        CHECK(p.me.ep->pool.declined == op && p.me.ep->pool.offers == 0);
        forget_offers(&p);
    }
    pipe_put(&p, 'q');
    finish(&p);
}

/* A target that keeps overwriting the offers. */
static void scribbler(pair *p)
{
    claims_to_assist(p);
    pipe_put(p, 'c');
    cma_offer *o = p->me.ep->shm->offer;
    for (char c = 0; c != 'q';) {
        for (int i = 0; i < 100000; i++)
            ((volatile cma_offer *)&o[i % CMA_OFFERS])->n = (uint32_t)i << 12;
        if (recv(p->pipe, &c, 1, MSG_DONTWAIT) < 0)
            c = 0;
    }
}

void overwritten_offers(void)
{
    pair p = split(0, scribbler);
    CHECK(pipe_get(&p) == 'c');
    wait_assists(&p);
    for (int i = 0; i < 2000; i++)
        CHECK(rma(&p.me, i % 2 ? GR_READ : GR_WRITE, &p.peer, 0, 0, 128 << 10) == 0);
    pipe_put(&p, 'q');
    finish(&p);
}

/* A sleeping peer gets a doorbell when its copy has been made. */
static void sleeper(pair *p)
{
    cma_rail *rail = p->me.rail;
    struct pollfd f = {.fd = rail->base.wait_fd, .events = POLLIN};
    wait_assists(p);
    gr_rail_lock(&rail->base);
    for (uint64_t stop = limit(); cma_ops.arm(&rail->base);)
        CHECK(cma_now() < stop);
    gr_rail_unlock(&rail->base);
    begin(p, GR_WRITE, 0, MEM / 4, &ctx[0]);
    atomic_store(&p->me.ep->peer.shm->assists, 1); /* whatever the target says at the moment */
    cma_job *job = take_half(rail);
    CHECK(poll(&f, 1, 1000 * LIMIT_S) == 1);
    cma_pool_copy(rail, job, CMA_COPIERS - 1);
    wait_done(&p->me, 1);
    CHECK(p->me.err == 0 && copied_by_peer(p));
    pipe_put(p, 'd');
}

void assist_rings(void)
{
    pair p = split(0, sleeper);
    poll_until(&p, 'd');
    finish(&p);
}
