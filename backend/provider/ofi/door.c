/* Who may connect to an endpoint of libfabric's tcp family.
 *
 * Each endpoint listens on a port of its own, and libfabric accepts whoever connects. Sixteen bytes of a stranger's end the process
 * (libfabric takes an acknowledgement while nothing waits for one), and a silent connection keeps its descriptor. So the listening
 * socket has a classic BPF filter from the start: it admits nobody, then the peer's addresses while the peer connects, and nobody
 * again once the peer's first message is in. What the kernel had queued before is reset. Connections of the peer's address that
 * have not sent a message by then are broken (ofi_door_sweep).
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ofi.h"

enum {
    QUEUED = 4096,    /* connections that the kernel may hold for a listener: net.core.somaxconn */
    NEARBY = 8,       /* descriptors from the lowest free one on that a new socket gets, but for other threads */
    CANDIDATES = 512, /* connections looked at in one sweep; the others have their turn in the next */
    PER_NET = 13,     /* instructions, at most */
    ADMITS = 64,
};

/* ---- the filter ---- */

typedef struct program {
    struct sock_filter at[8 + PER_NET * ADMITS];
    unsigned n;
} program;

static void emit(program *p, uint16_t code, uint8_t yes, uint8_t no, uint32_t k)
{
    p->at[p->n++] = (struct sock_filter){code, yes, no, k};
}

/* Admits a source address whose `words` words from offset on, masked, are the network's. */
static void emit_net(program *p, const ofi_net *net, uint32_t offset, int words)
{
    for (int i = 0; i < words; i++) {
        int bits = net->bits - 32 * i;
        uint32_t mask = bits <= 0 ? 0 : bits >= 32 ? UINT32_MAX : ~(UINT32_MAX >> bits), word;
        memcpy(&word, net->ip + 4 * i, sizeof(word));
        emit(p, BPF_LD | BPF_W | BPF_ABS, 0, 0, (uint32_t)SKF_NET_OFF + offset + 4 * (uint32_t)i);
        emit(p, BPF_ALU | BPF_AND | BPF_K, 0, 0, mask);
        emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, (uint8_t)(3 * (words - 1 - i) + 1), __builtin_bswap32(word) & mask);
    }
    emit(p, BPF_RET | BPF_K, 0, 0, UINT32_MAX);
}

int ofi_door_filter(int fd, const ofi_net *nets, int n)
{
    enum { V4_SOURCE = 12, V6_SOURCE = 8 };
    program p = {.n = 0};
    if (n > ADMITS)
        return -E2BIG;
    if (n > 0) {
        unsigned skip;
        emit(&p, BPF_LD | BPF_B | BPF_ABS, 0, 0, (uint32_t)SKF_NET_OFF);
        emit(&p, BPF_ALU | BPF_RSH | BPF_K, 0, 0, 4);
        emit(&p, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 4);
        skip = p.n;
        emit(&p, BPF_JMP | BPF_JA, 0, 0, 0); /* to the networks of IPv6 */
        for (int i = 0; i < n; i++)
            if (!nets[i].v6)
                emit_net(&p, &nets[i], V4_SOURCE, 1);
        emit(&p, BPF_RET | BPF_K, 0, 0, 0);
        p.at[skip].k = p.n - skip - 1;
        for (int i = 0; i < n; i++)
            if (nets[i].v6)
                emit_net(&p, &nets[i], V6_SOURCE, 4);
    }
    emit(&p, BPF_RET | BPF_K, 0, 0, 0);
    struct sock_fprog prog = {.len = (unsigned short)p.n, .filter = p.at};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof(prog)) == 0 ? 0 : -errno;
}

/* ---- the listening socket ---- */

static void reset(int fd)
{
    const struct linger none = {.l_onoff = 1, .l_linger = 0};
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
    close(fd);
}

/* The process is out of descriptors: one is kept for this. Another thread may take it, then the connection waits for the next time. */
static int accept_reserved(ofi_rail *rail, int listener)
{
    if ((errno != EMFILE && errno != ENFILE) || rail->reserve < 0)
        return -1;
    close(rail->reserve);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0)
        reset(fd);
    rail->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return fd;
}

