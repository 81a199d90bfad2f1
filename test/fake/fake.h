/* An in-process fabric behind the ops table of gr_provider.h, for tests: real copies, scripted misbehaviour.
 *
 * A fabric joins rails; one mutex guards the whole fabric. Lock order: a rail's mu (the core's), then the fabric's.
 * Posted operations wait in one list in the order of posting. Polls of the initiator or of the target execute them.
 * Nothing depends on time, and random numbers come from a seed: the same calls give the same result. */
#ifndef GORAIL_FAKE_H
#define GORAIL_FAKE_H

#include "gr_op.h"
#include "gr_provider.h"

enum { FAKE_SEND = 2, FAKE_BUCKETS = 1024, FAKE_MRS = 16384 };
enum { FAKE_PEERS_READ = 1, FAKE_PEERS_WRITE = 2, FAKE_PEERS_BOTH = 3 }; /* option.Rights */

/* Fixed at open. */
typedef struct fake_config {
    uint8_t ordered, chained, by_processor, delivery, virt_addr, prov_key, local_desc, no_wait_fd;
    uint8_t worker; /* gr_rail.worker */
    uint8_t gather; /* posts wait for flush */
    uint8_t shared; /* one endpoint holds the receives of all peers; nothing cancels posted operations */
    uint8_t secured; /* endpoints talk if both have the same proof, one of them as initiator */
    uint8_t keyed;   /* a key is that of the region XOR the salt of the endpoint that it is used at */
    uint32_t key_size, iov_limit, tx_depth, rx_depth, msg_size;
    uint64_t max_msg, window_min;
} fake_config;

/* May change at any time. */
typedef struct fake_script {
    uint32_t delay;          /* polls of either side before an operation is executed */
    uint32_t per_poll;       /* operations executed in one poll, 0 = all */
    uint64_t seed;           /* not 0: executed and completed in random order */
    uint64_t fail_at;        /* the n-th operation posted from now on fails with fail_errno, 0 = none */
    int32_t fail_errno;
    uint32_t fail_sends;     /* one SEND in this many fails with fail_errno, at random, 0 = none */
    uint8_t fail_lands;      /* half of those still arrive */
    uint32_t eagain_every;   /* every n-th post is refused, 0 = none */
    int32_t recv_errno;      /* the next receive is refused, 0 = none */
    uint32_t no_bulk_every;  /* every n-th bulk is refused with ENOTSUP, 0 = none */
    uint8_t late_landing;    /* writes in flight when the initiator closes its endpoint still land */
    uint8_t fail_breaks;     /* the failure of fail_at breaks the endpoint: operations behind it and later ones are cancelled */
    uint8_t bad_key_cancels; /* a wrong key also cancels the operations behind it, as libfabric's tcp does */
} fake_script;

typedef struct fake_counters {
    uint64_t posts, sends, recvs, bytes, polls, eagain, failed, assists, bulks, stops;
} fake_counters;

typedef struct fake_rail fake_rail;
typedef struct fake_ep fake_ep;
typedef struct fake_mr fake_mr;
typedef struct fake_op fake_op;

typedef struct fake_fabric {
    pthread_mutex_t mu;
    fake_ep *eps[FAKE_BUCKETS]; /* by id */
    fake_op *head, *tail;       /* posted, not yet executed */
    uint64_t last_ep, rng, pass;
    uint32_t rails;
} fake_fabric;

typedef struct fake_comp {
    struct fake_comp *next;
    gr_comp c;
} fake_comp;

typedef struct fake_recv {
    struct fake_recv *next;
    gr_ctx *ctx;
    void *buf;
    size_t len;
} fake_recv;

struct fake_rail {
    gr_rail base;
    fake_fabric *fabric;
    fake_config config;
    fake_script script;
    fake_counters count;
    uint64_t rng, posted; /* posted: since the script was set */
    uint64_t send_rng;    /* random state of fail_sends; a new script does not reset it */
    fake_ep *shared;      /* shared endpoint, with config.shared */
    uint64_t own_key;
    fake_op *waiting, *waiting_tail; /* gathered, for flush */
    uint8_t stalled;
    _Atomic int blocked; /* posts do not return */
    int down_errno; /* not 0: the link is down */
    fake_mr *mrs[FAKE_MRS]; /* by key */
    fake_comp *cq_head, *cq_tail;
    uint32_t open_eps, open_mrs;
    _Atomic uint32_t open_ops; /* blocks of memory for operations of bulks */
};

/* What both ends of a link know. */
typedef struct fake_proof {
    uint8_t secret[32];
    uint64_t salt;
    uint8_t initiator;
} fake_proof;

struct fake_ep {
    fake_ep *next;
    uint64_t id, peer; /* peer 0: not connected */
    fake_rail *rail;
    uint32_t tx_out, rx_out;
    uint8_t broken;   /* every further operation is cancelled */
    uint64_t blocked; /* the pass in which an operation of this endpoint had to wait */
    uint64_t held;    /* the pass in which an unsignaled WRITE had to wait */
    fake_recv *rx_head, *rx_tail;
    fake_proof proof; /* all zero: none */
};

