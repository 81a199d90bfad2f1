/* Memory of GPUs over a driver that does what a test says: mappings, jobs, and whoever gives descriptors or takes them. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "world.h"

static void meet(end *a, end *b)
{
    *a = open_end(0), *b = open_end(0);
    atomic_store(&a->rail->gpu, fake_driver());
    atomic_store(&b->rail->gpu, fake_driver());
    join(a, b);
}

static void part(end *a, end *b)
{
    close_end(a);
    close_end(b);
    CHECK(atomic_load(&fake.mapped) == 0);
}

static double since(uint64_t ns) { return (double)(lc_now() - ns) / 1e9; }

static void done(end *e, int n)
{
    for (uint64_t stop = limit(); e->done < n && lc_now() < stop;)
        poll_end(e);
    CHECK(e->done == n);
}

/* What failed for want of something is tried again by the next transfer; what can't be is not. */
void vram_again(void)
{
    end a, b;
    meet(&a, &b);
    a.rail->blocks = 7;
    uint64_t key = fake_region(&b, 1, GR_GPU_SHARE_IPC, 1);
    fake.why = GR_GPU_NO_FDS;
    fake.map_fails = 1;
    CHECK(fake_bulk_until(&a, 1, key, LIMIT_S) == -ENOTSUP);
    CHECK(fake_bulk_until(&a, 1, key, LIMIT_S) == 0);
    done(&a, 1);
    CHECK(a.err == 0 && fake.maps == 2 && fake.work.blocks == 7);
    uint64_t other = fake_region(&b, 2, GR_GPU_SHARE_IPC, 1);
    fake.why = GR_GPU_NO_PEER;
    fake.map_fails = 1;
    for (int i = 0; i < 3; i++)
        CHECK(fake_bulk_until(&a, 2, other, LIMIT_S) == -ENOTSUP);
    CHECK(fake.maps == 3);
    CHECK(close_region(b.rail, key) == 0 && close_region(b.rail, other) == 0);
    part(&a, &b);
}

/* A job at one region holds up nobody who lets go of another, and is waited for by who lets go of its own. What is taken back is unmapped
 * while other jobs of the endpoint go on. */
void vram_lanes(void)
{
    end a, b;
    meet(&a, &b);
    uint64_t one = fake_region(&b, 1, GR_GPU_SHARE_IPC, 1), two = fake_region(&b, 2, GR_GPU_SHARE_IPC, 1);
    CHECK(fake_bulk_until(&a, 2, two, LIMIT_S) == 0);
    done(&a, 1);
    CHECK(atomic_load(&fake.mapped) == 1);
    atomic_store(&fake.held, 1);
    CHECK(fake_bulk_until(&a, 1, one, LIMIT_S) == 0);
    CHECK(atomic_load(&fake.mapped) == 2);
    lc_import_drop(a.ep, 2);
    CHECK(atomic_load(&fake.mapped) == 1);
    uint64_t from = lc_now();
    CHECK(close_region(b.rail, two) == 0);
    CHECK(since(from) < 0.5);
    lc_import_drop(a.ep, 1);
    CHECK(atomic_load(&fake.mapped) == 1);
    CHECK(close_region(b.rail, one) == -ETIMEDOUT);
    atomic_store(&fake.held, 0);
    done(&a, 2);
    lc_mapper_wait(a.rail);
    CHECK(atomic_load(&fake.mapped) == 0);
    part(&a, &b);
}

/* A peer that says that its memory is this process's own: it would have us copy to where it likes. */
void vram_not_ours(void)
{
    end a, b;
    meet(&a, &b);
    uint64_t key = fake_region(&b, 1, GR_GPU_SHARE_IPC, 1);
    memcpy(b.rail->shares->share[(uint32_t)key].owner, fake_driver()->owner, 16);
    a.ep->self = 0;
    CHECK(fake_bulk_until(&a, 1, key, LIMIT_S) == -ENOTSUP);
    CHECK(fake.maps == 0);
    CHECK(close_region(b.rail, key) == 0);
    part(&a, &b);
}

/* A socket that a peer's table names instead of its own. */
static int another_feed(end *b, uint64_t *key)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    socklen_t len = sizeof(name);
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    *key = fake_region(b, 1, GR_GPU_SHARE_FDS, 200);
    CHECK(s >= 0 && bind(s, (struct sockaddr *)&name, sizeof(name.sun_family)) == 0 && listen(s, 8) == 0);
    CHECK(getsockname(s, (struct sockaddr *)&name, &len) == 0);
    b->rail->shares->name_len = (uint8_t)(len - offsetof(struct sockaddr_un, sun_path));
    memcpy(b->rail->shares->name, name.sun_path, b->rail->shares->name_len);
    return s;
}

