/* Pieces that a polling target copies for us: what we offer, what becomes of it. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "world.h"

/* The same range here and there. */
static void begin(pair *p, int op, uint64_t at, uint64_t len, gr_ctx *c) { CHECK(post_end(&p->me, op, &p->peer, at, at, len, c) == 0); }

/* Takes what was posted from the queue; half of it is offered. */
static lc_job *take_half(lc_rail *rail)
{
    pthread_mutex_lock(&rail->pool.mu);
    lc_job *job = lc_pool_take(rail);
    pthread_mutex_unlock(&rail->pool.mu);
    CHECK(job && job->loan);
    return job;
}

/* Until the target takes offers. */
static void wait_helps(pair *p)
{
    atomic_store(&p->me.rail->base.attended, 1);
    CHECK(rma(&p->me, GR_WRITE, &p->peer, 0, 0, 1) == 0);
    for (uint64_t stop = limit(); !atomic_load(&p->me.ep->peer.box->helps); poll_end(&p->me))
        CHECK(lc_now() < stop);
    p->me.done = 0;
}

/* How many copies the target has made for us, or is making. */
static int copied_by_peer(const pair *p)
{
    int n = 0;
    for (int i = 0; i < LC_OFFERS; i++)
        n += atomic_load(&p->me.ep->peer.box->offer[i].who) != 0;
    return n;
}

static void forget_offers(pair *p)
{
    for (int i = 0; i < LC_OFFERS; i++)
        atomic_store(&p->me.ep->peer.box->offer[i].who, 0);
}

/* Many at a time and of all sizes, both ways: each byte is where it belongs, and the target has copied some. */
void lent(void)
{
    enum { PIECES = 5 };
    static const uint64_t bounds[PIECES + 1] = { 0, 70000, 70000 + 140001, 1 << 20, 2 << 20, (2 << 20) + 900001 };
    for (uint32_t round = 0; round < 40; round++) {
        static pair p;
        if (round % 20 == 0) {
            p = split(round ? 2 : 0, wait_target);
            wait_helps(&p);
        }
        end *me = &p.me;
        int had = 0;
        for (uint64_t stop = limit(); !had;) { /* a target that the system does not run helps nobody */
            CHECK(lc_now() < stop);
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
            CHECK(me->err == 0 && me->ep->pool.lent == 0 && me->rail->pool.lent == NULL);
            for (uint64_t i = 0; i < bounds[PIECES]; i++)
                CHECK(me->mem[i] == (uint8_t)((int)i * 7 + (int)i / 4096 + (int)round));
        }
        if (round % 20 == 19) {
            tell(&p, 'q');
            finish(&p);
        }
    }
}

/* ---- targets that take an offer by hand ---- */

static uint32_t await_offer(pair *p)
{
    lc_box *box = p->me.ep->box;
    for (uint64_t stop = limit();; poll_end(&p->me)) {
        CHECK(lc_now() < stop);
        uint32_t bits = atomic_load(&box->offered);
        for (uint32_t i = 0; i < LC_OFFERS; i++)
            if ((bits & 1u << i) && (atomic_fetch_and(&box->offered, ~(1u << i)) & 1u << i))
                return i;
    }
}

/* It polls, says that it helps and does not. */
static void claims_to_help(pair *p)
{
    for (uint64_t stop = limit(); !p->me.ep->peer.box; poll_end(&p->me))
        CHECK(lc_now() < stop);
    p->me.ep->peer.kin = 0; /* no offer of it is served by what polls */
    atomic_store(&p->me.ep->box->helps, 1);
}

static void idle_target(pair *p)
{
    claims_to_help(p);
    tell(p, 'c');
    CHECK(hear(p) == 'q');
}

