/* Peers that misbehave, within one process. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "world.h"

static void join(end *a, end *b)
{
    CHECK(lc_ep_connect(a->ep, &b->ep->addr, &step) == 0);
    CHECK(lc_ep_connect(b->ep, &a->ep->addr, &step) == 0);
    poll_end(a);
    CHECK(a->ep->out && b->ep->out);
}

static void post_recv(end *e, void *buf, size_t len)
{
    gr_rail_lock(&e->rail->base);
    CHECK(lc_ops.recv(&e->rail->base, e->ep, buf, len, NULL, &ctx[1]) == 0);
    gr_rail_unlock(&e->rail->base);
}

/* A ring that claims more than it can hold, and a message that does: the receives fail, nothing is read beyond the box. */
void hostile_ring(void)
{
    char buf[LC_MSG];
    for (int i = 0; i < 2; i++) {
        end a = open_end(0), b = open_end(0);
        join(&a, &b);
        post_recv(&b, buf, sizeof(buf));
        if (i == 0) {
            atomic_store(&a.ep->out->put, LC_SLOTS + 1);
        } else {
            a.ep->out->slot[0].len = UINT32_MAX;
            atomic_store(&a.ep->out->put, 1);
        }
        poll_end(&b);
        CHECK(b.done == 1 && b.err == EPROTO);
        gr_rail_lock(&b.rail->base);
        CHECK(lc_ops.recv(&b.rail->base, b.ep, buf, sizeof(buf), NULL, &ctx[1]) == -EPROTO);
        gr_rail_unlock(&b.rail->base);
        atomic_store(&b.ep->box->taken, LC_SLOTS + 5); /* of what was never put in */
        gr_rail_lock(&a.rail->base);
        for (int k = 0; k < LC_SLOTS; k++)
            CHECK(lc_ops.send(&a.rail->base, a.ep, buf, 1, NULL, 1, &ctx[2]) == 0);
        CHECK(lc_ops.send(&a.rail->base, a.ep, buf, 1, NULL, 1, &ctx[2]) == -EPROTO);
        gr_rail_unlock(&a.rail->base);
        close_end(&a);
        close_end(&b);
    }
}

/* Memory that could shrink under us is not mapped. */
void unsealed(void)
{
    end a = open_end(0), b = open_end(0);
    int fd = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING), good = b.ep->box_fd;
    CHECK(fd >= 0 && ftruncate(fd, sizeof(lc_box)) == 0);
    CHECK(lc_map(fd, sizeof(lc_box), 0) == NULL && errno == EPROTO);
    b.ep->box_fd = fd;
    CHECK(lc_ep_connect(b.ep, &a.ep->addr, &step) == 0);
    b.ep->box_fd = good;
    close(fd);
    CHECK(lc_ep_connect(a.ep, &b.ep->addr, &step) == -EPROTO);
    close_end(&a);
    close_end(&b);
}

/* Messages of anybody change nothing; a table can be read by peers, no more. */
void strangers(void)
{
    end a = open_end(0), b = open_end(0);
    char junk[300] = "junk";
    for (int i = 0; i < 40; i++) {
        int s = call_end(&a);
        (void)!send(s, junk, (size_t)(i * 7), MSG_DONTWAIT | MSG_NOSIGNAL);
        close(s);
    }
    lc_addr wrong = a.ep->addr;
    wrong.token[3] ^= 1;
    for (int i = 0; i < 10; i++)
        poll_end(&a);
    end c = open_end(0);
    CHECK(lc_ep_connect(c.ep, &wrong, &step) == 0);
    poll_end(&a);
    CHECK(!a.ep->met);
    CHECK(lc_ep_connect(b.ep, &a.ep->addr, &step) == 0);
    CHECK(lc_ep_connect(a.ep, &b.ep->addr, &step) == 0);
    card to_b = own_card(&b);
    CHECK(rma(&a, GR_WRITE, &to_b, 0, 0, MEM) == 0);
    CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, a.rail->table_fd, 0) == MAP_FAILED);
    close_end(&a);
    close_end(&b);
    close_end(&c);
}

/* What the sender was told has arrived has: also when nobody looked at it before the endpoint closed. */
void closed_ring(void)
{
    end a = open_end(0), b = open_end(0);
    char buf[2][LC_MSG] = { { 0 } };
    join(&a, &b);
    post_recv(&b, buf[0], sizeof(buf[0]));
    post_recv(&b, buf[1], sizeof(buf[1]));
    gr_rail_lock(&a.rail->base);
    CHECK(lc_ops.send(&a.rail->base, a.ep, "news", 5, NULL, 1, &ctx[2]) == 0);
    gr_rail_unlock(&a.rail->base);
    poll_end(&a);
    CHECK(a.done == 1 && a.err == 0);
    CHECK(lc_ep_close(b.ep) == 0);
    b.ep = NULL;
    gr_comp c[4];
    gr_rail_lock(&b.rail->base);
    CHECK(lc_ops.poll(&b.rail->base, c, 4) == 2);
    gr_rail_unlock(&b.rail->base);
    CHECK(c[0].err == 0 && c[0].len == 5 && strcmp(buf[0], "news") == 0);
    CHECK(c[1].err == ECANCELED);
    gr_rail_lock(&a.rail->base);
    CHECK(lc_ops.send(&a.rail->base, a.ep, "late", 5, NULL, 1, &ctx[2]) == 0);
    gr_rail_unlock(&a.rail->base);
    poll_end(&a);
    CHECK(a.done == 2 && a.err == ECONNRESET);
    close_end(&a);
    close_end(&b);
}

