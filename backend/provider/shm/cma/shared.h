/* Memory that processes of one host share: tables of regions, and segments of endpoints. */
#ifndef GORAIL_SHM_SHARED_H
#define GORAIL_SHM_SHARED_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "gr_gpu.h"
#include "gr_provider.h"

enum {
    CMA_MSG = 2096, /* bytes of a message: a fragment of the core, with its header */
    CMA_SLOTS = 64, /* messages in a ring, a power of two; the core has fewer credits */
    CMA_RECVS = 64, /* receives of an endpoint, a power of two */
    CMA_OPS = 256,  /* operations of an endpoint that wait for the pool */
    /* epochs of copying threads: the first for the holder of the rail's lock, one per pool thread, the others for
     * polling threads */
    CMA_COPIERS = 32,
    CMA_THREADS = 15,
    CMA_BULKS = 16,          /* GPU jobs of an endpoint; each has an epoch, after those of the copying threads */
    CMA_EPOCHS = CMA_COPIERS + CMA_BULKS,
    CMA_OFFERS = 4,          /* pieces that an initiator offers to a polling target at a time */
    CMA_CHUNKS = 8,          /* chunks of a ring, a power of two */
    CMA_ASKS = 32,           /* questions of an endpoint: one for each GPU job, the others for copies through mapped files */
    CMA_ASK_RANGES = 64,     /* ranges of a question */
    CMA_REGIONS = 1 << 20,
    CMA_SHARES = 1 << 16,    /* regions of GPU memory */
    CMA_GPUS = 64,
    CMA_TOKEN = 16,
    CMA_PLACE = 56, /* an encoded place of a process's sockets: ipc.Place */
    CMA_NODES = 64,
    CMA_CPUS = 1024,
};

/* An odd generation means registered. A key is generation << 32 | index. */
typedef struct cma_entry {
    _Atomic uint64_t generation, base, len;
    /* GPU memory: index of its share + 1; 0: host memory; CMA_FILE: host memory whose file the descriptor server gives */
    _Atomic uint64_t share;
} cma_entry;
#define CMA_FILE (UINT64_C(1) << 32)

/* What peers need to map a GPU region; the entry's generation validates it. how is 0 if peers cannot map the region;
 * then `pad` is the reason. */
typedef struct cma_shares {
    uint8_t place[CMA_PLACE]; /* of the descriptor server; written before the first share that needs the server */
    uint8_t token[CMA_TOKEN];
    gr_gpu_share share[CMA_SHARES];
} cma_shares;

typedef struct cma_epoch {
    _Alignas(64) _Atomic uint64_t turn; /* odd: copying */
    /* regions of the copy: one bit per region, from the last six bits of its index; written before turn. 0: any */
    _Atomic uint64_t regions;
} cma_epoch;
_Static_assert(sizeof(cma_epoch) == 64, "the layout is shared with peers of other versions");

/* A piece that the segment's owner may copy instead of its peer. The peer writes it and then sets its bit in
 * cma_shm.offered. The owner copies with one system call at most: once stopped within that call, its thread touches
 * nothing any more. */
typedef struct cma_offer {
    /* CMA_UNDER_WAY, then the owner's result: CMA_COPIED or a negative errno. After the result the owner touches
     * neither memory */
    _Alignas(64) _Atomic int32_t ended;
    _Atomic int32_t tid;                /* thread id of the owner's copying thread; 0: not taken, or not written yet */
    uint32_t write, n;
    struct {
        uint64_t key, here, there, len; /* the owner's region and address; the peer's address; bytes */
    } piece[GR_MAX_IOV];
} cma_offer;
enum { CMA_UNDER_WAY = 0, CMA_COPIED = 1 };

/* A part of a work request that the segment's owner serves through its ring (ring.c): of a WRITE, the bytes are in the
 * ring's chunk of the same number; of a READ, the owner puts them there. The peer writes it and then sets its bit in
 * cma_shm.requested. The owner copies its own memory alone. */
typedef struct cma_chunk {
    _Alignas(64) _Atomic int32_t ended; /* as cma_offer.ended. The owner writes it, in a cache line of its own */
    _Alignas(64) uint32_t write, n;
    struct {
        uint64_t key, addr, len; /* of the owner's memory */
    } piece[GR_MAX_IOV];
} cma_chunk;

/* A question to the segment's owner: are these ranges of your memory still what I have mapped? An importer copies to and from what was
 * behind an address when it mapped it, and only the owner sees when its application maps something else there. The peer writes the question
 * and then sets its bit in cma_shm.asked. */
typedef struct cma_range {
    uint64_t key, addr, len;
    uint64_t dev, inode, offset; /* of the file that the peer has mapped, at addr; inode 0: GPU memory, which the key identifies */
} cma_range;

typedef struct cma_question {
    /* seq << 32 | place << 16 | CMA_SAME or an errno, written by the owner; place: of the first range that differs */
    _Alignas(64) _Atomic uint64_t answer;
    _Alignas(64) uint32_t seq; /* not 0. Tells late answers from those to this question */
    uint32_t n, write;
    cma_range range[CMA_ASK_RANGES];
} cma_question;
enum { CMA_SAME = 0x8000 };

/* The owner polls all the time and takes offers; it polls every two microseconds and serves small requests at once. */
enum { CMA_ASSISTS = 1, CMA_SPINS = 2 };

/* cma_shm.sleeping: a thread of the owner sleeps; the owner does not look at the segment. The side that clears it rings: with CMA_DOZES for
 * each message, else for those that wake. */
enum { CMA_SLEEPS = 1, CMA_DOZES = 2 };

/* Length and data begin in one cache line: most messages are short, and one line goes from core to core. */
typedef struct cma_slot {
    _Alignas(64) uint32_t len;
    uint8_t data[CMA_MSG];
} cma_slot;

/* The segment of an endpoint. The owner writes closed, sleeping, assists, taken, and its answers to offers, chunks and questions. The peer
 * writes the rest. */
typedef struct cma_shm {
    _Alignas(64) _Atomic uint32_t closed; /* no copy may begin, and later messages are not received */
    _Atomic uint32_t sleeping;            /* the owner wants a doorbell: CMA_SLEEPS, CMA_DOZES, or 0 */
    _Atomic uint32_t assists;             /* how the owner polls: CMA_ASSISTS, CMA_SPINS, or 0 */
    uint64_t proof_at;                    /* where the owner's memory has proof until it ends; 0: an earlier version. Written once, as proof */
    uint8_t proof[CMA_TOKEN];
    _Alignas(64) _Atomic uint32_t put;    /* messages put into the ring */
    /* bits: open offers; the side that clears a bit makes the copy. In put's cache line, which the owner polls */
    _Atomic uint32_t offered;
    _Atomic uint32_t requested; /* bits: chunks that the owner shall serve. The owner clears them */
    _Atomic uint32_t asked;     /* bits: questions that the owner shall answer. The owner clears them */
    _Alignas(64) _Atomic uint32_t taken;  /* messages taken from the ring */
    cma_epoch epoch[CMA_EPOCHS];
    cma_offer offer[CMA_OFFERS];
    cma_chunk chunk[CMA_CHUNKS];
    cma_question question[CMA_ASKS];
    cma_slot slot[CMA_SLOTS];
} cma_shm;
_Static_assert(offsetof(cma_shm, put) == 64, "proof has room before the fields that earlier versions know");

/* The bit of a key's region in cma_epoch.regions. */
static inline uint64_t cma_region_bit(uint64_t key) { return (uint64_t)1 << (key & 63); }

#endif