struct fake_mr {
    fake_mr *next;
    uint64_t addr, len, key;
    uint8_t peers; /* FAKE_PEERS_*: what peers may do */
};

struct fake_op {
    fake_op *prev, *next;
    fake_ep *ep;  /* NULL once the initiator has closed it */
    gr_ctx *ctx;  /* NULL once completed */
    int kind;
    uint32_t n, wait;
    int err;      /* the errno that the operation will fail with */
    uint8_t breaks; /* the failure breaks the endpoint */
    uint8_t lands;  /* a failing message that still arrives */
    uint64_t target, len;
    uint8_t unsignaled;   /* completes early; no operation of its endpoint overtakes it */
    unsigned char *copy; /* of the local buffers, once they belong to the initiator again */
    gr_seg seg[GR_MAX_IOV];
    const gr_op *bulk;      /* all operations of a bulk; else NULL */
    uint64_t bulk_ops, half; /* half: number of operations that a stopped bulk still copies */
    gr_bulk_region *regions; /* regions of the peer */
    uint32_t nregions;
};

fake_fabric *fake_fabric_new(uint64_t seed);
int fake_fabric_free(fake_fabric *fabric); /* -EBUSY while rails are open */
fake_rail *fake_rail_open(fake_fabric *fabric, const fake_config *config);
int fake_rail_close(fake_rail *rail); /* -EBUSY while endpoints or regions are open */
void fake_rail_script(fake_rail *rail, const fake_script *script);
void fake_rail_stall(fake_rail *rail, int on);
void fake_rail_block(fake_rail *rail, int on);
void fake_rail_down(fake_rail *rail, int err); /* err 0: up again */
void fake_rail_counters(fake_rail *rail, fake_counters *out);

fake_ep *fake_ep_open(fake_rail *rail);
uint64_t fake_ep_id(fake_ep *ep);
int fake_ep_connect(fake_ep *ep, uint64_t peer, const fake_proof *proof);
/* 1: both ends are connected to each other, with one proof; 0: one is not connected yet; -1: the proofs differ. */
int fake_ep_proved(const fake_ep *a, const fake_ep *b);
void fake_ep_close(fake_ep *ep);
/* Closes the shared endpoint, if there is one. */
void fake_shared_close(gr_rail *base);

int fake_mr_open(fake_rail *rail, uint64_t addr, uint64_t len, uint64_t key, uint8_t peers, fake_mr **out, uint64_t *out_key);
void fake_mr_close(fake_rail *rail, fake_mr *mr);

/* Under the rail's lock: aborts the program if posts wait although the lock was released without a flush. */
void fake_flushed(const fake_rail *rail);
extern const gr_rail_ops fake_ops;
extern const gr_rail_bulk fake_bulk_ops;

/* ---- bulk.c ---- */

int fake_bulk(gr_rail *base, void *ep, int op, const gr_bulk *bulk, gr_ctx *ctx);
void fake_bulk_stop(gr_rail *base, void *ep, gr_ctx *ctx);
void *fake_ops_alloc(gr_rail *base, size_t size);
void fake_ops_free(gr_rail *base, void *mem);

/* Shared by the C files. The caller holds the fabric's mutex. */
uint64_t fake_random(uint64_t *state);
void fake_signal(fake_rail *rail);
void fake_flush(fake_rail *rail);
fake_ep *fake_ep_find(fake_fabric *fabric, uint64_t id);
fake_mr *fake_mr_find(fake_rail *rail, uint64_t key);
/* The region if peers may do an operation (GR_WRITE or GR_READ) on it through an endpoint; else NULL. */
fake_mr *fake_mr_for(const fake_ep *ep, uint64_t key, int kind);
fake_mr *fake_mr_add(fake_rail *rail, uint64_t addr, uint64_t len, uint64_t key, uint8_t peers, int *err);
void fake_mr_drop(fake_rail *rail, fake_mr *mr);
void fake_complete(fake_rail *rail, gr_ctx *ctx, int err, uint64_t len);
void fake_finish(fake_fabric *fabric, fake_op *op, int err);
int fake_snapshot(fake_op *op);
void fake_lost(const fake_op *op);
/* Copies the first nops operations of a bulk; 0 or an errno. */
int fake_copy_bulk(const fake_op *op, const fake_ep *target, uint64_t nops);
int fake_check_desc(fake_rail *rail, uint64_t addr, uint64_t len, void *desc);
/* Posts an operation and fills in its endpoint, context and target. On success it owns op; on -errno the caller still
 * does. */
int fake_post(fake_rail *rail, fake_ep *ep, fake_op *op, gr_ctx *ctx);
int fake_progress(fake_rail *rail); /* 1: more to do without action of another rail */

#endif
