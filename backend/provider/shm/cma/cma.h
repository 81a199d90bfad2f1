/* The provider for processes of one host. It makes one copy: by process_vm_readv or process_vm_writev (CMA), or by
 * gr_guard_move within a process.
 *
 * table.c: what regions allow. Go enters regions: shm/mr.go.
 * peer.c: what is known of a peer. Go identifies the peer and connects endpoints: ipc, handshake.
 * copy.c, pool.c, copier.c: the copies and the threads that make them. view.h: peers' memory that is mapped here.
 * offload.c, assist.c: pieces that a polling target copies, on the initiator's side and on the target's side.
 * ask.c, answer.c: whether the owner's memory is still what an importer has mapped, on either side.
 * chunks.c, serve.c: a ring between processes that may not access each other's memory, on either side.
 * base: the layout of shared memory, a peer's thread that has stopped.
 * doze.c: endpoints that are not polled. ops.c: posting and polling. rail.c: rails and endpoints.
 * shared.h: what processes read and write of each other. pool.h: copies. vram.h: GPU memory.
 *
 * An initiator copies by itself, except for pieces that the target takes over. Where the kernel does not let it (another pid
 * namespace, Yama), it copies into and out of a ring, and the target copies the rest: docs/one-host.md. No hardware checks keys. So each
 * process shows peers a read-only table of its regions. Each endpoint has a shared-memory segment with in-use epochs,
 * in which the peer marks its copies. Deregistration increments the region's generation. Then it waits until every
 * busy epoch, the peers' and our own, has been idle once.
 *
 * Nothing that a peer writes is trusted. The kernel identifies the peer's process (ipc/creds.go). Sizes are sealed.
 * Indices are masked and read once. A descriptor that a peer holds, too, is read or written with MSG_DONTWAIT only.
 *
 * Locking: the core calls the ops table under the rail's lock. cma_ep_* and cma_wait_idle take the lock themselves.
 * pool.mu is taken after the rail's lock. Functions return 0 or a negative errno. */
#ifndef GORAIL_SHM_CMA_H
#define GORAIL_SHM_CMA_H

#include <errno.h>
#include <stddef.h>
#include <sys/types.h>
#include <time.h>

#include "gr_failpoint.h"
#include "gr_provider.h"
#include "gr_ready.h"
#include "pool.h"
#include "shared.h"
#include "vram.h"
#include "view.h"

/* ---- not shared with peers; more in pool.h ---- */

/* CMA_WAIT_MS bounds the wait for a copy of another process. One turn of a copy takes some 50 us; if the process is
 * stopped within the turn, there is no bound. CMA_SLEEP_US is the time between two looks. */
enum { CMA_WAIT_MS = 1000, CMA_SLEEP_US = 20 };

enum { CMA_MAY_READ = 1, CMA_MAY_WRITE = 2 }; /* option.Rights */

typedef struct cma_recv {
    gr_ctx *ctx;
    void *buf;
    size_t len;
} cma_recv;

/* How far the answer to a question has come. */
typedef struct cma_looked {
    uint32_t seq, range; /* of the question; the ranges before this one are the same */
    uint64_t done;       /* bytes of this range that are the same */
} cma_looked;

/* cma_rail.changed. The task is queued; the mapper has taken it, and Go will look. One task at a time, however many questions find a change. */
enum { CMA_NOT_CHANGED, CMA_CHANGE_FOUND, CMA_CHANGE_TOLD };

/* The `ep` of the ops table. Guarded by the rail's lock unless a field says otherwise. */
struct cma_ep {
    cma_rail *rail;
    cma_ep *next; /* next in rail->eps */
    uint64_t number;
    struct {
        LIST_ENTRY(cma_ep) entry; /* in rail->doze.polled, unless it dozes */
        int on;                   /* it dozes */
        int active;               /* we have posted since the last look */
        uint64_t seen;            /* the last look that found something to do, in ns */
        uint32_t taken;           /* in.taken then */
    } doze;
    cma_shm *shm;
    int connecting;           /* Connect was called */
    int err;                  /* not 0: the endpoint is unusable, for this reason */
    int assists;              /* the value that shm->assists has */
    uint32_t posted;          /* jobs that poll has not completed */
    _Atomic int closing;      /* a copy under way ends before its next turn */
    _Atomic int doorbell;     /* our connection to the peer, after the peer has accepted it, or peer.sock after a move; else -1 */
    int moves, moved;         /* we may move to the peer's connection; the peer has moved to ours */
    int left;                 /* our connection that we have moved from; -1: none */
    _Atomic int ring_pending; /* ring when doorbell is set */

