/* Ends of a connection: opened, polled, closed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "world.h"

const char *step;
gr_ctx ctx[64];
lc_nodes nodes;

end open_end(uint32_t threads)
{
    end e = { 0 };
    CHECK(lc_rail_open(threads, &nodes, &e.rail, &step) == 0);
    CHECK(lc_ep_open(e.rail, &e.ep, &step) == 0);
    e.mem = mmap(NULL, MEM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(e.mem != MAP_FAILED);
    CHECK(lc_mr_open(e.rail, (uint64_t)(uintptr_t)e.mem, MEM, NULL, NULL, &e.key) == 0);
    return e;
}

void close_end(end *e)
{
    if (e->ep)
        (void)lc_ep_close(e->ep);
    if (e->key)
        (void)lc_mr_close(e->rail, e->key);
    CHECK(lc_rail_close(e->rail) == 0);
}

void poll_end(end *e)
{
    gr_comp c[32];
    gr_rail_lock(&e->rail->base);
    int n = lc_ops.poll(&e->rail->base, c, 32);
    gr_rail_unlock(&e->rail->base);
    if (n == 0)
        lc_ops.help(&e->rail->base);
    for (int i = 0; i < n; i++) {
        e->done++;
        if (c[i].err)
            e->err = c[i].err;
    }
}

int post_end(end *e, int op, const card *peer, uint64_t from, uint64_t to, uint64_t len, gr_ctx *c)
{
    gr_seg seg = { .laddr = (uint64_t)(uintptr_t)e->mem + from, .raddr = peer->mem + to, .len = len, .rkey = peer->key };
    int rc;
    for (uint64_t stop = limit();; poll_end(e)) {
        gr_rail_lock(&e->rail->base);
        rc = lc_ops.rma(&e->rail->base, e->ep, op, 1, &seg, c);
        gr_rail_unlock(&e->rail->base);
        if (rc != -EAGAIN || lc_now() >= stop)
            return -rc;
    }
}

void wait_done(end *e, int n)
{
    for (uint64_t stop = limit(); e->done < n; poll_end(e))
        CHECK(lc_now() < stop);
}

int rma(end *e, int op, const card *peer, uint64_t from, uint64_t to, uint64_t len)
{
    int before = e->done;
    e->err = 0;
    int rc = post_end(e, op, peer, from, to, len, &ctx[0]);
    if (rc)
        return rc;
    wait_done(e, before + 1);
    return e->err;
}

card own_card(const end *e) { return (card){ e->ep->addr, (uint64_t)(uintptr_t)e->mem, e->key }; }

int call_end(const end *e)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    memcpy(to.sun_path, e->ep->addr.name, e->ep->addr.name_len);
    CHECK(s >= 0 && connect(s, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + e->ep->addr.name_len)) == 0);
    return s;
}

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
