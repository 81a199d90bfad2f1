/* What libfabric forgets when an endpoint of its tcp family closes.
 *
 * An accepted connection that has not introduced itself yet keeps a pointer to the endpoint it came in by, and the next
 * poll follows it into freed memory (all releases 1.17 .. 2.6; its source says so). And net 1.17 frees and reports twice
 * the READ whose answer is coming in while its endpoint closes, after which operations share records; a connection that
 * breaks by itself is handled well. So before an endpoint goes, its connections are broken: they show in no part of the
 * API and are found among the process's sockets, by our port or by the peer's. They are shut down and emptied, and
 * libfabric is let notice.
 */
#include <dirent.h>
#include <limits.h>
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

typedef struct sockets {
    struct sockaddr_storage own, peer;
    int found;               /* in this pass, not seen to by libfabric yet */
    int stranger[STRANGERS]; /* those of which libfabric must get rid before the endpoint goes */
    int strangers;
} sockets;

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

/* A connection of the endpoint's to its peer, from the address of the rail. */
static bool dialled(int fd, const sockets *all, const struct sockaddr_storage *name)
{
    struct sockaddr_storage peer = { .ss_family = AF_UNSPEC };
    socklen_t len = sizeof(peer);
    return all->peer.ss_family != AF_UNSPEC && same_host(name, &all->own) &&
           getpeername(fd, (struct sockaddr *)&peer, &len) == 0 && ofi_same_address(&peer, &all->peer);
}

static void visit(sockets *all, int fd)
{
    struct sockaddr_storage name = { .ss_family = AF_UNSPEC };
    socklen_t len = sizeof(name);
    int listening = 0;
    if (getsockname(fd, (struct sockaddr *)&name, &len) || name.ss_family != all->own.ss_family)
        return;
    bool accepted = ofi_same_address(&name, &all->own);
    len = sizeof(listening);
    if ((!accepted && !dialled(fd, all, &name)) || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &len))
        return;
    if (listening) {
        all->found += shutdown(fd, SHUT_RD) == 0;
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

/* Nothing is accepted meanwhile: libfabric does that when it is polled, and the rail's lock is ours. */
static void visit_all(ofi_rail *rail, sockets *all)
{
    rewinddir(rail->fds);
    for (struct dirent *d; (d = readdir(rail->fds));)
        if (d->d_name[0] != '.')
            visit(all, atoi(d->d_name));
}

void ofi_break_connections(ofi_rail *rail, const ofi_ep *ep)
{
    enum { ROUNDS = 8, EVENTS = 64 }; /* one round is enough, as a rule; what one poll looks at, or less */
    sockets all;
    size_t len = sizeof(all.own);
    struct fi_cq_msg_entry none;

    memset(&all, 0, sizeof(all));
    if (!rail->fds || fi_getname(&ep->ep->fid, &all.own, &len) || (all.own.ss_family != AF_INET && all.own.ss_family != AF_INET6))
        return;
    if (ep->at)
        memcpy(&all.peer, ep->at->bytes, ep->at->len < sizeof(all.peer) ? ep->at->len : sizeof(all.peer));
    visit_all(rail, &all);
    for (int i = 0; i < ROUNDS && (all.found || all.strangers); i++) {
        int n = all.strangers;
        for (uint32_t k = 0; k <= rail->open_eps / EVENTS; k++)
            (void)fi_cq_read(rail->cq, &none, 0); /* progress alone: takes no completion */
        all.found = all.strangers = 0;
        for (int k = 0; k < n; k++)
            visit(&all, all.stranger[k]);
    }
}