    struct {
        uint32_t taken; /* messages taken from our ring */
        uint32_t head, tail;
        cma_recv recv[CMA_RECVS];
    } in;

    struct { /* pid and pidfd: set when the peer is identified; the rest: when it has connected */
        _Atomic int sock; /* the peer rings us over this socket; -1: none. Copiers look at it without the lock */
        cma_shm *shm;
        const cma_entry *table;
        const cma_shares *shares;
        pid_t pid;
        int pidfd; /* -1: none */
        int lent;  /* pidfd is another's, who closes it after cma_ep_free, unless that keeps it */
        int ended;     /* the handshake failed because the process had ended */
        _Atomic int gone; /* the peer's socket has closed: the endpoint has ended, or the program */
        int self;         /* the peer is this process */
        int same_user; /* another process that we may assist: see ipc/handshake_accept.go */
        struct {       /* the program that connected has these bytes in its memory until it ends: see look */
            uint64_t at;   /* 0: we may not read them, or the peer is of an earlier version, or this process */
            uint8_t bytes[CMA_TOKEN];
        } proof;
        _Atomic uint64_t alive_ns;
        _Atomic uint64_t fault_ns; /* since when the proof could not be read; 0: it could. See cma_may_copy */
        uint32_t put, taken;       /* messages put into the peer's ring; the peer's `taken` as we read it last */
        uint64_t turn[CMA_EPOCHS]; /* written by the thread that holds the epoch */
    } peer;

    struct { /* under pool.mu */
        uint32_t offers, abandoned; /* bits: offers in use; offers among them that we gave up without the peer's answer */
        uint32_t jobs;              /* jobs that threads are copying */
        _Atomic int declined;       /* the peer cannot copy for us */
    } pool;

    struct { /* the rings; under pool.mu unless a comment says otherwise */
        uint8_t *own;            /* our ring, which the peer fills and empties. Constant */
        _Atomic int on;          /* all our jobs go through the peer's ring. Set when the peer connects, as mem and size, or by cma_take_ring */
        uint8_t *mem;            /* the peer's ring; NULL: the peer is this process */
        uint64_t own_size, size; /* bytes of a chunk */
        cma_job *head, **tail;   /* jobs with bytes that have had no chunk */
        uint32_t next_chunk;     /* of a large job */
        uint64_t direct_ns;      /* until then, small jobs of a direct peer are no work for its ring; under the rail's lock */
        uint32_t busy, moving;   /* bits: chunks in use; chunks among them that a thread of ours copies */
        int err;                 /* not 0: the peer is gone */
        struct cma_part {
            cma_job *job;
            uint64_t from, len; /* of the job's bytes */
            uint64_t late_ns;   /* we make the copy then, if we can and the peer has not begun */
        } part[CMA_CHUNKS];
        TAILQ_ENTRY(cma_ep) entry; /* in pool.chunked, if listed */
        int listed;
    } ring;

    cma_patience waited[CMA_EPOCHS]; /* for the peer's copies */

    cma_views views; /* the peer's host memory that is mapped here */

    struct { /* questions to the peer */
        uint32_t busy; /* bits: in use. Those of GPU jobs are in use with their epochs, and have no bit here */
        uint32_t of[CMA_ASKS]; /* numbers of the last questions */
    } ask;

    struct { /* the peer's questions whose answer takes several turns */
        _Atomic uint32_t open; /* bits: of those that a turn has left. Written under pool.mu */
        cma_looked of[CMA_ASKS];
    } looked;

    struct { /* the peer's memory as our GPUs see it: a list per region number, with one import per GPU */
        cma_import **import;
        uint32_t imports;
        uint32_t source;  /* import.c: number of the peer among those that share mappings; 0: not needed yet */
        uint32_t epochs;  /* bits: epochs in use by jobs */
        cma_import *left; /* dropped imports; unmapped when no job uses them */
        uint32_t kept;    /* jobs that the GPU did not end when the endpoint was closed */
        int freed;        /* cma_ep_free was called, and such jobs are left */
    } gpu;
};

