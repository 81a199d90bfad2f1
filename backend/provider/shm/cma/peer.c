/* What is known of a peer, and doorbells. The handshake is Go (package ipc) and reports its results to the
 * endpoint here. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cma.h"

enum {
    MAX_RINGS = 16,       /* doorbell messages read in one call */
    MOVED = 1,            /* a doorbell message, the last of a connection: rings come over the other one now. Others are rings */
    /* for so long a program counts as alive without a new look, which is one or two system calls; the kernel may give a dead
     * process's number to another one soon after, and exec replaces the program at once */
    ALIVE_NS = 4000000,
};

/* Wakes the thread that sleeps on the rail. */
void cma_wake(cma_rail *rail)
{
    if (atomic_load(&rail->asleep) && atomic_exchange(&rail->asleep, 0))
        (void)!write(rail->doorbell_fd, &(uint64_t){1}, sizeof(uint64_t));
}

/* Reports progress of the handshake: a sleeping thread wakes and looks at the endpoint. With the rail locked. */
static void notify(cma_ep *ep)
{
    ep->rail->handshake_event = 1;
    cma_wake(ep->rail);
}

int cma_ep_begin_connect(cma_ep *ep)
{
    gr_rail_lock(&ep->rail->base);
    int rc = ep->connecting ? -EISCONN : 0;
    ep->connecting = 1;
    gr_rail_unlock(&ep->rail->base);
    return rc;
}

void cma_ep_identified(cma_ep *ep, pid_t pid, int pidfd, int lent)
{
    gr_rail_lock(&ep->rail->base);
    ep->peer.pid = pid;
    ep->peer.pidfd = pidfd;
    ep->peer.lent = lent;
    gr_rail_unlock(&ep->rail->base);
}

/* a full queue already holds a message that wakes the peer */
static void ring(int sock) { (void)!send(sock, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL); }

/* Each end has made a connection. One is enough when both are there: the end that moves (ipc/handshake_dial.go) rings over the peer's, and closes
 * its own when the peer has done so: until then an end of it is the end of this program. own: ours, which no thread uses yet. Returns 1 if it
 * has moved. With the rail locked. */
static int move(cma_ep *ep, int own)
{
    char moved = MOVED;
    int to = atomic_load(&ep->peer.sock);
    if (!ep->moves || to < 0 || send(own, &moved, 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1)
        return 0;
    atomic_store(&ep->doorbell, to);
    ep->left = own;
    return 1;
}

void cma_ep_settle(cma_ep *ep, int now)
{
    char c;
    if (ep->left >= 0 && (now || recv(ep->left, &c, 1, MSG_DONTWAIT) == 0)) {
        close(ep->left);
        ep->left = -1;
    }
}

/* The peer has moved: it rings over our connection, once that is accepted. */
static void follow(cma_ep *ep)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = ep};
    int to = atomic_load(&ep->doorbell), from = atomic_load(&ep->peer.sock);
    if (!ep->moved || to < 0 || from == to)
        return;
    if (epoll_ctl(ep->rail->base.wait_fd, EPOLL_CTL_ADD, to, &ev)) { /* its rings would be lost */
        atomic_store(&ep->peer.gone, 1);
        return;
    }
    atomic_store(&ep->peer.sock, to); /* before close: see peer_look */
    if (from >= 0) {
        epoll_ctl(ep->rail->base.wait_fd, EPOLL_CTL_DEL, from, NULL);
        shutdown(from, SHUT_RDWR); /* a child process may hold it, too, and the peer waits for the close */
        close(from);
    }
}

int cma_ep_connected(cma_ep *ep, const cma_peer *peer)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = ep};
    gr_rail_lock(&ep->rail->base);
    int rc = ep->err ? -ep->err : epoll_ctl(ep->rail->base.wait_fd, EPOLL_CTL_ADD, peer->sock, &ev) ? -errno : 0;
    if (!rc) {
        ep->peer.sock = peer->sock;
        ep->peer.table = peer->table;
        ep->peer.shares = peer->shares;
        ep->peer.self = peer->self;
        if (!peer->self && !peer->apart) {
            ep->peer.proof.at = peer->shm->proof_at;
            memcpy(ep->peer.proof.bytes, peer->shm->proof, sizeof(ep->peer.proof.bytes)); /* ours */
        }
        ep->peer.same_user = peer->same_user && ep->peer.proof.at;
        ep->ring.on = peer->apart;
        ep->ring.mem = peer->ring;
        ep->ring.size = peer->ring_size / CMA_CHUNKS;
        ep->peer.shm = peer->shm;
        if (atomic_load(&ep->doorbell) >= 0)
            move(ep, atomic_load(&ep->doorbell));
        notify(ep);
    }
    gr_rail_unlock(&ep->rail->base);
    return rc;
}

void cma_ep_accepted(cma_ep *ep, int sock, int moves)
{
    gr_rail_lock(&ep->rail->base);
    ep->moves = moves;
    if (!move(ep, sock))
        atomic_store(&ep->doorbell, sock);
    if (atomic_exchange(&ep->ring_pending, 0))
        ring(atomic_load(&ep->doorbell));
    follow(ep);
    gr_rail_unlock(&ep->rail->base);
}

void cma_ep_fail(cma_ep *ep, int err, int ended)
{
    gr_rail_lock(&ep->rail->base);
    atomic_store(&ep->shm->closed, 1); /* the peer may be connected already, and send */
    cma_take(ep);
    if (!ep->err)
        ep->err = err;
    cma_rouse(ep);
    ep->peer.ended |= ended;
    notify(ep);
    gr_rail_unlock(&ep->rail->base);
}

