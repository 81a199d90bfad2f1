/* Any process of the network namespace can send to a socket in the abstract namespace, or connect to it: that keeps no peer out. */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "world.h"

enum { PESTS = 1000 };

/* Sends datagrams, and connects, with junk or in silence; these stay connected. */
static void pester(const lc_addr *a, int n, int *s)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + a->name_len);
    char junk[64] = "junk";
    int d = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    memcpy(to.sun_path, a->name, a->name_len);
    for (int i = 0; i < n; i++) {
        (void)!sendto(d, junk, (size_t)i % sizeof(junk), MSG_DONTWAIT, (struct sockaddr *)&to, len);
        s[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); /* it may have no more */
        (void)!connect(s[i], (struct sockaddr *)&to, len);
        if (i % 2)
            (void)!send(s[i], junk, (size_t)i % sizeof(junk), MSG_NOSIGNAL);
    }
    close(d);
}

/* A process that has done so, or goes on with it. */
static pid_t pest(const lc_addr *a, int n, int goes_on)
{
    static int s[PESTS];
    int p[2];
    char c;
    CHECK(pipe(p) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(6 * LIMIT_S);
        pester(a, n, s);
        CHECK(write(p[1], "d", 1) == 1);
        for (; goes_on; pester(a, n, s))
            for (int i = 0; i < n; i++)
                close(s[i]);
        for (;;)
            pause();
    }
    close(p[1]);
    CHECK(read(p[0], &c, 1) == 1);
    close(p[0]);
    return child;
}

static void end_pest(pid_t child)
{
    kill(child, SIGKILL);
    CHECK(waitpid(child, NULL, 0) == child);
}

/* Eleven fill the queue of a socket that takes datagrams; a thousand are more than any. The two meet all the same, and write. */
void stray_datagrams(void)
{
    static const int many[] = { 11, PESTS };
    for (int i = 0; i < 2; i++) {
        end a = open_end(0), b = open_end(0);
        card to_a = own_card(&a), to_b = own_card(&b);
        pid_t one = pest(&a.ep->addr, many[i], 0), two = pest(&b.ep->addr, many[i], 0);
        CHECK(lc_ep_connect(b.ep, &a.ep->addr, &step) == 0);
        CHECK(lc_ep_connect(a.ep, &b.ep->addr, &step) == 0);
        for (uint64_t stop = limit(); !a.ep->out || !b.ep->out;) {
            CHECK(lc_now() < stop);
            poll_end(&a);
            poll_end(&b);
        }
        CHECK(rma(&a, GR_WRITE, &to_b, 0, 0, MEM) == 0 && rma(&b, GR_READ, &to_a, 0, 0, MEM) == 0);
        end_pest(one);
        end_pest(two);
        close_end(&a);
        close_end(&b);
    }
}

static int arm(const end *e)
{
    gr_rail_lock(&e->rail->base);
    int again = lc_ops.arm(&e->rail->base);
    gr_rail_unlock(&e->rail->base);
    return again;
}

static void post_recv(end *e, void *buf)
{
    gr_rail_lock(&e->rail->base);
    CHECK(lc_ops.recv(&e->rail->base, e->ep, buf, LC_MSG, NULL, &ctx[1]) == 0);
    gr_rail_unlock(&e->rail->base);
}

static void send_msg(end *e)
{
    gr_rail_lock(&e->rail->base);
    CHECK(lc_ops.send(&e->rail->base, e->ep, "news", 5, NULL, 1, &ctx[2]) == 0);
    gr_rail_unlock(&e->rail->base);
}

enum { RINGS = 100 };

/* Sleeps for each message, and says when it is there. Only rings wake it: nobody else's message is taken for one. */
static void sleeps(pair *p)
{
    char buf[LC_MSG];
    for (int i = 0; i < RINGS; i++) {
        p->me.done = 0;
        post_recv(&p->me, buf);
        tell(p, 's');
        for (uint64_t stop = limit(); !p->me.done; poll_end(&p->me)) {
            struct pollfd f = { .fd = p->me.rail->base.wait_fd, .events = POLLIN };
            CHECK(lc_now() < stop);
            if (!arm(&p->me))
                CHECK(poll(&f, 1, LIMIT_S * 1000) == 1);
        }
        CHECK(p->me.err == 0);
        tell(p, 'g');
    }
}

