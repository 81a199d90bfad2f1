/* What libfabric forgets when an endpoint of its tcp family closes.
 *
 * An accepted connection that has not introduced itself yet keeps a pointer to the endpoint it came in by, and the next
 * poll follows it into freed memory (all releases 1.17 .. 2.6; its source says so). And net 1.17 frees and reports twice
 * the READ whose answer is coming in while its endpoint closes, after which operations share records; a connection that
 * breaks by itself is handled well. So before an endpoint goes, its connections are broken: they show in no part of the
 * API and are found among the process's sockets, by our port or by the peer's. They are shut down and emptied, and
 * libfabric is let notice.
 *
 * A look at all descriptors takes milliseconds where there are thousands. So nobody waits for it: it is made without the rail's lock, and
 * one look serves all endpoints that are being closed.
 */
#include <dirent.h>
#include <limits.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <rdma/fi_cm.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "abi.h"
#include "ofi.h"

/* linux/tcp.h has the newer fields and clashes with netinet/tcp.h; the kernel fills what fits (bytes_received: 4.1). */
struct tcp_counts {
    struct tcp_info base;
    uint64_t pacing_rate, max_pacing_rate, bytes_acked, bytes_received;
};
_Static_assert(offsetof(struct sockaddr_in, sin_port) == offsetof(struct sockaddr_in6, sin6_port), "ports");
_Static_assert(offsetof(struct tcp_counts, bytes_received) == 128, "struct tcp_info of linux/tcp.h");

enum { STRANGERS = 64 };

struct ofi_sockets {
    struct sockaddr_storage own, peer;
    int found;               /* in this pass, not seen to by libfabric yet */
    bool shut;               /* the listener is among them */
    int stranger[STRANGERS]; /* those of which libfabric must get rid before the endpoint goes */
    int strangers;
    int *fds; /* what may be the endpoint's */
    int nfds, room;
    int listener; /* -1: not found */
    bool later;   /* more connections may be accepted than were found */
    bool looked;  /* the look is over */
    struct ofi_sockets *next;
};
typedef struct ofi_sockets sockets;

static bool same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family)
        return false;
    if (a->ss_family == AF_INET)
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr == ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    const struct sockaddr_in6 *x = (const void *)a, *y = (const void *)b;
    return x->sin6_scope_id == y->sin6_scope_id && memcmp(&x->sin6_addr, &y->sin6_addr, sizeof(x->sin6_addr)) == 0;
}

/* The port is at the same place in both families. */
bool ofi_same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    return same_host(a, b) && ((const struct sockaddr_in *)a)->sin_port == ((const struct sockaddr_in *)b)->sin_port;
}

/* What a connection has been through. */
typedef struct story {
    bool stranger; /* nothing was read from it yet */
    bool open;     /* this side has not shut it down */
} story;

/* The counter comes first: what arrives in between makes a socket look unread, which is the safe error. A FIN counts
 * as a byte received and never as one to read. */
static story look(int fd)
{
    struct tcp_counts tcp = { .bytes_received = 0 };
    socklen_t len = sizeof(tcp);
    int waiting = 0;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &tcp, &len) || len < sizeof(tcp) || ioctl(fd, FIONREAD, &waiting))
        return (story){ .stranger = true, .open = true };
    int state = tcp.base.tcpi_state, fin = state != TCP_ESTABLISHED;
    return (story){
        .stranger = tcp.bytes_received <= (uint64_t)waiting + fin,
        .open = state == TCP_ESTABLISHED || state == TCP_CLOSE_WAIT,
    };
}

uint64_t ofi_bytes_read(int fd)
{
    struct tcp_counts tcp = { .bytes_received = 0 };
    socklen_t len = sizeof(tcp);
    int waiting = 0;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &tcp, &len) || len < sizeof(tcp) || ioctl(fd, FIONREAD, &waiting) ||
        tcp.bytes_received < (uint64_t)waiting)
        return 0;
    return tcp.bytes_received - (uint64_t)waiting;
}

