/* Targets and endpoints that end or stop while an offer is under way. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "offloads.h"

/* The target is killed during a copy. */
void assist_killed(void)
{
    pair p = split(0, answering);
    CHECK(pipe_get(&p) == 'c');
    wait_assists(&p);
    pipe_put(&p, 'k');
    until_taken(&p);
    wait_done(&p.me, p.me.done + 1);
    CHECK(p.me.err == ECONNRESET);
    CHECK(waitpid(p.child, NULL, 0) == p.child);
    close_end(&p.me);
}

/* The target is stopped before its copy and may still make it. The job ends with the endpoint: the close waits one
 * second and returns -ETIMEDOUT. */
void assist_stopped_before(void)
{
    pair p = split(0, answering);
    gr_comp c[4];
    CHECK(pipe_get(&p) == 'c');
    wait_assists(&p);
    pipe_put(&p, 's');
    until_taken(&p);
    int before = p.me.done;
    CHECK(waitpid(p.child, NULL, WUNTRACED) == p.child);
    for (uint64_t wait = cma_now() + 50000000; cma_now() < wait; poll_end(&p.me))
        CHECK(p.me.done == before);
    CHECK(close_ep(&p.me) == -ETIMEDOUT);
    p.me.ep = NULL;
    gr_rail_lock(&p.me.rail->base);
    int n = cma_ops.poll(&p.me.rail->base, c, 4);
    gr_rail_unlock(&p.me.rail->base);
    CHECK(n == 1 && c[0].err == ECANCELED);
    kill(p.child, SIGKILL);
    CHECK(waitpid(p.child, NULL, 0) == p.child);
    close_end(&p.me);
}

/* Copies for a long time in one call. */
static void slow_assist(pair *p)
{
    enum { TIMES = 256 };
    static struct iovec here[TIMES], there[TIMES];
    claims_to_assist(p);
    pipe_put(p, 'c');
    uint32_t i = await_offer(p);
    for (int k = 0; k < TIMES; k++) {
        here[k] = (struct iovec){p->me.mem, MEM};
        there[k] = (struct iovec){(void *)(uintptr_t)p->peer.mem, MEM};
    }
    atomic_store(&p->me.ep->shm->offer[i].tid, (int32_t)syscall(SYS_gettid));
    for (;;) /* until the test stops this process */
        CHECK(process_vm_readv(p->me.ep->peer.pid, here, TIMES, there, TIMES, 0) > 0);
}

/* The target is stopped within its call, as seen in /proc. The call has ended then, and we copy the piece. A later
 * report for that offer has no effect. */
void assist_stopped_in_call(void)
{
    char path[64], line[256];
    if (prctl(PR_GET_SECCOMP) != 0) {
        fprintf(stderr, "a seccomp filter is active: stopped calls cannot be told apart\n");
        exit(SKIP);
    }
    pair p = split(0, slow_assist);
    CHECK(pipe_get(&p) == 'c');
    wait_assists(&p);
    memset(p.me.mem, 9, MEM);
    until_taken(&p);
    int before = p.me.done, status, nr = -1;
    CHECK(kill(p.child, SIGSTOP) == 0 && waitpid(p.child, &status, WUNTRACED) == p.child && WIFSTOPPED(status));
    snprintf(path, sizeof(path), "/proc/%d/syscall", (int)p.child);
    FILE *f = fopen(path, "r");
    if (!f || !fgets(line, sizeof(line), f) || sscanf(line, "%d ", &nr) != 1 || nr != SYS_process_vm_readv) {
        fprintf(stderr, "/proc does not show the system call, or the child was stopped between two calls: %d\n", nr);
        kill(p.child, SIGKILL);
        exit(!f || nr == -1 ? SKIP : 1);
    }
    fclose(f);
    wait_done(&p.me, before + 1);
    CHECK(p.me.err == 0 && p.me.ep->pool.offers != 0 && p.me.ep->pool.abandoned == p.me.ep->pool.offers && p.me.rail->pool.offloaded == NULL);
    memset(p.me.mem, 0, MEM);
    CHECK(rma(&p.me, GR_READ, &p.peer, 0, 0, MEM / 4) == 0); /* a second offer, which the target does not take */
    for (int i = 0; i < MEM / 4; i++)
        CHECK(p.me.mem[i] == 9);
    CHECK(p.me.ep->pool.abandoned != 0);
    for (int i = 0; i < CMA_OFFERS; i++)
        atomic_store(&p.me.ep->peer.shm->offer[i].ended, CMA_COPIED); /* as if the target went on and reported the end */
    CHECK(rma(&p.me, GR_READ, &p.peer, 0, 0, MEM / 4) == 0);
    CHECK(p.me.ep->pool.abandoned == 0 && p.me.ep->pool.offers == 0);
    CHECK(close_ep(&p.me) == 0);
    p.me.ep = NULL;
    kill(p.child, SIGKILL);
    CHECK(waitpid(p.child, NULL, 0) == p.child);
    close_end(&p.me);
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

/* The close waits for our own copy without a bound. After it the peer has one second for the piece that it has taken. */
void slow_close(void)
{
    pair p = split(0, answering);
    cma_rail *rail = p.me.rail;
    pthread_t t;
    CHECK(pipe_get(&p) == 'c');
    wait_assists(&p);
    begin(&p, GR_READ, 0, MEM / 4, &ctx[0]);
    cma_job *job = take_half(rail);
    CHECK(pthread_create(&t, NULL, closes, &p.me) == 0);
    still_closing(t, CMA_WAIT_MS + 100);
    pipe_put(&p, 'w');
    CHECK(pipe_get(&p) == 't');
    cma_pool_copy(rail, job, CMA_COPIERS - 1);
    still_closing(t, 50);
    pipe_put(&p, 'g');
    CHECK(pthread_join(t, NULL) == 0);
    p.me.ep = NULL;
    pipe_put(&p, 'q');
    finish(&p);
}