/* While others send and connect to both ends without pause: every doorbell is heard, every byte copied. */
void pestered(void)
{
    pair p = split(0, sleeps);
    pid_t one = pest(&p.me.ep->addr, 40, 1), two = pest(&p.peer.addr, 40, 1);
    for (int i = 0; i < RINGS; i++) {
        CHECK(hear(&p) == 's');
        for (uint64_t stop = limit(); !p.me.ep->out; poll_end(&p.me))
            CHECK(lc_now() < stop);
        send_msg(&p.me);
        CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, 256 << 10) == 0);
        CHECK(hear(&p) == 'g');
    }
    end_pest(one);
    end_pest(two);
    finish(&p);
}

/* Connections that say nothing: some wait, a moment, and a peer that comes behind them is taken in at once. */
void silent_callers(void)
{
    enum { CALLS = 64 };
    int s[CALLS];
    for (int first = 0; first <= CALLS; first += CALLS / 2) {
        end a = open_end(0), b = open_end(0), other = open_end(0);
        int before = open_descriptors();
        for (int i = 0; i < CALLS; i++) {
            s[i] = call_end(&a);
            if (i % 3 == 0)
                poll_end(&a);
            if (i == first)
                CHECK(lc_ep_connect(b.ep, &a.ep->addr, &step) == 0);
        }
        if (first == CALLS)
            CHECK(lc_ep_connect(b.ep, &a.ep->addr, &step) == 0);
        for (int i = 0; i < CALLS / 16 + 1; i++)
            poll_end(&a);
        CHECK(a.ep->out && !a.ep->err);
        CHECK(a.rail->callers == 0); /* nobody else is waited for */
        lc_ep *more;
        CHECK(lc_ep_open(a.rail, &more, &step) == 0);
        for (int i = 0; i < CALLS; i++) {
            close(s[i]);
            s[i] = call_end(&a);
        }
        for (int i = 0; i < CALLS / 16 + 1; i++)
            poll_end(&a);
        CHECK(a.rail->callers > 0 && a.rail->callers <= LC_UNPROVED);
        for (uint64_t from = lc_now(), stop = limit(); a.rail->callers; poll_end(&a))
            CHECK(lc_now() < stop && (a.rail->callers == LC_UNPROVED || lc_now() - from > (uint64_t)LC_PROVE_MS * 500000));
        CHECK(lc_ep_close(more) == 0);
        for (int i = 0; i < CALLS; i++)
            close(s[i]);
        close_end(&b);
        poll_end(&a);
        gr_rail_lock(&a.rail->base);
        lc_hear(a.ep);
        gr_rail_unlock(&a.rail->base);
        CHECK(open_descriptors() < before);
        close_end(&a);
        close_end(&other);
    }
}

static void meet(end *a, end *b)
{
    for (uint64_t stop = limit(); !a->ep->out || !b->ep->out || a->ep->dialing || b->ep->dialing;) {
        CHECK(lc_now() < stop);
        poll_end(a);
        poll_end(b);
    }
}

/* A peer whose connection was let go before its token was seen, or for which there was no room, connects again. */
void connects_again(void)
{
    for (int full = 0; full < 2; full++) {
        end a = open_end(0), b = open_end(0);
        int s[2];
        if (full) {
            CHECK(listen(a.rail->listen_sock, 1) == 0);
            for (int i = 0; i < 2; i++)
                s[i] = call_end(&a);
        }
        CHECK(lc_ep_connect(b.ep, &a.ep->addr, &step) == 0);
        CHECK((b.ep->out_sock < 0) == full && b.ep->dialing);
        if (!full) {
            a.rail->strangers = 0; /* it takes nobody in */
            CHECK(lc_admit(a.rail) == 0);
            a.rail->strangers = 1;
        }
        CHECK(lc_ep_connect(a.ep, &b.ep->addr, &step) == 0);
        meet(&a, &b);
        CHECK(b.ep->box_fd < 0 && a.ep->box_fd < 0);
        for (int i = 0; full && i < 2; i++)
            close(s[i]);
        close_end(&a);
        close_end(&b);
    }
}