/* Throws away what has come in. No more will: from now on the kernel answers data with a reset. */
static void empty(int fd)
{
    enum { ROUNDS = 64 }; /* one takes all there is */
    for (int i = 0; i < ROUNDS && recv(fd, NULL, INT_MAX, MSG_TRUNC | MSG_DONTWAIT) > 0; i++)
        ;
}

/* Both sides' names of a socket, asked for when they are wanted. */
typedef struct names {
    struct sockaddr_storage own, peer;
    bool asked; /* for the peer's */
} names;

static bool own_name(int fd, names *n)
{
    socklen_t len = sizeof(n->own);
    *n = (names){ .own.ss_family = AF_UNSPEC, .peer.ss_family = AF_UNSPEC };
    return getsockname(fd, (struct sockaddr *)&n->own, &len) == 0;
}

/* A connection of the endpoint's to its peer, from the address of the rail. */
static bool dialled(int fd, const sockets *all, names *n)
{
    socklen_t len = sizeof(n->peer);
    if (all->peer.ss_family == AF_UNSPEC || !same_host(&n->own, &all->own))
        return false;
    if (!n->asked && getpeername(fd, (struct sockaddr *)&n->peer, &len))
        n->peer.ss_family = AF_UNSPEC;
    n->asked = true;
    return ofi_same_address(&n->peer, &all->peer);
}

bool ofi_listens(int fd)
{
    int yes = 0;
    socklen_t len = sizeof(yes);
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &len) == 0 && yes;
}

/* Under the rail's lock. */
static void visit(sockets *all, int fd)
{
    names n;
    if (!own_name(fd, &n))
        return;
    bool accepted = ofi_same_address(&n.own, &all->own);
    if (!accepted && !dialled(fd, all, &n))
        return;
    if (ofi_listens(fd)) {
        all->shut = shutdown(fd, SHUT_RD) == 0;
        all->found += all->shut;
        return;
    }
    story s = look(fd);
    if (accepted && s.stranger) {
        if (shutdown(fd, SHUT_RDWR) == 0 && all->strangers < STRANGERS)
            all->stranger[all->strangers++] = fd;
    } else if (s.open) {
        all->found += shutdown(fd, SHUT_RDWR) == 0;
        empty(fd);
    }
}

static void note(sockets *all, int fd)
{
    if (all->nfds == all->room) {
        int room = all->room ? 2 * all->room : 8, *fds = realloc(all->fds, sizeof(*fds) * (size_t)room);
        if (!fds) {
            all->later = true;
            return;
        }
        all->fds = fds;
        all->room = room;
    }
    all->fds[all->nfds++] = fd;
}

enum look_for { LISTENERS, CONNECTIONS };

static void look_at(sockets *batch, int fd, enum look_for what)
{
    names n;
    if (!own_name(fd, &n) || (n.own.ss_family != AF_INET && n.own.ss_family != AF_INET6))
        return;
    for (sockets *s = batch; s; s = s->next) {
        bool accepted = ofi_same_address(&n.own, &s->own);
        if (what == LISTENERS && accepted && ofi_listens(fd))
            s->listener = fd;
        else if (what == CONNECTIONS && (accepted || dialled(fd, s, &n)))
            note(s, fd);
    }
}

static void look_at_all(ofi_rail *rail, sockets *batch, enum look_for what)
{
    rewinddir(rail->fds);
    for (struct dirent *d; (d = readdir(rail->fds));)
        if (d->d_name[0] != '.')
            look_at(batch, atoi(d->d_name), what);
}

/* Whatever comes to the socket is dropped. To shut it down would keep libfabric busy with it until the endpoint closes. */
static bool deafen(int fd)
{
    struct sock_filter none = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog prog = { .len = 1, .filter = &none };
    return fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof(prog)) == 0;
}