/* Nor is memory of huge pages, of which the host may have none when one is touched. */
void huge(void)
{
    const size_t size = LC_REGIONS * sizeof(lc_entry);
    int fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return; /* a kernel without them, or whose huge pages are larger */
    CHECK(lc_map(fd, size, 1) == NULL && errno == EPROTO);
    close(fd);
}

/* A greeting of no use that is read while nobody polls: whoever waits on the endpoint hears, and it can be waited for others. */
void bad_greeting(void)
{
    for (int i = 0; i < 2; i++) {
        end a = open_end(0), b = open_end(0);
        char buf[LC_MSG];
        int fd = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING), good = b.ep->box_fd;
        post_recv(&a, buf, sizeof(buf));
        b.ep->box_fd = fd;
        CHECK(lc_ep_connect(b.ep, &a.ep->addr, &step) == 0);
        b.ep->box_fd = good;
        close(fd);
        gr_rail_lock(&a.rail->base);
        if (i == 0)
            CHECK(lc_ops.arm(&a.rail->base) == 1);
        else
            lc_listen(a.ep); /* as lc_quiet does */
        gr_rail_unlock(&a.rail->base);
        CHECK(a.ep->err == EPROTO);
        poll_end(&a);
        CHECK(a.done == 1 && a.err == EPROTO);
        gr_rail_lock(&a.rail->base);
        CHECK(lc_ops.arm(&a.rail->base) == 0);
        gr_rail_unlock(&a.rail->base);
        close_end(&a);
        close_end(&b);
    }
}

/* Without descriptors for the peer's connection, for longer than a moment: an error that says so. */
void no_descriptors(void)
{
    end a = open_end(0), b = open_end(0);
    char buf[LC_MSG];
    struct rlimit was, few;
    post_recv(&a, buf, sizeof(buf));
    CHECK(lc_ep_connect(b.ep, &a.ep->addr, &step) == 0);
    CHECK(getrlimit(RLIMIT_NOFILE, &was) == 0);
    int next = dup(0);
    CHECK(next >= 0);
    close(next);
    few = (struct rlimit){ (rlim_t)next, was.rlim_max };
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    for (uint64_t stop = limit(); !a.done; poll_end(&a))
        CHECK(lc_now() < stop);
    CHECK(setrlimit(RLIMIT_NOFILE, &was) == 0);
    CHECK(a.done == 1 && a.err == EMFILE);
    CHECK(lc_ep_connect(a.ep, &b.ep->addr, &step) == -EMFILE);
    close_end(&a);
    close_end(&b);
}

/* For a moment: the peer is taken in when there are some again. */
void descriptors_again(void)
{
    end a = open_end(0), b = open_end(0);
    struct rlimit was, few;
    CHECK(lc_ep_connect(b.ep, &a.ep->addr, &step) == 0);
    CHECK(getrlimit(RLIMIT_NOFILE, &was) == 0);
    int next = dup(0);
    CHECK(next >= 0);
    close(next);
    few = (struct rlimit){ (rlim_t)next, was.rlim_max };
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    for (int i = 0; i < 10; i++)
        poll_end(&a);
    CHECK(!a.ep->met && !a.ep->err);
    CHECK(setrlimit(RLIMIT_NOFILE, &was) == 0);
    poll_end(&a);
    CHECK(a.ep->out && !a.ep->err);
    close_end(&a);
    close_end(&b);
}

static void send_descriptors(int s, const void *what, size_t len, int n)
{
    enum { MOST = 100 };
    union {
        char room[CMSG_SPACE(MOST * sizeof(int))];
        struct cmsghdr align;
    } u = { 0 };
    struct iovec iov = { (void *)what, len };
    struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = u.room, .msg_controllen = CMSG_SPACE((size_t)n * sizeof(int)) };
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    *h = (struct cmsghdr){ .cmsg_len = CMSG_LEN((size_t)n * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
    for (int i = 0; i < n; i++)
        memcpy(CMSG_DATA(h) + (size_t)i * sizeof(int), &s, sizeof(s));
    CHECK(sendmsg(s, &m, MSG_NOSIGNAL) == (ssize_t)len);
}

/* More descriptors than are due, before the token, with it, instead of what a greeting has and with a doorbell: none of them stays open. */
void many_descriptors(void)
{
    static const int many[] = { 1, 2, 4, 5, 100 };
    for (size_t i = 0; i < sizeof(many) / sizeof(many[0]); i++) {
        end a = open_end(0);
        lc_hello hello = { .magic = LC_MAGIC, .box_size = sizeof(lc_box) };
        uint32_t magic = LC_MAGIC;
        memcpy(hello.token, a.ep->addr.token, LC_TOKEN);
        int before = open_descriptors(), s = call_end(&a);
        send_descriptors(s, "x", 1, many[i]);
        poll_end(&a);
        close(s);
        CHECK(open_descriptors() == before && !a.ep->met);
        s = call_end(&a);
        send_descriptors(s, &hello, sizeof(hello), many[i]);
        poll_end(&a);
        CHECK(open_descriptors() == before + 3); /* s, its other end, the process */
        send_descriptors(s, &magic, sizeof(magic), many[i]);
        poll_end(&a);
        CHECK(open_descriptors() == before + 3 && a.ep->err == EPROTO);
        send_descriptors(s, "", 1, many[i]);
        poll_end(&a);
        gr_rail_lock(&a.rail->base);
        lc_hear(a.ep);
        gr_rail_unlock(&a.rail->base);
        CHECK(open_descriptors() == before + 3);
        close(s);
        close_end(&a);
    }
}
