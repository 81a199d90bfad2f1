/* Ends of a connection: open, poll, close. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "world.h"

const char *step;
gr_ctx ctx[64];
cma_nodes nodes;
int rings, files;
uint64_t ring_size = RING;
uint8_t rights = CMA_MAY_READ | CMA_MAY_WRITE;

static void *map_fd(int fd, size_t size, int prot)
{
    void *mem = mmap(NULL, size, prot, MAP_SHARED, fd, 0);
    CHECK(mem != MAP_FAILED);
    return mem;
}

static void *segment(size_t size, int *fd)
{
    *fd = memfd_create("gorail", MFD_CLOEXEC);
    CHECK(*fd >= 0 && ftruncate(*fd, (off_t)size) == 0);
    return map_fd(*fd, size, PROT_READ | PROT_WRITE);
}

enum { TABLE = CMA_REGIONS * sizeof(cma_entry) };

uint64_t open_region(end *e, uint64_t base, uint64_t len, const gr_gpu_share *share)
{
    uint32_t index = e->regions++;
    cma_entry *r = &e->rail->table[index];
    CHECK(index < CMA_SHARES);
    if (share)
        e->rail->shares->share[index] = *share;
    atomic_store(&r->base, base);
    atomic_store(&r->len, len);
    atomic_store(&r->share, share ? index + 1 : files ? CMA_FILE : 0);
    e->rail->rights[index] = rights;
    atomic_store(&r->generation, 1);
    return UINT64_C(1) << 32 | index;
}

int close_region(cma_rail *rail, uint64_t key)
{
    atomic_fetch_add(&rail->table[(uint32_t)key].generation, 1);
    return cma_wait_idle(rail, NULL, cma_region_bit(key));
}

end open_end(uint32_t threads)
{
    end e = {0};
    struct epoll_event ev = {.events = EPOLLIN};
    cma_parts p = {.wait_fd = epoll_create1(EPOLL_CLOEXEC), .doorbell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    p.mapper_fd = e.mapper_fd = eventfd(0, EFD_CLOEXEC);
    p.table = segment(TABLE, &e.fd[1]);
    p.shares = segment(sizeof(cma_shares), &e.fd[2]);
    CHECK(p.wait_fd >= 0 && p.doorbell_fd >= 0 && epoll_ctl(p.wait_fd, EPOLL_CTL_ADD, p.doorbell_fd, &ev) == 0);
    CHECK(cma_rail_open(threads, &nodes, &p, &e.rail) == 0);
    CHECK(getrandom(e.rail->proof, sizeof(e.rail->proof), 0) == sizeof(e.rail->proof));
    CHECK(cma_ep_open(e.rail, segment(sizeof(cma_shm), &e.fd[0]), segment(ring_size, &e.fd[3]), ring_size, &e.ep) == 0);
    e.mem = segment(MEM, &e.fd[4]);
    if (!files) /* in its place */
        CHECK(mmap(e.mem, MEM, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == e.mem);
    e.peer_file = -1;
    if (files)
        atomic_store(&e.rail->maps, open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
    CHECK((e.key = open_region(&e, (uint64_t)(uintptr_t)e.mem, MEM, NULL)) != 0);
    return e;
}

end open_beside(const end *e)
{
    end o = {.rail = e->rail, .fd = {-1, e->fd[1], e->fd[2], -1, e->fd[4]}, .mem = e->mem, .mapper_fd = -1, .peer_file = -1};
    CHECK(cma_ep_open(o.rail, segment(sizeof(cma_shm), &o.fd[0]), segment(ring_size, &o.fd[3]), ring_size, &o.ep) == 0);
    return o;
}

void close_beside(end *e)
{
    (void)close_ep(e);
    close(e->peer_file);
    close(e->fd[0]);
    close(e->fd[3]);
}

void connect_end(end *e, pid_t pid, const int fd[FDS], const int sock[2])
{
    cma_peer p = {.sock = sock[1], .self = pid == getpid(), .apart = rings, .ring_size = ring_size};
    if (rings || !p.self)
        p.ring = map_fd(fd[3], ring_size, PROT_READ | PROT_WRITE);
    p.shm = map_fd(fd[0], sizeof(cma_shm), PROT_READ | PROT_WRITE);
    p.table = map_fd(fd[1], TABLE, PROT_READ);
    p.shares = map_fd(fd[2], sizeof(cma_shares), PROT_READ);
    p.same_user = !p.self && !rings;
    CHECK(cma_ep_begin_connect(e->ep) == 0);
    cma_ep_identified(e->ep, pid, (int)syscall(SYS_pidfd_open, pid, 0), 0);
    e->peer_file = dup(fd[4]);
    CHECK(e->ep->peer.pidfd >= 0 && cma_ep_connected(e->ep, &p) == 0);
    if (sock[0] >= 0)
        cma_ep_accepted(e->ep, sock[0], 0);
}

void join(end *a, end *b)
{
    int s[2], t[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s) == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, t) == 0);
    connect_end(a, getpid(), b->fd, (int[2]){s[0], t[1]});
    connect_end(b, getpid(), a->fd, (int[2]){t[0], s[1]});
    a->peer = b;
    b->peer = a;
}

int close_ep(end *e)
{
    int rc = cma_ep_shut(e->ep);
    wait_mapper(e);
    cma_ep_free(e->ep);
    return rc;
}

void close_end(end *e)
{
    if (e->ep)
        (void)close_ep(e);
    if (e->key)
        (void)close_region(e->rail, e->key);
    end_mapper(e);
    close(e->mapper_fd);
    if (e->peer_file >= 0)
        close(e->peer_file);
    CHECK(cma_rail_close(e->rail) == 0);
    for (int i = 0; i < FDS; i++)
        close(e->fd[i]);
}

void poll_end(end *e)
{
    gr_comp c[32];
    gr_rail_lock(&e->rail->base);
    int n = cma_ops.poll(&e->rail->base, c, 32);
    gr_rail_unlock(&e->rail->base);
    if (n == 0)
        cma_ops.assist(&e->rail->base);
    for (int i = 0; i < n; i++) {
        e->done++;
        if (c[i].err)
            e->err = c[i].err;
    }
}

int arm_end(const end *e)
{
    gr_rail_lock(&e->rail->base);
    int again = cma_ops.arm(&e->rail->base);
    gr_rail_unlock(&e->rail->base);
    return again;
}

int post_end(end *e, int op, const region_info *peer, uint64_t from, uint64_t to, uint64_t len, gr_ctx *c)
{
    gr_seg seg = {.laddr = (uint64_t)(uintptr_t)e->mem + from, .raddr = peer->mem + to, .len = len, .rkey = peer->key};
    int rc;
    for (uint64_t stop = limit();; poll_end(e)) {
        gr_rail_lock(&e->rail->base);
        rc = cma_ops.rma(&e->rail->base, e->ep, op, 1, &seg, c);
        gr_rail_unlock(&e->rail->base);
        if (rc != -EAGAIN || cma_now() >= stop)
            return -rc;
    }
}

void wait_done(end *e, int n)
{
    for (uint64_t stop = limit(); e->done < n; poll_end(e))
        CHECK(cma_now() < stop);
}

int rma(end *e, int op, const region_info *peer, uint64_t from, uint64_t to, uint64_t len)
{
    int before = e->done;
    e->err = 0;
    int rc = post_end(e, op, peer, from, to, len, &ctx[0]);
    if (rc)
        return rc;
    wait_done(e, before + 1);
    return e->err;
}

region_info own_region(const end *e) { return (region_info){(uint64_t)(uintptr_t)e->mem, e->key}; }

int open_descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    CHECK(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}