/* Connections wait to be accepted, or it can't be told. */
static bool waiting(int fd)
{
    struct tcp_info tcp;
    socklen_t len = sizeof(tcp);
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &tcp, &len) || tcp.tcpi_unacked != 0;
}

/* Once an endpoint hears nothing more, no connection waits, and nobody is polling who may just have accepted one, all its connections are there. */
static void look_for_batch(ofi_rail *rail, sockets *batch)
{
    look_at_all(rail, batch, LISTENERS);
    for (sockets *s = batch; s; s = s->next)
        s->later = !deafen(s->listener);
    gr_rail_lock(&rail->base);
    for (sockets *s = batch; s; s = s->next)
        s->later = s->later || waiting(s->listener);
    gr_rail_unlock(&rail->base);
    look_at_all(rail, batch, CONNECTIONS);
}

/* Finds an endpoint's sockets. Of those who call at a time one looks for all. */
static void find(ofi_rail *rail, sockets *own)
{
    pthread_mutex_lock(&rail->look_mu);
    own->next = rail->looked_for;
    rail->looked_for = own;
    while (!own->looked) {
        if (rail->looking) {
            pthread_cond_wait(&rail->look_over, &rail->look_mu);
            continue;
        }
        sockets *batch = rail->looked_for;
        rail->looked_for = NULL;
        rail->looking = 1;
        pthread_mutex_unlock(&rail->look_mu);
        look_for_batch(rail, batch);
        pthread_mutex_lock(&rail->look_mu);
        rail->looking = 0;
        for (sockets *next; batch; batch = next) {
            next = batch->next; /* it may be gone once it has been looked for */
            batch->looked = true;
        }
        pthread_cond_broadcast(&rail->look_over);
    }
    pthread_mutex_unlock(&rail->look_mu);
}

/* Nothing is accepted meanwhile: libfabric does that when it is polled, and the rail's lock is ours. */
static void visit_all(ofi_rail *rail, sockets *all)
{
    rewinddir(rail->fds_locked);
    for (struct dirent *d; (d = readdir(rail->fds_locked));)
        if (d->d_name[0] != '.')
            visit(all, atoi(d->d_name));
}

void ofi_find_connections(ofi_rail *rail, const ofi_ep *ep, ofi_sockets **out)
{
    sockets *all = calloc(1, sizeof(*all));
    size_t len = sizeof(all->own);
    *out = all;
    if (!all)
        return;
    all->listener = -1;
    gr_rail_lock(&rail->base);
    int rc = fi_getname(&ep->ep->fid, &all->own, &len);
    if (ep->at)
        memcpy(&all->peer, ep->at->bytes, ep->at->len < sizeof(all->peer) ? ep->at->len : sizeof(all->peer));
    gr_rail_unlock(&rail->base);
    if (!rail->fds || rc || (all->own.ss_family != AF_INET && all->own.ss_family != AF_INET6)) {
        free(all);
        *out = NULL;
        return;
    }
    find(rail, all);
}

void ofi_break_connections(ofi_rail *rail, ofi_sockets *all)
{
    enum { ROUNDS = 8, EVENTS = 64 }; /* one round is enough, as a rule; what one poll looks at, or less */
    struct fi_cq_msg_entry none;

    if (!all)
        return;
    if (all->later)
        visit_all(rail, all);
    for (int i = 0; i < all->nfds && !all->later; i++)
        visit(all, all->fds[i]);
    if (all->found == 1 && all->shut)
        all->found = 0; /* the listener: libfabric closes it, and need not notice */
    for (int i = 0; i < ROUNDS && (all->found || all->strangers); i++) {
        int n = all->strangers;
        for (uint32_t k = 0; k <= rail->open_eps / EVENTS; k++)
            (void)fi_cq_read(rail->cq, &none, 0); /* progress alone: takes no completion */
        all->found = all->strangers = 0;
        for (int k = 0; k < n; k++)
            visit(all, all->stranger[k]);
    }
    free(all->fds);
    free(all);
}
