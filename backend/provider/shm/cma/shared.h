/* What processes of one host show each other: tables of regions and boxes for messages. */
#ifndef GORAIL_LOCAL_SHARED_H
#define GORAIL_LOCAL_SHARED_H

#include <stdatomic.h>
#include <stdint.h>

#include "gr_gpu.h"
#include "gr_provider.h"

enum {
    LC_MSG = 2096,          /* bytes of a message: a fragment of the core's with its header */
    LC_SLOTS = 64,          /* messages in a ring, a power of two; the core's credits are fewer */
    LC_RECVS = 64,          /* receives of an endpoint, likewise */
    LC_OPS = 256,           /* operations of an endpoint that wait for the pool */
    LC_COPIERS = 32,        /* lanes of those who copy: the first is the rail's lock holder's, one a thread of the pool, the others are lent */
    LC_THREADS = 15,
    LC_BULKS = 16,          /* jobs of an endpoint that GPUs are at, each with a lane of its own behind those */
    LC_LANES = LC_COPIERS + LC_BULKS,
    LC_OFFERS = 4,          /* pieces that an initiator has offered to a polling target at a time */
    LC_REGIONS = 1 << 20,
    LC_SHARES = 1 << 16,    /* regions of GPU memory */
    LC_GPUS = 64,
    LC_TOKEN = 16,
    LC_NODES = 64,
    LC_CPUS = 1024,
};

/* generation is odd while the region is there; a key is generation << 32 | index. */
typedef struct lc_entry {
    _Atomic uint64_t generation, base, len;
    _Atomic uint64_t share; /* memory of a GPU: its place among the shares, from 1 on; 0: the host's */
} lc_entry;

/* What peers need to map a region of a GPU, guarded by its entry's generation. how is 0 where they can't, and `pad` is why. */
typedef struct lc_shares {
    uint8_t name_len; /* of the socket that gives descriptors of VMM memory; written before the first share that wants them */
    char name[15];
    uint8_t token[LC_TOKEN];
    gr_gpu_share share[LC_SHARES];
} lc_shares;

typedef struct lc_lane {
    _Alignas(64) _Atomic uint64_t turn; /* odd: copying */
    _Atomic uint64_t regions;           /* to or from which, a bit for the last six of each index; written before turn. 0: any */
} lc_lane;
_Static_assert(sizeof(lc_lane) == 64, "peers of another version have it, too");

/* A piece of a copy that the box's owner may make instead of its peer. The peer writes it, and then its bit in lc_box.offered. The owner makes
 * one system call for it, at most: a thread that was stopped in that touches nothing any more. */
typedef struct lc_offer {
    _Alignas(64) _Atomic int32_t ended; /* the owner's: LC_UNDER_WAY, LC_COPIED or a negative errno. After it the owner touches neither memory any more */
    _Atomic int32_t who;                /* the owner's thread that has taken it; 0: it has not said so */
    uint32_t write, n;
    struct {
        uint64_t key, here, there, len; /* the owner's region and address; the peer's address; bytes */
    } piece[GR_MAX_IOV];
} lc_offer;
enum { LC_UNDER_WAY = 0, LC_COPIED = 1 };

/* Most messages are short: one line of the cache goes from core to core. */
typedef struct lc_slot {
    _Alignas(64) uint32_t len;
    uint8_t data[LC_MSG];
} lc_slot;

/* An endpoint's, written by its peer but for closed, sleeping, helps, taken and what is said of offers. */
typedef struct lc_box {
    _Alignas(64) _Atomic uint32_t closed; /* nothing may be copied any more */
    _Atomic uint32_t sleeping;            /* the owner wants the bell rung; whoever makes it 0 rings */
    _Atomic uint32_t helps;               /* the owner polls all the time: it takes offers */
    _Alignas(64) _Atomic uint32_t put;    /* messages put in */
    _Atomic uint32_t offered;             /* bits: offers that nobody has; whoever clears one has it. The owner looks here for messages anyway */
    _Alignas(64) _Atomic uint32_t taken;  /* messages taken out */
    lc_lane lane[LC_LANES];
    lc_offer offer[LC_OFFERS];
    lc_slot slot[LC_SLOTS];
} lc_box;

/* The bit of a lane's regions that a key has. */
static inline uint64_t lc_region_bit(uint64_t key) { return (uint64_t)1 << (key & 63); }

#endif