/* Two processors are kept busy by whoever polls here and there: no thread is begun; of more processors one is. */
void crowded(void)
{
    for (uint32_t cpus = 2; cpus < 4; cpus++) {
        pair p = split(1, idle_target);
        lc_rail *rail = p.me.rail;
        CHECK(hear(&p) == 'c');
        rail->cpus = cpus;
        wait_helps(&p);
        for (int i = 0; i < 3; i++)
            begin(&p, GR_WRITE, (uint64_t)i << 20, 1 << 20, &ctx[i]);
        lc_unlocked.help(&rail->base);
        CHECK(rail->pool.copiers.started == cpus - 2);
        wait_done(&p.me, 3);
        tell(&p, 'q');
        finish(&p);
    }
}

/* What nobody has begun is taken back. */
void taken_back(void)
{
    pair p = split(0, idle_target);
    CHECK(hear(&p) == 'c');
    wait_helps(&p);
    for (int op = 0; op < 2; op++) {
        memset(p.me.mem, 5, MEM);
        CHECK(rma(&p.me, op ? GR_READ : GR_WRITE, &p.peer, 0, 0, MEM / 4) == 0);
        CHECK(p.me.ep->pool.lent == 0 && !copied_by_peer(&p));
    }
    for (int i = 0; i < MEM; i++)
        CHECK(p.me.mem[i] == 5);
    tell(&p, 'q');
    finish(&p);
}

/* It takes an offer as often as it is told to, and says what it is told. */
static void answering(pair *p)
{
    claims_to_help(p);
    tell(p, 'c');
    for (char c; (c = hear(p)) != 'q';) {
        uint32_t i = await_offer(p);
        atomic_store(&p->me.ep->box->offer[i].who, (int32_t)syscall(SYS_gettid));
        if (c == 's')
            raise(SIGSTOP);
        if (c == 'k')
            raise(SIGKILL);
        if (c == 'w') {
            tell(p, 't');
            CHECK(hear(p) == 'g');
        }
        atomic_store(&p->me.ep->box->offer[i].ended, c == 'p' ? -EPERM : -EACCES);
    }
}

/* What the peer can't copy we do; where it may not, it is not asked again. */
void refused(void)
{
    pair p = split(0, answering);
    CHECK(hear(&p) == 'c');
    wait_helps(&p);
    for (int op = 0; op < 2; op++) {
        tell(&p, op ? 'p' : 'a');
        for (uint64_t stop = limit(); !copied_by_peer(&p);) {
            CHECK(lc_now() < stop);
            CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, MEM / 4) == 0);
        }
        CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, MEM / 4) == 0);
        CHECK(p.me.ep->pool.declined == op && p.me.ep->pool.lent == 0);
        forget_offers(&p);
    }
    tell(&p, 'q');
    finish(&p);
}

/* Offers until the target has taken something, which is under way then. */
static void until_taken(pair *p)
{
    lc_box *out = p->me.ep->peer.box;
    for (uint64_t stop = limit(); !copied_by_peer(p);) {
        CHECK(lc_now() < stop);
        int before = p->me.done;
        begin(p, GR_WRITE, 0, MEM / 4, &ctx[0]);
        gr_rail_lock(&p->me.rail->base); /* only the post's own half */
        lc_job *job = take_half(p->me.rail);
        for (uint64_t wait = lc_now() + 100000000; atomic_load(&out->offered) && lc_now() < wait;)
            ;
        lc_pool_copy(p->me.rail, job, LC_COPIERS - 1);
        gr_rail_unlock(&p->me.rail->base);
        for (uint64_t wait = lc_now() + 100000000; !atomic_load(&out->offered) && !copied_by_peer(p) && lc_now() < wait;)
            ;
        if (!copied_by_peer(p))
            wait_done(&p->me, before + 1);
    }
}

/* A target that is killed while it is at one. */
void helper_killed(void)
{
    pair p = split(0, answering);
    CHECK(hear(&p) == 'c');
    wait_helps(&p);
    tell(&p, 'k');
    until_taken(&p);
    wait_done(&p.me, p.me.done + 1);
    CHECK(p.me.err == ECONNRESET);
    CHECK(waitpid(p.child, NULL, 0) == p.child);
    close_end(&p.me);
}