/* A peer that never takes our connection: the endpoint says so, in the end. */
void never_accepted(void)
{
    end a = open_end(0), b = open_end(0);
    char buf[LC_MSG];
    lc_addr wrong = a.ep->addr;
    wrong.token[0] ^= 1;
    post_recv(&b, buf);
    CHECK(lc_ep_connect(b.ep, &wrong, &step) == 0);
    for (uint64_t stop = lc_now() + (uint64_t)3 * LC_PATIENCE_S * 1000000000; !b.done; poll_end(&b)) {
        CHECK(lc_now() < stop);
        poll_end(&a);
        usleep(1000);
    }
    CHECK(b.err == ECONNREFUSED && !b.ep->dialing && b.rail->dialing == 0 && !a.ep->met);
    close_end(&a);
    close_end(&b);
}

/* One that comes when all places are taken, and shows its token later, has the place of the oldest. */
void oldest_goes(void)
{
    end a = open_end(0);
    int s[LC_UNPROVED], mine;
    lc_hello hello = { .magic = LC_MAGIC, .box_size = sizeof(lc_box) };
    memcpy(hello.token, a.ep->addr.token, LC_TOKEN);
    for (int i = 0; i < LC_UNPROVED; i++)
        s[i] = call_end(&a);
    poll_end(&a);
    mine = call_end(&a);
    poll_end(&a);
    CHECK(a.rail->callers > 0 && a.rail->callers <= LC_UNPROVED && a.ep->in_sock < 0);
    CHECK(send(mine, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello));
    poll_end(&a);
    CHECK(a.ep->in_sock >= 0 && !a.ep->err);
    for (int i = 0; i < LC_UNPROVED; i++)
        close(s[i]);
    close(mine);
    close_end(&a);
}

/* The token works once. */
void second_caller(void)
{
    end a = open_end(0), b = open_end(0), c = open_end(0);
    lc_ep *waits; /* the rail takes connections in */
    CHECK(lc_ep_open(a.rail, &waits, &step) == 0);
    CHECK(lc_ep_connect(b.ep, &a.ep->addr, &step) == 0);
    poll_end(&a);
    const lc_box *out = a.ep->out;
    int sock = a.ep->in_sock;
    CHECK(out);
    CHECK(lc_ep_connect(c.ep, &a.ep->addr, &step) == 0);
    CHECK(lc_admit(a.rail) == 0 && lc_ep_close(waits) == 0);
    CHECK(a.ep->out == out && a.ep->in_sock == sock && a.rail->callers == 0);
    CHECK(lc_ep_connect(a.ep, &b.ep->addr, &step) == 0);
    meet(&a, &b);
    close_end(&a);
    close_end(&b);
    close_end(&c);
}

/* A peer that is to be woken before it has accepted our connection is woken when it has. */
void early_ring(void)
{
    end a = open_end(0), b = open_end(0);
    char buf[LC_MSG];
    CHECK(lc_ep_connect(a.ep, &b.ep->addr, &step) == 0);
    CHECK(lc_ep_connect(b.ep, &a.ep->addr, &step) == 0);
    CHECK(b.ep->out && atomic_load(&b.ep->bell) < 0);
    atomic_store(&a.ep->box->sleeping, 1);
    send_msg(&b);
    CHECK(!atomic_load(&a.ep->box->sleeping) && atomic_load(&b.ep->rung));
    poll_end(&a);
    CHECK(a.ep->in_sock >= 0 && recv(a.ep->in_sock, buf, sizeof(buf), MSG_DONTWAIT | MSG_PEEK) < 0);
    poll_end(&b);
    CHECK(recv(a.ep->in_sock, buf, sizeof(buf), MSG_DONTWAIT | MSG_PEEK) == 1 && !atomic_load(&b.ep->rung));
    close_end(&a);
    close_end(&b);
}