void cma_ring(cma_ep *ep)
{
    int sock = atomic_load(&ep->doorbell);
    if (sock < 0) { /* the peer has not accepted our connection: cma_ep_accepted rings */
        atomic_store(&ep->ring_pending, 1);
        if ((sock = atomic_load(&ep->doorbell)) < 0 || !atomic_exchange(&ep->ring_pending, 0))
            return;
    }
    ring(sock);
}

void cma_ring_asleep(cma_ep *ep)
{
    _Atomic uint32_t *sleeping = &ep->peer.shm->sleeping;
    if (atomic_load(sleeping) && atomic_exchange(sleeping, 0))
        cma_ring(ep);
}

void cma_hang_up(cma_ep *ep)
{
    int sock = atomic_exchange(&ep->peer.sock, -1);
    if (sock < 0)
        return;
    /* close alone may not remove it: a child process may hold the socket, too */
    epoll_ctl(ep->rail->base.wait_fd, EPOLL_CTL_DEL, sock, NULL);
    /* Our own connection is closed when the endpoint is freed, also one that we have moved from: the peer may take its end for the end of this
     * process, and of its copies. */
    if (sock != atomic_load(&ep->doorbell))
        close(sock);
}

void cma_drain_doorbell(cma_ep *ep)
{
    char c;
    int sock;
    for (int i = 0; i < MAX_RINGS && (sock = atomic_load(&ep->peer.sock)) >= 0; i++) {
        ssize_t n = recv(sock, &c, 1, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n > 0) {
            if (c == MOVED && !ep->moves)
                ep->moved = 1;
            follow(ep);
            continue;
        }
        atomic_store(&ep->peer.gone, 1); /* a closed socket stays readable */
        ep->peer.ended |= ep->peer.pidfd < 0; /* the kernel gave no pidfd: the socket reports the end */
        ep->peer.alive_ns = 0; /* look again */
        cma_hang_up(ep);
    }
}

enum { ALIVE, PROVEN, ENDED, FAULT };

/* Reads the proof. PROVEN: it is there, and so is the program. ALIVE: the kernel does not tell: the process has ended, or its first thread, or
 * we may not read its memory any more. ENDED: other bytes. FAULT: no bytes; another program runs, or the page is swapped out or being reaped. */
static int proof_of(const cma_ep *ep)
{
    uint8_t seen[CMA_TOKEN];
    struct iovec here = {seen, sizeof(seen)}, there = {(void *)(uintptr_t)ep->peer.proof.at, sizeof(seen)};
    ssize_t n = process_vm_readv(ep->peer.pid, &here, 1, &there, 1, 0);
    if (n != (ssize_t)sizeof(seen))
        return n < 0 && errno != EFAULT ? ALIVE : FAULT;
    return memcmp(seen, ep->peer.proof.bytes, sizeof(seen)) ? ENDED : PROVEN;
}

int cma_same_program(const cma_ep *ep) { return ep->peer.proof.at && proof_of(ep) == PROVEN; }

/* ALIVE: the program that connected has not ended. ENDED, FAULT: it has, FAULT perhaps not. If the process runs another program by now, it keeps its number and its pidfd; the proof is
 * gone. At the program's end its socket closes, unless a child holds it. */
static int peer_look(cma_ep *ep)
{
    struct pollfd p[] = {{.fd = ep->peer.pidfd, .events = POLLIN}, {.fd = ep->peer.sock, .events = POLLRDHUP}}; /* doorbells may still be in the queue */
    if (poll(p, 2, 0) > 0 && (p[1].revents & (POLLHUP | POLLRDHUP)) && p[1].fd == atomic_load(&ep->peer.sock)) { /* see follow */
        atomic_store(&ep->peer.gone, 1);
        if (ep->peer.pidfd < 0 && ep->ring.on)
            return ENDED;
    }
    if (p[0].revents & POLLIN)
        return ENDED;
    int proof = ep->peer.proof.at && !ep->ring.on ? proof_of(ep) : ALIVE;
    return proof == PROVEN ? ALIVE : proof;
}

/* As peer_look, at most each ALIVE_NS. */
static int state(cma_ep *ep)
{
    uint64_t now = cma_now();
    if (ep->peer.ended)
        return ENDED;
    if (now - ep->peer.alive_ns < ALIVE_NS)
        return ALIVE;
    int is = peer_look(ep);
    if (is == ALIVE) {
        ep->peer.alive_ns = now;
        ep->peer.fault_ns = 0;
    }
    return is;
}

int cma_alive(cma_ep *ep) { return state(ep) == ALIVE; }

int cma_may_copy(cma_ep *ep)
{
    enum { FAULT_NS = 500 * 1000 * 1000 };
    int is = state(ep);
    if (is != FAULT)
        return is == ALIVE;
    uint64_t now = cma_now(), since = ep->peer.fault_ns; /* copying threads that can read the proof set it to 0 */
    if (!since)
        ep->peer.fault_ns = since = now;
    return now - since < FAULT_NS;
}

int cma_reaches(cma_ep *ep) { return !atomic_load(&ep->peer.shm->closed) && cma_alive(ep) && !atomic_load(&ep->peer.gone); }

void cma_note_late(cma_rail *rail, pid_t pid) { atomic_store(&rail->late, (uint64_t)(uint32_t)pid << 8 | (uint8_t)cma_state(pid)); }

uint64_t cma_refused(cma_rail *rail) { return atomic_exchange(&rail->refused, 0); }

uint64_t cma_late(cma_rail *rail) { return atomic_load(&rail->late); }