/* Guarded by base's lock unless a field says otherwise. */
struct cma_rail {
    gr_rail base;
    cma_ep *eps;
    uint64_t numbers;
    uint32_t open_eps;
    struct {
        LIST_HEAD(, cma_ep) polled;
        uint32_t npolled, dozing;
        uint64_t rung_ns, all_ns; /* when rings, and all endpoints, were looked at last */
    } doze;
    cma_ep *waiting; /* closed endpoints whose peer's GPU has not ended a copy; nwaiting of them */
    uint32_t nwaiting;
    int handshake_event;   /* a handshake has made progress since the last poll */
    uint32_t inline_bytes; /* bytes that posts have copied since the last poll */
    cma_job *free_job;
    gr_ready ready;
    int doorbell_fd;
    _Atomic uint32_t asleep;  /* a thread sleeps on the rail: cma_wake writes to doorbell_fd */
    _Atomic uint64_t late;    /* the last wait for a copy that timed out: see cma_late */
    _Atomic uint64_t refused; /* the last peer whose memory is out of reach now: see cma_refused */
    uint8_t proof[CMA_TOKEN]; /* random bytes, filled by Go: a peer that knows them can read our memory */
    uint32_t cpus;            /* processors that this process may use; 0: unknown. Set before the first endpoint */
    cma_entry *table;         /* written by Go */
    cma_shares *shares;       /* written by Go */
    cma_vram *_Atomic *known; /* by region: the GPU memory that was registered. Written by Go before the entry, cleared after the last copy */
    _Atomic int maps;         /* /proc/self/maps; -1: no region is a mapped file */
    _Atomic int changed;      /* memory is not what was registered: CMA_CHANGE_FOUND and so on */
    cma_task changed_task;
    struct { /* when a peer's question was answered last, and until when the next one is expected: see answer.c */
        _Atomic uint64_t last_ns, until_ns;
    } asked;
    cma_job *asking;          /* copies through mapped files that wait for the peer's answer */
    uint8_t *rights;          /* by region: what peers may do with it, CMA_MAY_READ and CMA_MAY_WRITE. Written by Go before the entry */
    cma_pool pool;
    cma_mapper mapper;

    struct { /* copies that we make for peers */
        _Atomic uint32_t polls; /* polls without work since `began` */
        _Atomic uint64_t began;
        uint64_t last;       /* number of the endpoint whose peer was assisted last */
        _Atomic int assists; /* how the application polls, as in cma_shm */
        int off;             /* never assist. Set before the first endpoint */
    } assist;

    uint64_t served; /* number of the endpoint whose peer was served last */

    struct {
        gr_gpu *_Atomic driver; /* NULL: no GPU region was registered yet */
        uint32_t how;           /* a gr_gpu_how. Set before the first copy */
        cma_pair *pairs;
        cma_bulk *bulks;                /* jobs under way */
        cma_bulk *kept;                 /* jobs under way of closed endpoints: their GPU did not end them */
        _Atomic uint32_t nkept;
        uint64_t looked_ns;             /* when kept was polled last */
        int late_device;                /* the GPU of the last job that was waited for in vain */
        gr_gpu_table *deltas[CMA_GPUS]; /* written by the mapper */
        cma_vram *retired;
    } gpu;
};

/* ---- rail.c ---- */

/* What Go makes for a rail. The rail owns all but mapper_fd if cma_rail_open succeeds. */
typedef struct cma_parts {
    cma_entry *table;
    cma_shares *shares;
    int wait_fd, doorbell_fd;
    int mapper_fd; /* an eventfd; Go closes it */
} cma_parts;

/* threads: size of the pool, limited to CMA_THREADS. */
int cma_rail_open(uint32_t threads, const cma_nodes *nodes, const cma_parts *parts, cma_rail **out);
int cma_rail_close(cma_rail *rail); /* -EBUSY while endpoints are open. No region may be open. */
/* The endpoint owns shm and ring if the call succeeds. ring_size: bytes of ring, a multiple of CMA_CHUNKS. */
int cma_ep_open(cma_rail *rail, cma_shm *shm, void *ring, uint64_t ring_size, cma_ep **out);
/* Ends the peer's access and our own. -ETIMEDOUT: another process may still make a copy. -EINPROGRESS: one of our GPUs may. The
 * endpoint is shut all the same. Wait for the mapper's tasks before cma_ep_free, so that all imports are unmapped: the peer may free its
 * memory as soon as it sees the close. */
int cma_ep_shut(cma_ep *ep);
int cma_ep_free(cma_ep *ep); /* 1: the lent pidfd stays in use, for the life of this process */
/* table.c: whether a copy by the peer's GPU may be under way: its epoch is busy, and its process lives. With the rail locked. */
int cma_ep_copying(cma_ep *ep);
/* A job of a closed endpoint has ended: with the last one the endpoint's memory is freed. With the rail locked. */
void cma_ep_job_ended(cma_ep *ep);