/* Whoever never sends descriptors holds up nobody: not other mappings, not a revocation, not the end. */
void vram_silent(void)
{
    end a, b;
    uint64_t silent;
    meet(&a, &b);
    int s = another_feed(&b, &silent);
    uint64_t good = fake_region(&b, 2, GR_GPU_SHARE_IPC, 1), from = lc_now();
    CHECK(fake_bulk(&a, 1, silent) == -EAGAIN);
    CHECK(fake_bulk_until(&a, 2, good, LIMIT_S) == 0);
    done(&a, 1);
    lc_import_drop(a.ep, 2);
    lc_import_drop(a.ep, 1);
    CHECK(since(from) < 2);
    CHECK(fake_bulk(&a, 1, silent) == -EAGAIN);
    CHECK(fake_bulk_until(&a, 1, silent, 2.0 * LC_PATIENCE_S) == -ENOTSUP);
    char text[256];
    lc_trouble_text(a.rail, text, sizeof(text));
    CHECK(strstr(text, "does not give its descriptors"));
    CHECK(fake_bulk(&a, 1, silent) == -EAGAIN);
    close(s);
    CHECK(close_region(b.rail, silent) == 0 && close_region(b.rail, good) == 0);
    part(&a, &b);
    CHECK(since(from) < 2 * LC_PATIENCE_S);
}

/* An answer that is too short: what came with it is closed. */
void vram_short_answer(void)
{
    end a, b;
    uint64_t key;
    meet(&a, &b);
    int s = another_feed(&b, &key), before = open_descriptors();
    CHECK(fake_bulk(&a, 1, key) == -EAGAIN);
    int c = accept4(s, NULL, NULL, SOCK_CLOEXEC);
    union {
        char room[CMSG_SPACE(3 * sizeof(int))];
        struct cmsghdr align;
    } u = { 0 };
    struct iovec iov = { "x", 1 };
    struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = u.room, .msg_controllen = sizeof(u.room) };
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    *h = (struct cmsghdr){ .cmsg_len = CMSG_LEN(3 * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
    memcpy(CMSG_DATA(h), (int[3]){ 0, 1, 2 }, 3 * sizeof(int));
    CHECK(sendmsg(c, &m, 0) == 1);
    CHECK(fake_bulk_until(&a, 1, key, LIMIT_S) == -ENOTSUP);
    close(c);
    CHECK(open_descriptors() == before);
    close(s);
    CHECK(close_region(b.rail, key) == 0);
    part(&a, &b);
}

/* An endpoint that is closed ends its jobs, each once. */
void vram_closed(void)
{
    end a, b;
    meet(&a, &b);
    uint64_t key = fake_region(&b, 1, GR_GPU_SHARE_IPC, 1);
    atomic_store(&fake.held, 1);
    for (int i = 0; i < LC_BULKS; i++)
        CHECK(fake_bulk_until(&a, 1, key, LIMIT_S) == 0);
    CHECK(fake_bulk(&a, 1, key) == -EAGAIN);
    CHECK(lc_ep_close(a.ep) == 0);
    a.ep = NULL;
    poll_end(&a);
    CHECK(a.done == LC_BULKS && a.err == ECANCELED);
    CHECK(atomic_load(&fake.mapped) == 0);
    atomic_store(&fake.held, 0);
    CHECK(close_region(b.rail, key) == 0);
    part(&a, &b);
}

/* A copy to a peer that closes is not carried on to its end. */
void vram_peer_closes(void)
{
    end a, b;
    meet(&a, &b);
    uint64_t key = fake_region(&b, 1, GR_GPU_SHARE_IPC, 1);
    atomic_store(&fake.held, 1);
    CHECK(fake_bulk_until(&a, 1, key, LIMIT_S) == 0);
    poll_end(&a);
    CHECK(a.done == 0);
    atomic_store(&b.ep->box->closed, 1);
    done(&a, 1);
    CHECK(a.err == ECONNRESET);
    atomic_store(&fake.held, 0);
    CHECK(close_region(b.rail, key) == 0);
    part(&a, &b);
}

static void *close_ep(void *ep)
{
    CHECK(lc_ep_close(ep) == 0);
    return NULL;
}

/* An endpoint whose job does not end, since the application holds the GPU, waits for it and keeps nobody else from the rail. */
void vram_stuck(void)
{
    end a, b;
    pthread_t thread;
    struct timespec soon;
    meet(&a, &b);
    uint64_t key = fake_region(&b, 1, GR_GPU_SHARE_IPC, 1);
    atomic_store(&fake.held, 1);
    atomic_store(&fake.stuck, 1);
    CHECK(fake_bulk_until(&a, 1, key, LIMIT_S) == 0);
    CHECK(pthread_create(&thread, NULL, close_ep, a.ep) == 0);
    while (!atomic_load(&a.ep->closing))
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    for (int i = 0; i < 20; i++) {
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_sec++;
        CHECK(pthread_mutex_timedlock(&a.rail->base.mu, &soon) == 0);
        pthread_mutex_unlock(&a.rail->base.mu);
    }
    CHECK(atomic_load(&fake.mapped) == 1);
    atomic_store(&fake.stuck, 0);
    CHECK(pthread_join(thread, NULL) == 0);
    a.ep = NULL;
    poll_end(&a);
    CHECK(a.done == 1 && a.err == ECANCELED);
    atomic_store(&fake.held, 0);
    CHECK(close_region(b.rail, key) == 0);
    part(&a, &b);
}
