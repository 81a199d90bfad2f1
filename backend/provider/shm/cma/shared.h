/* What processes of one host show each other: tables of regions and shm segments for messages. */
#ifndef GORAIL_LOCAL_SHARED_H
#define GORAIL_LOCAL_SHARED_H

#include <stdatomic.h>
#include <stdint.h>

#include "gr_gpu.h"
#include "gr_provider.h"

enum {
    CMA_MSG = 2096,          /* bytes of a message: a fragment of the core's with its header */
    CMA_SLOTS = 64,          /* messages in a ring, a power of two; the core's credits are fewer */
    CMA_RECVS = 64,          /* receives of an endpoint, likewise */
    CMA_OPS = 256,           /* operations of an endpoint that wait for the pool */
    CMA_COPIERS = 32,        /* epochs of those who copy: the first is the rail's lock holder's, one a thread of the pool, the others are lent */
    CMA_THREADS = 15,
    CMA_BULKS = 16,          /* jobs of an endpoint that GPUs are at, each with a epoch of its own behind those */
    CMA_EPOCHS = CMA_COPIERS + CMA_BULKS,
    CMA_OFFERS = 4,          /* pieces that an initiator has offered to a polling target at a time */
    CMA_REGIONS = 1 << 20,
    CMA_SHARES = 1 << 16,    /* regions of GPU memory */
    CMA_GPUS = 64,
    CMA_TOKEN = 16,
    CMA_NODES = 64,
    CMA_CPUS = 1024,
};

/* generation is odd while the region is there; a key is generation << 32 | index. */
typedef struct cma_entry {
    _Atomic uint64_t generation, base, len;
    _Atomic uint64_t share; /* memory of a GPU: its place among the shares, from 1 on; 0: the host's */
} cma_entry;

/* What peers need to map a region of a GPU, guarded by its entry's generation. how is 0 where they can't, and `pad` is why. */
typedef struct cma_shares {
    uint8_t name_len; /* of the socket that gives descriptors of VMM memory; written before the first share that wants them */
    char name[15];
    uint8_t token[CMA_TOKEN];
    gr_gpu_share share[CMA_SHARES];
} cma_shares;

typedef struct cma_epoch {
    _Alignas(64) _Atomic uint64_t turn; /* odd: copying */
    _Atomic uint64_t regions;           /* to or from which, a bit for the last six of each index; written before turn. 0: any */
} cma_epoch;
_Static_assert(sizeof(cma_epoch) == 64, "peers of another version have it, too");

/* A piece of a copy that the shm's owner may make instead of its peer. The peer writes it, and then its bit in cma_shm.offered. The owner makes
 * one system call for it, at most: a thread that was stopped in that touches nothing any more. */
typedef struct cma_offer {
    _Alignas(64) _Atomic int32_t ended; /* the owner's: CMA_UNDER_WAY, CMA_COPIED or a negative errno. After it the owner touches neither memory any more */
    _Atomic int32_t who;                /* the owner's thread that has taken it; 0: it has not said so */
    uint32_t write, n;
    struct {
        uint64_t key, here, there, len; /* the owner's region and address; the peer's address; bytes */
    } piece[GR_MAX_IOV];
} cma_offer;
enum { CMA_UNDER_WAY = 0, CMA_COPIED = 1 };

/* Most messages are short: one line of the cache goes from core to core. */
typedef struct cma_slot {
    _Alignas(64) uint32_t len;
    uint8_t data[CMA_MSG];
} cma_slot;

/* An endpoint's, written by its peer but for closed, sleeping, assists, taken and what is said of offers. */
typedef struct cma_shm {
    _Alignas(64) _Atomic uint32_t closed; /* nothing may be copied any more */
    _Atomic uint32_t sleeping;            /* the owner wants the doorbell rung; whoever makes it 0 rings */
    _Atomic uint32_t assists;               /* the owner polls all the time: it takes offers */
    _Alignas(64) _Atomic uint32_t put;    /* messages put in */
    _Atomic uint32_t offered;             /* bits: offers that nobody has; whoever clears one has it. The owner looks here for messages anyway */
    _Alignas(64) _Atomic uint32_t taken;  /* messages taken out */
    cma_epoch epoch[CMA_EPOCHS];
    cma_offer offer[CMA_OFFERS];
    cma_slot slot[CMA_SLOTS];
} cma_shm;

/* The bit of a epoch's regions that a key has. */
static inline uint64_t cma_region_bit(uint64_t key) { return (uint64_t)1 << (key & 63); }

#endif