/* ---- table.c ---- */

/* Whether the region allows the access. EACCES: no such region. ERANGE: out of its bounds. */
int cma_allowed(const cma_entry *table, uint64_t key, uint64_t addr, uint64_t len);
/* Waits, 1 s at most, until every busy epoch has been idle once: the epochs of endpoint `only`, or of all endpoints
 * and our own. A copy is waited for once: later calls report it at once, except those with `only`. regions limits the wait to epochs that work on these regions or on unknown ones; 0: all. -ETIMEDOUT,
 * -EINPROGRESS: a job of our GPUs uses one of the regions. Takes the rail's lock. */
int cma_wait_idle(cma_rail *rail, cma_ep *only, uint64_t regions);

/* ---- peer.c: calls of the handshake, each once at most ---- */

typedef struct cma_peer {
    cma_shm *shm;
    const cma_entry *table;
    const cma_shares *shares;
    int sock, self, same_user; /* as in cma_ep.peer */
    int apart;           /* all our copies go through the ring, because we may not access the peer's memory */
    void *ring;          /* the peer's ring; NULL: the peer is this process */
    uint64_t ring_size;  /* bytes of it, a multiple of CMA_CHUNKS */
} cma_peer;

int cma_ep_begin_connect(cma_ep *ep); /* -EISCONN: called before */
void cma_ep_identified(cma_ep *ep, pid_t pid, int pidfd, int lent); /* as in cma_ep.peer */
int cma_ep_connected(cma_ep *ep, const cma_peer *peer); /* the endpoint owns all of it, unless the call fails */
void cma_ep_accepted(cma_ep *ep, int sock, int moves); /* moves: one connection shall serve both, the peer's */
void cma_ep_settle(cma_ep *ep, int now); /* closes a connection that is left, when the peer has closed it, or now. With the rail locked */
/* The handshake has failed. Our side takes in what a connected peer has sent; what the peer sends later fails there.
 * ended: the peer's process has ended. */
void cma_ep_fail(cma_ep *ep, int err, int ended);

void cma_ring(cma_ep *ep);    /* wakes the peer; without the lock, as the next one */
void cma_ring_asleep(cma_ep *ep); /* wakes the peer if it sleeps; after the store that it shall see */
void cma_drain_doorbell(cma_ep *ep);    /* empties our doorbell's socket; with the rail locked, as the next ones */
void cma_hang_up(cma_ep *ep); /* closes our doorbell's socket */
int cma_alive(cma_ep *ep);    /* 0: the peer's process has ended, or runs another program */
int cma_may_copy(cma_ep *ep); /* 0: it has ended for sure, and so have its copies. With the rail locked */
int cma_same_program(const cma_ep *ep); /* 0: it runs another program, or it cannot be known. A system call */
/* 0: cma_alive, or the peer has closed the endpoint or its socket: nothing of ours may access its memory any more. */
int cma_reaches(cma_ep *ep);
void cma_wake(cma_rail *rail); /* wakes the thread that sleeps on the rail; without the lock */
/* Notes that a wait for a copy of that process timed out; pid 0: unknown. */
void cma_note_late(cma_rail *rail, pid_t pid);
/* The value noted last: process << 8 | the process's state in /proc at that time, or 0. */
uint64_t cma_late(cma_rail *rail);
/* The last peer whose memory the kernel does not let us access any more, since its last call: process << 8 | errno; 0: none. */
uint64_t cma_refused(cma_rail *rail);

/* ---- copy.c ---- */

/* Copies segments; 0 or an errno. One thread at a time uses an epoch. EFAULT on an endpoint with ring.on: the views do not
 * serve these segments, or the kernel does not let us access the peer any more; the ring serves, or has the reason (cma_by_ring). */
int cma_copy(cma_ep *ep, uint32_t epoch, int write, uint32_t n, const gr_seg *seg);
static inline int cma_by_ring(const cma_ep *ep, int err) { return err == EFAULT && atomic_load_explicit(&ep->ring.on, memory_order_relaxed); }
/* Describes the files behind segments, for a question. The number of ranges; 0: a view has gone. */
uint32_t cma_view_ranges(cma_ep *ep, int write, uint32_t n, const gr_seg *seg, cma_range *out);
/* Whether the segments can be copied through views. Asks the mapper for views that are missing. With the rail locked. */
int cma_mapped(cma_ep *ep, int write, uint32_t n, const gr_seg *seg);
/* Drops the view of a region; 0: there was none. Takes the rail's lock. */
int cma_view_drop(cma_ep *ep, uint64_t key);
/* Drops all views of the endpoint, when it closes. With the rail locked. */
void cma_views_drop(cma_ep *ep);
/* ---- assist.c ---- */

