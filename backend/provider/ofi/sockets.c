/* What libfabric forgets when an endpoint of its tcp family closes.
 *
 * An accepted connection that has not introduced itself yet keeps a pointer to the endpoint it came in by, and the next
 * poll follows it into freed memory (all releases 1.17 .. 2.6; its source says so). Such connections show neither in the
 * API nor in a list, so they are found among the process's sockets: accepted by our port, and nothing read from them.
 * They are shut down and libfabric is let notice before the endpoint goes.
 */
#include <dirent.h>
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
    struct sockaddr_storage own;
    int listeners, strangers; /* shut down in this pass */
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

/* The counter comes first: what arrives in between makes a socket look unread, which is the safe error. A FIN counts
 * as a byte received and never as one to read. */
static bool unread(int fd)
{
    struct tcp_counts tcp = { .bytes_received = 0 };
    socklen_t len = sizeof(tcp);
    int waiting = 0;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &tcp, &len) || len < sizeof(tcp) || ioctl(fd, FIONREAD, &waiting))
        return true;
    return tcp.base.tcpi_state != TCP_ESTABLISHED || tcp.bytes_received <= (uint64_t)waiting;
}

static void visit(sockets *all, int fd)
{
    struct sockaddr_storage name = { .ss_family = AF_UNSPEC };
    socklen_t len = sizeof(name);
    int listening = 0;
    if (getsockname(fd, (struct sockaddr *)&name, &len) || !same_address(&name, &all->own))
        return;
    len = sizeof(listening);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &len))
        return;
    if (listening)
        all->listeners += shutdown(fd, SHUT_RD) == 0;
    else if (unread(fd))
        all->strangers += shutdown(fd, SHUT_RDWR) == 0;
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

void ofi_drop_strangers(ofi_rail *rail, struct fid_ep *ep)
{
    enum { ROUNDS = 8 }; /* one is enough unless something arrives meanwhile */
    sockets all;
    size_t len = sizeof(all.own);
    struct fi_cq_msg_entry none;

    memset(&all, 0, sizeof(all));
    if (fi_getname(&ep->fid, &all.own, &len) || (all.own.ss_family != AF_INET && all.own.ss_family != AF_INET6))
        return;
    for (int i = 0; i < ROUNDS; i++) {
        all.listeners = all.strangers = 0;
        visit_all(&all);
        if (!all.listeners && !all.strangers)
            return;
        (void)fi_cq_read(rail->cq, &none, 0); /* progress alone: takes no completion */
    }
}