/* One that is stopped before its copy: it may still make it. Nothing ends before the endpoint does, which waits a second and says so. */
void helper_stopped_before(void)
{
    pair p = split(0, answering);
    gr_comp c[4];
    CHECK(hear(&p) == 'c');
    wait_helps(&p);
    tell(&p, 's');
    until_taken(&p);
    int before = p.me.done;
    CHECK(waitpid(p.child, NULL, WUNTRACED) == p.child);
    for (uint64_t wait = lc_now() + 50000000; lc_now() < wait; poll_end(&p.me))
        CHECK(p.me.done == before);
    CHECK(close_ep(&p.me) == -ETIMEDOUT);
    p.me.ep = NULL;
    gr_rail_lock(&p.me.rail->base);
    int n = lc_ops.poll(&p.me.rail->base, c, 4);
    gr_rail_unlock(&p.me.rail->base);
    CHECK(n == 1 && c[0].err == ECANCELED);
    kill(p.child, SIGKILL);
    CHECK(waitpid(p.child, NULL, 0) == p.child);
    close_end(&p.me);
}

/* It copies for a long time, by one call. */
static void slow_helper(pair *p)
{
    enum { TIMES = 256 };
    static struct iovec here[TIMES], there[TIMES];
    claims_to_help(p);
    tell(p, 'c');
    uint32_t i = await_offer(p);
    for (int k = 0; k < TIMES; k++) {
        here[k] = (struct iovec){ p->me.mem, MEM };
        there[k] = (struct iovec){ (void *)(uintptr_t)p->peer.mem, MEM };
    }
    atomic_store(&p->me.ep->box->offer[i].who, (int32_t)syscall(SYS_gettid));
    for (;;) /* until it is stopped */
        CHECK(process_vm_readv(p->me.ep->peer.pid, here, TIMES, there, TIMES, 0) > 0);
}

/* Stopped in it, as seen from outside: the call has ended then, and we copy by ourselves. What it says later of that offer is of no use. */
void helper_stopped_behind(void)
{
    char path[64], line[256];
    if (prctl(PR_GET_SECCOMP) != 0) {
        fprintf(stderr, "there is a filter for calls: nothing can be said of stopped ones\n");
        exit(SKIP);
    }
    pair p = split(0, slow_helper);
    CHECK(hear(&p) == 'c');
    wait_helps(&p);
    memset(p.me.mem, 9, MEM);
    until_taken(&p);
    int before = p.me.done, status, nr = -1;
    CHECK(kill(p.child, SIGSTOP) == 0 && waitpid(p.child, &status, WUNTRACED) == p.child && WIFSTOPPED(status));
    snprintf(path, sizeof(path), "/proc/%d/syscall", (int)p.child);
    FILE *f = fopen(path, "r");
    if (!f || !fgets(line, sizeof(line), f) || sscanf(line, "%d ", &nr) != 1 || nr != SYS_process_vm_readv) {
        fprintf(stderr, "the kernel doesn't say, or it was stopped between two calls: %d\n", nr);
        kill(p.child, SIGKILL);
        exit(!f || nr == -1 ? SKIP : 1);
    }
    fclose(f);
    wait_done(&p.me, before + 1);
    CHECK(p.me.err == 0 && p.me.ep->pool.lent != 0 && p.me.ep->pool.lost == p.me.ep->pool.lent && p.me.rail->pool.lent == NULL);
    memset(p.me.mem, 0, MEM);
    CHECK(rma(&p.me, GR_READ, &p.peer, 0, 0, MEM / 4) == 0); /* another offer, which nobody takes */
    for (int i = 0; i < MEM / 4; i++)
        CHECK(p.me.mem[i] == 9);
    CHECK(p.me.ep->pool.lost != 0);
    for (int i = 0; i < LC_OFFERS; i++)
        atomic_store(&p.me.ep->peer.box->offer[i].ended, LC_COPIED); /* it goes on, and says so */
    CHECK(rma(&p.me, GR_READ, &p.peer, 0, 0, MEM / 4) == 0);
    CHECK(p.me.ep->pool.lost == 0 && p.me.ep->pool.lent == 0);
    CHECK(close_ep(&p.me) == 0);
    p.me.ep = NULL;
    kill(p.child, SIGKILL);
    CHECK(waitpid(p.child, NULL, 0) == p.child);
    close_end(&p.me);
}

