/* Bounce buffers of a rail that copies memory of GPUs by itself: pinned memory, and the copies between it and one GPU.
 *
 * A copy is filled (tcp_copy_add), posted, and ends. Copies of a GPU end in the order in which they were posted. The rail's lock
 * guards everything but tcp_gpu_new, tcp_gpu_fill and tcp_gpu_free. docs/gpu.md, "Small transfers over tcp". */
#ifndef GORAIL_TCP_BOUNCE_H
#define GORAIL_TCP_BOUNCE_H

#include <sys/queue.h>

#include "gr_gpu.h"

enum {
    TCP_COPY_OPS = 256,       /* pieces of a copy */
    /* Bounce buffers of a rail and GPU, less than 4 MiB in all. From the GPU: a large one holds the largest operation. To the GPU: while
     * one is copied the next is received. */
    TCP_LARGE_COPIES = 2,
    TCP_LARGE_BYTES = 1 << 20,
    TCP_SMALL_COPIES = 8,
    TCP_SMALL_BYTES = 64 << 10,
    TCP_IN_COPIES = 8,
    TCP_IN_BYTES = 128 << 10,
    TCP_COPIES = TCP_LARGE_COPIES + TCP_SMALL_COPIES + TCP_IN_COPIES,
};

typedef struct tcp_gpu tcp_gpu;
struct tcp_op;
struct tcp_conn;
STAILQ_HEAD(tcp_ops, tcp_op);

enum { TCP_COPY_OPEN, TCP_COPY_FLYING, TCP_COPY_ENDED, TCP_COPY_SPILLED };

typedef struct tcp_copy {
    TAILQ_ENTRY(tcp_copy) next;    /* in the GPU's lists */
    TAILQ_ENTRY(tcp_copy) next_in; /* to the GPU: in its connection's list, until all effects have come */
    tcp_gpu *gpu;
    gr_gpu_job *job;
    gr_op *ops;
    uint8_t *mem;
    uint32_t size, used, nops;
    uint8_t in, state; /* in: to the GPU. state: TCP_COPY_* */
    uint8_t held;      /* flying: its job is not posted yet */
    int err;           /* it failed: an errno */
    uint64_t late;     /* flying: until then deregistrations wait for it, as tcp_copy_clock; 0: none has waited */
    struct tcp_conn *conn;
    uint32_t refs; /* from the GPU: operations and answers that have bytes in it */
    /* To the GPU: what is true once it and all copies before it have ended. */
    uint64_t seq;         /* the peer's frames up to this one are in place; 0: none more */
    uint8_t ask;          /* an acknowledgement is then due */
    struct tcp_ops after; /* READs and messages that have then ended */
} tcp_copy;
TAILQ_HEAD(tcp_copies, tcp_copy);

struct tcp_gpu {
    SLIST_ENTRY(tcp_gpu) next;
    gr_gpu *driver;
    gr_gpu_stream *stream;
    int device, peer; /* peer: the stream's number */
    void *mem;
    struct tcp_copies in, small, large; /* free ones */
    struct tcp_copies flying, ended;    /* ended: from the GPU, with references */
    uint64_t nposted, nended; /* written with the rail locked; Go reads them without (AwaitCopies) */
    uint64_t nfailed;
    gr_gpu_fault fault; /* of the last one that has failed */
    uint64_t since; /* when the oldest flying copy was posted, ns of the monotonic clock */
    tcp_copy copy[TCP_COPIES];
};

/* peer is the stream's number, negative and unique among the streams of the driver. Returns 0 or -GR_GPU_NO_MEMORY. */
int tcp_gpu_new(gr_gpu *driver, int device, int peer, tcp_gpu **out);
/* Takes a stream of its own, jobs and 4 MiB of pinned memory, before the first operation, and once. Takes milliseconds. Returns 0 or a negative
 * gr_gpu_why, and has then taken nothing. */
int tcp_gpu_fill(tcp_gpu *gpu, gr_gpu_fault *fault);
/* No copy is open. EBUSY: one is flying, and nothing is freed. */
int tcp_gpu_free(tcp_gpu *gpu);

/* A free copy to the GPU, or one from the GPU with room for so many bytes. It is open and empty. NULL: all are in use. */
tcp_copy *tcp_copy_take_in(tcp_gpu *gpu);
tcp_copy *tcp_copy_take_out(tcp_gpu *gpu, uint64_t bytes);
void tcp_copy_give(tcp_copy *c);
/* Adds a range of the GPU's memory. Its bytes are, or come to be, at the returned address. The caller has seen that there is room. ours: it is
 * a bounce buffer that peers map. */
uint8_t *tcp_copy_add(tcp_copy *c, uint64_t addr, uint32_t len, int ours);
/* Posts an open copy: it flies. If that fails, it has ended with err. */
void tcp_copy_post(tcp_copy *c);
/* The next copy that has ended, which is flying no more; NULL: none. */
tcp_copy *tcp_gpu_poll(tcp_gpu *gpu);

/* Received bytes that wait for a bounce buffer, allocated while there are any. */
typedef struct tcp_rest {
    uint8_t *mem;
    size_t len, at;
} tcp_rest;
/* Keeps n bytes, which may be the last ones of r already. 0, or ENOMEM. */
int tcp_keep(tcp_rest *r, const uint8_t *at, size_t n);

uint64_t tcp_copy_clock(void); /* nanoseconds of the monotonic clock */

static inline int tcp_copy_room(const tcp_copy *c, uint64_t bytes, uint32_t ops)
{
    return c->size - c->used >= bytes && c->nops + ops <= TCP_COPY_OPS;
}

#endif
