/* The provider for processes of one host: one copy, by process_vm_readv and process_vm_writev, or plain ones within a process.
 *
 * table.c (what regions allow; Go enters them: shm/table.go), peer.c (what is known of a peer; who it is and how endpoints connect is Go's: ipc, handshake), copy.c, pool.c and copier.c (who
 * copies), offload.c and assist.c (pieces that a polling target copies, as either side sees it), stopped.c (one that has stopped), ops.c (posting and polling), rail.c. shared.h
 * has what processes see of each other, pool.h what there is for copies, vram.h what there is for memory of GPUs.
 *
 * An initiator copies by itself, but for pieces that a target takes off it; nobody's hardware checks keys. So each process shows a table of
 * its regions, read-only, and each endpoint a shm in which the peer's epochs say when it copies: whoever lets go of memory makes the region's
 * generation another and then waits until every epoch that was busy, the peers' and our own, has been idle once.
 *
 * Nothing that a peer writes is trusted: which process it is the kernel says (ipc/creds.go), sizes are sealed, indices are masked and copied once, and no descriptor that a peer has, too, is
 * read or written without MSG_DONTWAIT.
 *
 * Locking: the ops table is called under the rail's lock; cma_ep_* and cma_quiet take it themselves. pool.mu is below it. Functions return 0 or a negative errno.
 */
#ifndef GORAIL_LOCAL_H
#define GORAIL_LOCAL_H

#include <stddef.h>
#include <sys/types.h>
#include <time.h>

#include "gr_provider.h"
#include "gr_ready.h"
#include "pool.h"
#include "shared.h"
#include "vram.h"

/* ---- one process's own; pool.h has more ---- */

/* How long a copy is waited for that another process is at: a turn takes some 50 us, or as long as it likes if that process is stopped in it. */
enum { CMA_WAIT_MS = 1000, CMA_NAP_US = 20 };

typedef struct cma_recv {
    gr_ctx *ctx;
    void *buf;
    size_t len;
} cma_recv;

/* The `ep` of the ops table. Under the rail's lock, but for what says otherwise. */
struct cma_ep {
    cma_rail *rail;
    cma_ep *next; /* in rail->eps */
    uint64_t number;
    cma_shm *shm;
    int named;           /* Connect was called */
    int err;             /* not 0: the peer can't be served */
    int assists;           /* as the shm says it */
    uint32_t posted;     /* jobs that poll has not taken back */
    _Atomic int closing; /* a copy under way ends at its next turn */
    _Atomic int doorbell;    /* our connection to the peer, once it has accepted that; -1 */
    _Atomic int rung;    /* to be rung then */

    struct {
        uint32_t taken; /* of our ring */
        uint32_t head, tail;
        cma_recv recv[CMA_RECVS];
    } in;

    struct { /* once it has connected */
        int sock; /* its doorbell to us; -1 */
        cma_shm *shm;
        const cma_entry *table;
        const cma_shares *shares;
        pid_t pid;
        int pidfd;
        int ended; /* its process had when it had connected */
        int self;  /* this very process */
        int same_user;   /* another, for which we may copy: see handshake/accept.go */
        int mem;   /* its /proc/PID/mem as it was then */
        _Atomic uint64_t alive_ns;
        uint32_t put, gone; /* of its ring; gone: how many it had taken when that was looked at last */
        uint64_t turn[CMA_EPOCHS]; /* each its epoch's owner's */
    } peer;

    struct { /* under pool.mu */
        uint32_t lent, lost; /* bits, offers that are in use; of these, that were given up */
        uint32_t jobs;       /* a thread is at them */
        int declined;        /* the peer can't copy for us */
    } pool;

    struct { /* its memory as our GPUs see it, by the core's numbers of regions; one for each GPU that wants it */
        cma_import **import;
        uint32_t imports;
        uint32_t epochs;  /* bits: epochs that jobs have */
        cma_import *left; /* to be unmapped when no job is under way */
    } gpu;
};

/* Under base's lock, but for what says otherwise. */
struct cma_rail {
    gr_rail base;
    cma_ep *eps;
    uint64_t numbers;
    uint32_t open_eps;
    int news;        /* of a handshake, since the last poll */
    uint32_t prompt; /* bytes copied by posts since the last poll */
    cma_job *free_job;
    gr_ready ready;
    int doorbell_fd;
    _Atomic uint32_t asleep; /* the pool rings doorbell_fd */
    _Atomic uint64_t late;   /* who a copy was waited for in vain last: see cma_late */
    uint8_t proof[CMA_TOKEN]; /* bytes that a peer can know by nothing but reading them: Go's */
    uint32_t cpus;           /* that this process may use; 0: unknown. Set before the first endpoint */
    cma_entry *table;         /* Go writes it */
    cma_shares *shares;       /* likewise */
    cma_pool pool;
    cma_mapper mapper;

    struct { /* copies for peers */
        _Atomic uint32_t polls; /* that found nothing to do, since `began` */
        _Atomic uint64_t began;
        uint64_t last;     /* the endpoint whose peer had its turn last */
        _Atomic int assists; /* the application polls all the time: peers may offer something */
        int off;         /* none. Set before the first endpoint */
    } assist;