/* A target that writes to an offer whatever it likes, all the time. */
static void scribbler(pair *p)
{
    claims_to_help(p);
    tell(p, 'c');
    lc_offer *o = p->me.ep->box->offer;
    for (char c = 0; c != 'q';) {
        for (int i = 0; i < 100000; i++)
            ((volatile lc_offer *)&o[i % LC_OFFERS])->n = (uint32_t)i << 12;
        if (recv(p->pipe, &c, 1, MSG_DONTWAIT) < 0)
            c = 0;
    }
}

void scribbled(void)
{
    pair p = split(0, scribbler);
    CHECK(hear(&p) == 'c');
    wait_helps(&p);
    for (int i = 0; i < 2000; i++)
        CHECK(rma(&p.me, i % 2 ? GR_READ : GR_WRITE, &p.peer, 0, 0, 128 << 10) == 0);
    tell(&p, 'q');
    finish(&p);
}

static void *closes(void *arg)
{
    end *e = arg;
    CHECK(close_ep(e) == 0);
    return NULL;
}

static void still_closing(pthread_t t, int ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    CHECK(pthread_timedjoin_np(t, NULL, &until) == ETIMEDOUT);
}

/* However long a copy of our own takes at the end: from then on the peer has its second for what it has taken. */
void slow_close(void)
{
    pair p = split(0, answering);
    lc_rail *rail = p.me.rail;
    pthread_t t;
    CHECK(hear(&p) == 'c');
    wait_helps(&p);
    begin(&p, GR_READ, 0, MEM / 4, &ctx[0]);
    lc_job *job = take_half(rail);
    CHECK(pthread_create(&t, NULL, closes, &p.me) == 0);
    still_closing(t, LC_WAIT_MS + 100);
    tell(&p, 'w');
    CHECK(hear(&p) == 't');
    lc_pool_copy(rail, job, LC_COPIERS - 1);
    still_closing(t, 50);
    tell(&p, 'g');
    CHECK(pthread_join(t, NULL) == 0);
    p.me.ep = NULL;
    tell(&p, 'q');
    finish(&p);
}

/* A peer that sleeps is rung when its copy has been made. */
static void sleeper(pair *p)
{
    lc_rail *rail = p->me.rail;
    struct pollfd f = { .fd = rail->base.wait_fd, .events = POLLIN };
    wait_helps(p);
    gr_rail_lock(&rail->base);
    for (uint64_t stop = limit(); lc_ops.arm(&rail->base);)
        CHECK(lc_now() < stop);
    gr_rail_unlock(&rail->base);
    begin(p, GR_WRITE, 0, MEM / 4, &ctx[0]);
    atomic_store(&p->me.ep->peer.box->helps, 1); /* whatever it says at this moment */
    lc_job *job = take_half(rail);
    CHECK(poll(&f, 1, 1000 * LIMIT_S) == 1);
    lc_pool_copy(rail, job, LC_COPIERS - 1);
    wait_done(&p->me, 1);
    CHECK(p->me.err == 0 && copied_by_peer(p));
    tell(p, 'd');
}

void helper_rings(void)
{
    pair p = split(0, sleeper);
    poll_until(&p, 'd');
    finish(&p);
}