/* Resets what waits to be accepted; how many. */
static int turn_away(ofi_rail *rail, int listener)
{
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

static bool listens_at(int fd, const struct sockaddr_storage *own)
{
    struct sockaddr_storage name = {.ss_family = AF_UNSPEC};
    socklen_t len = sizeof(name);
    return getsockname(fd, (struct sockaddr *)&name, &len) == 0 && ofi_same_address(&name, own) && ofi_listens(fd);
}

int ofi_door_hint(const ofi_rail *rail)
{
    int fd = rail->fds ? fcntl(dirfd(rail->fds), F_DUPFD_CLOEXEC, 0) : -1;
    if (fd >= 0)
        close(fd);
    return fd;
}

static int find_listener(ofi_rail *rail, const struct sockaddr_storage *own, int hint)
{
    for (int fd = hint; hint >= 0 && fd < hint + NEARBY; fd++)
        if (listens_at(fd, own))
            return fd;
    rewinddir(rail->fds_locked);
    for (struct dirent *d; (d = readdir(rail->fds_locked));)
        if (d->d_name[0] != '.' && listens_at(atoi(d->d_name), own))
            return atoi(d->d_name);
    return -1;
}

void ofi_door_fit(ofi_rail *rail, ofi_ep *ep, const void *addr, size_t len, int hint)
{
    ep->listener = -1;
    memset(&ep->own, 0, sizeof(ep->own));
    memcpy(&ep->own, addr, len < sizeof(ep->own) ? len : sizeof(ep->own));
    if (!rail->fds || (ep->own.ss_family != AF_INET && ep->own.ss_family != AF_INET6))
        return;
    int fd = find_listener(rail, &ep->own, hint), rc = fd < 0 ? -ENOENT : ofi_door_filter(fd, NULL, 0);
    if (rc) {
        rail->no_door = rc;
        return;
    }
    ep->listener = fd;
    (void)turn_away(rail, fd);
}

int ofi_door_admit(ofi_rail *rail, ofi_ep *ep, const ofi_net *nets, int n)
{
    int rc = 0;
    gr_rail_lock(&rail->base);
    if (ep->listener >= 0 && (rc = ofi_door_filter(ep->listener, nets, n)) == 0) {
        rail->doors += !ep->open;
        ep->open = 1;
    }
    gr_rail_unlock(&rail->base);
    return rc;
}

void ofi_door_shut(ofi_rail *rail, ofi_ep *ep)
{
    if (!ep->open)
        return;
    ep->open = 0;
    rail->doors--;
    if (ofi_door_filter(ep->listener, NULL, 0) != 0)
        return;
    ep->unswept = 1;
    (void)turn_away(rail, ep->listener);
}

/* Without a descriptor libfabric accepts nothing, and is told of the connection for ever, at the cost of a core. */
void ofi_door_relieve(ofi_rail *rail)
{
    int fd = ofi_door_hint(rail);
    if (fd >= 0 && rail->reserve < 0) /* another thread had taken it */
        rail->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd >= 0 || (errno != EMFILE && errno != ENFILE))
        return;
    for (ofi_ep *ep = rail->eps; ep; ep = ep->next)
        if (ep->open)
            rail->turned_away += (uint64_t)turn_away(rail, ep->listener);
}

/* ---- what has come in ---- */

static ofi_ep *owner(ofi_rail *rail, int fd)
{
    struct sockaddr_storage name = {.ss_family = AF_UNSPEC};
    socklen_t len = sizeof(name);
    if (getsockname(fd, (struct sockaddr *)&name, &len))
        return NULL;
    for (ofi_ep *ep = rail->eps; ep; ep = ep->next)
        if (ep->listener >= 0 && fd != ep->listener && ofi_same_address(&ep->own, &name))
            return ep;
    return NULL;
}

/* Fewer bytes than a connection request and a message have. */
static int judge(const ofi_ep *ep, int fd)
{
    enum { SPOKEN = 64 };
    if (!ep->unswept)
        return 0;
    if (ofi_bytes_read(fd) < SPOKEN)
        return shutdown(fd, SHUT_RDWR) == 0;
    int none = 0;
    (void)setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof(none)); /* inherited from the listener */
    return 0;
}

/* A descriptor is looked at twice: without the lock, for there may be many, and under it, where libfabric closes none. */
int ofi_door_sweep(ofi_rail *rail)
{
    int candidate[CANDIDATES], n = 0, cut = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        return -errno;
    gr_rail_lock(&rail->base);
    int ports = 0, cap = 0;
    for (ofi_ep *ep = rail->eps; ep; ep = ep->next)
        cap += ep->unswept;
    struct sockaddr_storage *own = calloc((size_t)cap + 1, sizeof(*own));
    for (ofi_ep *ep = own ? rail->eps : NULL; ep; ep = ep->next)
        if (ep->unswept)
            own[ports++] = ep->own;
    gr_rail_unlock(&rail->base);
    for (struct dirent *d; own && n < CANDIDATES && (d = readdir(dir));) {
        struct sockaddr_storage name = {.ss_family = AF_UNSPEC};
        socklen_t len = sizeof(name);
        if (d->d_name[0] == '.' || getsockname(atoi(d->d_name), (struct sockaddr *)&name, &len))
            continue;
        for (int i = 0; i < ports; i++)
            if (ofi_same_address(&own[i], &name)) {
                candidate[n++] = atoi(d->d_name);
                break;
            }
    }
    closedir(dir);
    gr_rail_lock(&rail->base);
    for (int i = 0; i < n; i++) {
        ofi_ep *ep = owner(rail, candidate[i]);
        cut += ep && judge(ep, candidate[i]);
    }
    for (ofi_ep *ep = rail->eps; own && n < CANDIDATES && ep; ep = ep->next)
        for (int i = 0; i < ports; i++)
            if (ep->unswept && ofi_same_address(&own[i], &ep->own))
                ep->unswept = 0;
    gr_rail_unlock(&rail->base);
    int rc = !own ? -ENOMEM : n == CANDIDATES ? -EAGAIN : cut;
    free(own);
    return rc;
}
