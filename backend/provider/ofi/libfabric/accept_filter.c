/* The accept filter of endpoints of libfabric's tcp family: the part that runs within polls and within calls of the
 * core.
 *
 * Each endpoint listens on its own port, and libfabric accepts every connection. Sixteen bytes from an unauthenticated
 * client can crash the process, because libfabric accepts an acknowledgement that nothing waits for. A silent
 * connection keeps its descriptor. So the listening socket has a classic BPF filter from the start. The filter first
 * admits nobody, then the peer's addresses while the peer connects, and nobody again after the peer's first message.
 * Connections that the kernel had queued before are reset. Connections from the peer's address without a message by
 * then are broken (ofi/sweep.go).
 *
 * Two events cannot wait for Go: the core reports the first message with the rail's lock held (`heard`), and a poll
 * notices that the process has no descriptor left (`arm`). Go finds the listening socket and builds the filters
 * (ofi/accept_filter.go, sockets/filter.go). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ofi.h"

static void reset(int fd)
{
    const struct linger none = {.l_onoff = 1, .l_linger = 0};
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
    close(fd);
}

static int spare(void) { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

/* The process is out of descriptors. One is reserved to accept and reset a connection. If another thread takes it, the
 * connection waits for the next call. */
static int accept_reserved(ofi_rail *rail, int listener)
{
    if ((errno != EMFILE && errno != ENFILE) || rail->reserve < 0)
        return -1;
    close(rail->reserve);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0)
        reset(fd);
    rail->reserve = spare();
    return fd;
}

int ofi_filter_reset_queued(ofi_rail *rail, int listener)
{
    enum { QUEUED = 4096 }; /* largest accept backlog to expect: net.core.somaxconn */
    struct pollfd p = {.fd = listener, .events = POLLIN};
    int n = 0;
    for (int i = 0; i < QUEUED && poll(&p, 1, 0) > 0 && p.revents & POLLIN; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0)
            reset(fd);
        else if (errno != ECONNABORTED && errno != EINTR && accept_reserved(rail, listener) < 0)
            break;
        n++;
    }
    return n;
}

int ofi_filter_open(ofi_rail *rail, ofi_ep *ep, struct sock_filter *filter, unsigned short len)
{
    struct sock_fprog prog = {.len = len, .filter = filter};
    if (setsockopt(ep->listener, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof(prog)) != 0)
        return -errno;
    if (ep->open)
        return 0;
    ep->open = 1;
    LIST_INSERT_HEAD(&rail->filters, ep, filters);
    return 0;
}

void ofi_filter_shut(ofi_rail *rail, ofi_ep *ep)
{
    struct sock_filter none = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog prog = {.len = 1, .filter = &none};
    if (!ep->open)
        return;
    ep->open = 0;
    LIST_REMOVE(ep, filters);
    if (setsockopt(ep->listener, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof(prog)) != 0)
        return;
    ep->unswept = 1;
    (void)ofi_filter_reset_queued(rail, ep->listener);
}

/* Without a free descriptor libfabric cannot accept. Its poll then reports the connection again and again and keeps a
 * CPU core busy. */
void ofi_filter_on_emfile(ofi_rail *rail)
{
    int fd = spare();
    if (fd >= 0 && rail->reserve < 0) /* another thread had taken the reserve */
        rail->reserve = fd;
    else if (fd >= 0)
        close(fd);
    if (fd >= 0 || (errno != EMFILE && errno != ENFILE))
        return;
    ofi_ep *ep;
    LIST_FOREACH(ep, &rail->filters, filters)
    rail->resets += (uint64_t)ofi_filter_reset_queued(rail, ep->listener);
}