    struct {
        gr_gpu *_Atomic driver; /* NULL: no region of a GPU yet */
        uint32_t blocks;        /* that a copy may take; 0: the driver's default. Set before the first */
        cma_pair *pairs;
        cma_bulk *bulks;                /* under way */
        gr_gpu_table *deltas[CMA_GPUS]; /* the mapper's */
    } gpu;
};

/* ---- rail.c ---- */

/* What Go has made for a rail: its own from now on, if that opens. */
typedef struct cma_parts {
    cma_entry *table;
    cma_shares *shares;
    int wait_fd, doorbell_fd;
    int mapper_fd; /* Go's: an eventfd */
} cma_parts;

/* threads: of the pool, at most CMA_THREADS. */
int cma_rail_open(uint32_t threads, const cma_nodes *nodes, const cma_parts *parts, cma_rail **out);
int cma_rail_close(cma_rail *rail); /* -EBUSY while endpoints are open; no region is */
int cma_ep_open(cma_rail *rail, cma_shm *shm, cma_ep **out); /* shm: the endpoint's from now on */
/* The peer's access ends, and ours, but for a copy that another process may still make: -ETIMEDOUT, and the endpoint is shut all the same. Its
 * imports end when the mapper has done what it was asked: before cma_ep_free, since the peer may free the memory as soon as it hears of the end. */
int cma_ep_shut(cma_ep *ep);
void cma_ep_free(cma_ep *ep);

/* ---- table.c ---- */

/* Whether the region allows it. EACCES, or ERANGE beyond its bounds. */
int cma_allowed(const cma_entry *table, uint64_t key, uint64_t addr, uint64_t len);
/* Waits, a second at most, until the epochs of that endpoint's shm, or of all, that are busy have been idle once; with regions given, of
 * epochs that say that they are at others, none. With the rail unlocked. */
int cma_quiet(cma_rail *rail, cma_ep *only, uint64_t regions);

/* ---- peer.c: what the handshake tells, each once at most ---- */

typedef struct cma_peer {
    cma_shm *shm;
    const cma_entry *table;
    const cma_shares *shares;
    int sock, self, mem; /* as in cma_ep: in_sock, self, mem */
} cma_peer;

int cma_ep_named(cma_ep *ep); /* -EISCONN */
void cma_ep_identified(cma_ep *ep, pid_t pid, int pidfd);
int cma_ep_connected(cma_ep *ep, const cma_peer *peer); /* all that it has is the endpoint's, unless it fails */
void cma_ep_accepted(cma_ep *ep, int sock);
void cma_ep_fail(cma_ep *ep, int err, int ended); /* ended: the peer's process had */

void cma_ring(cma_ep *ep);    /* wakes the peer; without the lock */
void cma_hear(cma_ep *ep);    /* takes what the peer has rung. With the rail locked, as the rest */
void cma_hang_up(cma_ep *ep); /* at the endpoint's end */
int cma_alive(cma_ep *ep);    /* 0: the peer's process has ended */
int cma_ended(int pidfd);
void cma_wake(cma_rail *rail); /* wakes whoever sleeps on the rail here; without the lock */

/* ---- copy.c ---- */

/* One or more segments; 0 or an errno. Only one thread at a time uses a epoch. */
int cma_copy(cma_ep *ep, uint32_t epoch, int write, uint32_t n, const gr_seg *seg);

/* ---- stopped.c ---- */

/* Whether the thread of another process has been stopped by a signal as it came out of that call, which names this process, or is no more:
 * nothing of it will touch our memory or the other's. 0 where that can't be said. */
int cma_stopped(pid_t pid, int tid, long call);
/* Notes that a copy of that process, 0 if that is not known, was waited for in vain. */
void cma_note_late(cma_rail *rail, pid_t pid);
/* What was noted last: the process << 8 | its state then as /proc has it, or 0. */
uint64_t cma_late(cma_rail *rail);

/* ---- assist.c ---- */

/* Of each poll: looks at what peers offer, and tells them whether there is any use. With the rail locked. */
void cma_assist_look(cma_rail *rail);
/* Bytes that were copied for peers, and by peers for us. */
void cma_assisted(cma_rail *rail, uint64_t *for_peers, uint64_t *by_peers);
/* Copies one piece for a peer; 0: there was none. Without the rail's lock. */
int cma_assist(cma_rail *rail);

/* ---- ops.c ---- */

/* An operation has ended. */
void cma_complete(cma_rail *rail, gr_ctx *ctx, int err, uint64_t len);

extern const gr_rail_ops cma_ops;
extern const gr_rail_unlocked cma_unlocked;
extern const gr_rail_bulk cma_whole;
/* All that is posted on the endpoint ends, as ECANCELED where it did not end before. After `closed`: a sender that does not see that
 * has its message taken here. */
int cma_cancel(cma_ep *ep); /* 0, or -ETIMEDOUT as cma_pool_drain */

/* Nanoseconds. Implements clock_gettime. */
static inline uint64_t cma_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

#endif