/* Called by each poll. Chooses the next peer with an offer, and tells peers whether to offer. With the rail locked. */
void cma_assist_update(cma_rail *rail);
/* Bytes copied for peers, and by peers for us. */
void cma_assisted(cma_rail *rail, uint64_t *for_peers, uint64_t *by_peers);
/* Copies one piece for a peer; 0: there was none. Without the rail's lock. */
int cma_assist(cma_rail *rail);

/* ---- serve.c ---- */

/* Whether a peer requests a chunk that we can serve. With the rail locked, as cma_serve_update. */
int cma_requested(const cma_ep *ep);
/* Called by each poll. Chooses the next peer with a request. */
void cma_serve_update(cma_rail *rail);
/* Serves a peer's requests; 0: there was none. Without the rail's lock. */
int cma_serve(cma_rail *rail);

/* ---- ask.c: the initiator. With the rail locked ---- */

/* Where the ranges of a question are written before cma_ask. */
cma_question *cma_question_of(cma_ep *ep, uint32_t i);
/* Asks the peer whether n ranges are still what they were. write: we shall write to them. */
void cma_ask(cma_ep *ep, uint32_t i, uint32_t n, int write);
/* 1: they are. 0: no answer yet. A negative errno: they are not, from range *place on (-ESTALE: other memory, -EFAULT: none), or the peer
 * cannot tell, or is gone (-ECONNRESET). */
int cma_answer(cma_ep *ep, uint32_t i, uint32_t *place);
/* A question for a copy through mapped files; -1: all are in use. */
int cma_ask_take(cma_ep *ep);
void cma_ask_give(cma_ep *ep, uint32_t i);

/* A job that copies through views: asks the peer, and copies a READ at once. */
void cma_asking_add(cma_rail *rail, cma_job *job, int inlined);
/* A copied job waits for its answer. */
void cma_asking_copied(cma_rail *rail, cma_job *job);
/* Takes answers: completes, copies, or takes the ring if the memory is no longer what is mapped. */
void cma_asking_poll(cma_rail *rail);
/* Whether cma_asking_poll would find an answer. */
int cma_asking_ready(const cma_rail *rail);
void cma_asking_cancel(cma_ep *ep); /* the endpoint's jobs end with ECANCELED */

/* ---- answer.c: the target ---- */

/* Answers the peer's questions, within an epoch of ours, for a turn at most. Without the rail's lock. */
void cma_answer_all(cma_ep *ep, uint32_t epoch);
/* Lets Go look at all memory of GPUs, and all files: some is not what was registered. Any thread. */
void cma_note_changed(cma_rail *rail);
void cma_change_told(cma_rail *rail); /* Go will look. For the mapper, with the task */
void cma_looks(cma_rail *rail);       /* a look begins: changes that are found from now on ask for another one */

/* ---- doze.c: with the rail locked ---- */

void cma_doze_open(cma_ep *ep);
void cma_doze_close(cma_ep *ep);
void cma_doze_poll(cma_rail *rail); /* before a poll of the endpoints that do not doze */
void cma_rouse(cma_ep *ep);         /* there may be something to do */

/* ---- ops.c ---- */

/* A job for the peer's ring. Polling threads make the copies of a large one. */
void cma_ring_add(cma_rail *rail, cma_job *job, int inlined);
/* Reports the completion of a job, and frees it. With the rail locked, as the one before. */
void cma_job_end(cma_rail *rail, cma_job *job, int err);
/* Reports the completion of an operation. */
void cma_complete(cma_rail *rail, gr_ctx *ctx, int err, uint64_t len);

extern const gr_rail_ops cma_ops;
extern const gr_rail_bulk cma_bulk_ops;
/* Receives the messages in the ring, as far as receives are posted. Their sender has completions and does not repeat
 * them. So every path that lets receives fail sets `closed` and calls this first. A sender that has not seen `closed`
 * has put its message into the ring by then. */
void cma_take(cma_ep *ep);
/* Ends everything posted on the endpoint; unfinished operations end with ECANCELED. Called after `closed` is set. */
int cma_cancel(cma_ep *ep); /* -ETIMEDOUT as cma_pool_drain, -EINPROGRESS as cma_bulk_drain */

/* The time in nanoseconds. Implements clock_gettime. */
static inline uint64_t cma_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

#endif
