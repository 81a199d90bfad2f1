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
_Static_assert(offsetof(struct tcp_counts, bytes_received) == 128, "struct tcp_info of linux/tcp.h");

typedef struct sockets {
    struct sockaddr_storage own, peer;
    int found; /* in this pass, not seen to by libfabric yet */
} sockets;

static bool same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family)
        return false;
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *x = (const void *)a, *y = (const void *)b;
        return x->sin_port == y->sin_port && x->sin_addr.s_addr == y->sin_addr.s_addr;
    }
    const struct sockaddr_in6 *x = (const void *)a, *y = (const void *)b;
    return x->sin6_port == y->sin6_port && memcmp(&x->sin6_addr, &y->sin6_addr, sizeof(x->sin6_addr)) == 0;
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

/* Throws away what has come in. No more will: from now on the kernel answers data with a reset. */
static void empty(int fd)
{
    enum { ROUNDS = 64 }; /* one takes all there is */
    for (int i = 0; i < ROUNDS && recv(fd, NULL, INT_MAX, MSG_TRUNC | MSG_DONTWAIT) > 0; i++)
        ;
}

static bool has_peer(int fd, const struct sockaddr_storage *peer)
{
    struct sockaddr_storage name = { .ss_family = AF_UNSPEC };
    socklen_t len = sizeof(name);
    return peer->ss_family != AF_UNSPEC && getpeername(fd, (struct sockaddr *)&name, &len) == 0 && same_address(&name, peer);
}

static void visit(sockets *all, int fd)
{
    struct sockaddr_storage name = { .ss_family = AF_UNSPEC };
    socklen_t len = sizeof(name);
    int listening = 0;
    if (getsockname(fd, (struct sockaddr *)&name, &len) || name.ss_family != all->own.ss_family)
        return;
    bool accepted = same_address(&name, &all->own);
    len = sizeof(listening);
    if ((!accepted && !has_peer(fd, &all->peer)) || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &len))
        return;
    if (listening) {
        all->found += shutdown(fd, SHUT_RD) == 0;
        return;
    }
    story s = look(fd);
    if (accepted && s.stranger) {
        all->found += shutdown(fd, SHUT_RDWR) == 0; /* until libfabric has closed it */
    } else if (s.open) {
        all->found += shutdown(fd, SHUT_RDWR) == 0;
        empty(fd);
    }
}

static void visit_all(sockets *all)
{
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        return; /* no /proc: as before */
    for (struct dirent *d; (d = readdir(dir));)
        if (d->d_name[0] != '.')
            visit(all, atoi(d->d_name));
    closedir(dir);
}

void ofi_break_connections(ofi_rail *rail, const ofi_ep *ep)
{
    enum { ROUNDS = 8 }; /* one is enough unless something arrives meanwhile */
    sockets all;
    size_t len = sizeof(all.own);
    struct fi_cq_msg_entry none;

    memset(&all, 0, sizeof(all));
    if (fi_getname(&ep->ep->fid, &all.own, &len) || (all.own.ss_family != AF_INET && all.own.ss_family != AF_INET6))
        return;
    if (ep->at)
        memcpy(&all.peer, ep->at->bytes, ep->at->len < sizeof(all.peer) ? ep->at->len : sizeof(all.peer));
    for (int i = 0; i < ROUNDS; i++) {
        all.found = 0;
        visit_all(&all);
        if (!all.found)
            return;
        (void)fi_cq_read(rail->cq, &none, 0); /* progress alone: takes no completion */
    }
}
