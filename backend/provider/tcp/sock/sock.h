/* Data connections over TCP: the ops table of gr_provider.h over sockets. ../doc.go has the protocol, docs/tcp.md its bounds.
 *
 * A conn is an endpoint: one connection to one peer. The rail's lock guards everything. The files:
 *   region.c  the table of registered ranges: checks of what a peer names
 *   conn.c    operations and their queues; a connection begins, fails, ends
 *   plan.c    what the next sendmsg has
 *   tx.c      frames out: one sendmsg for all that is due
 *   rx.c      bytes in: straight into place, or through the staging buffer
 *   wait.c    what waits: connections for a poll or a copy, received bytes for a bounce buffer
 *   frames.c  what a frame means
 *   packed.c, pace.c, pack.c  compression: bodies packed and unpacked, when it pays, blocks
 *   record.c, seal.c, libcrypto.c  encryption: keys and records in, records out, AES-256-GCM
 *   ops.c     the ops table
 *   gpu.c     memory of GPUs: copies to and from bounce buffers
 *   bulk.c, bulk_rail.c, import.c  NVLink between hosts: copies of GPUs, and the memory of peers that they reach
 *   rail.c    the rail begins and ends
 */
#ifndef GORAIL_TCP_SOCK_H
#define GORAIL_TCP_SOCK_H

#include <sys/queue.h>
#include <sys/uio.h>

#include "bounce.h"
#include "bulk.h"
#include "frame.h"
#include "gr_guard.h"
#include "gr_provider.h"
#include "packed.h"

enum {
    TCP_STAGING = 16 << 10, /* 64 KiB is 10 % slower at 4 KiB, 4 KiB 9 % */
    TCP_GLANCE = 2 << 10,   /* ... of a connection whose bodies are large: its receiver takes 21.2 us for 64 KiB, with TCP_STAGING 22.2 */
    TCP_TURN = 1 << 20,     /* bytes of one connection in a row, either direction */
    TCP_POLL_CONNS = 64,        /* connections that one poll serves, beside the hot ones */
    TCP_POLL_BYTES = 2 << 20,   /* bytes after which a poll serves no other */
    TCP_HOT = 2,            /* connections that are received from without asking epoll */
    TCP_EPOLL_EVERY = 16,   /* polls of hot connections between two looks at epoll */
    TCP_TX_DEPTH = 256, TCP_RX_DEPTH = 256,
    TCP_IOV = 1024, /* UIO_MAXIOV */
    TCP_WINDOW_NS = 200 * 1000, /* 64 MiB, 8 threads: 26 GB/s, with 500 us 21, with 4 ms 13: links take more than their share */
};

/* One posted operation, or a receive. */
typedef struct tcp_op {
    STAILQ_ENTRY(tcp_op) next;
    gr_ctx *ctx;
    uint8_t kind; /* TCP_WRITE, TCP_SEND, TCP_READ, TCP_CONFIRM; 0: a receive */
    uint8_t signaled;
    uint8_t packing; /* READ: its answer may be packed */
    uint32_t nseg;
    uint64_t bytes;
    uint64_t seq; /* WRITE, SEND: of its frame, once that is built */
    uint32_t id;  /* READ */
    uint32_t end_seg; /* WRITE: behind its last segment of the frame */
    int32_t err;
    uint64_t len; /* a receive: bytes of the message */
    tcp_job *job;   /* CONFIRM: whose question it is; NULL: nobody's any more */
    tcp_copy *copy; /* WRITE, until it is sent: its segments on a GPU are in this bounce buffer; NULL: it has none */
    gr_seg seg[GR_MAX_IOV]; /* a message or a receive: its buffer is seg[0]. ldesc: the tcp_gpu, NULL: host memory */
} tcp_op;

/* A READ of the peer that is to be answered. */
typedef struct tcp_answer {
    STAILQ_ENTRY(tcp_answer) next;
    uint32_t id, status;
    uint32_t nseg;
    uint64_t bytes;
    uint8_t packs;  /* the peer takes it packed */
    tcp_gpu *gpu;   /* all its bytes come from this GPU; NULL: from host memory */
    tcp_copy *copy; /* they are in this bounce buffer, from mem on; NULL: none was free */
    uint8_t *mem;
    tcp_segment seg[TCP_READ_SEGMENTS];
} tcp_answer;
STAILQ_HEAD(tcp_answers, tcp_answer);

/* A frame that is being sent or has been sent in part. */
typedef struct tcp_out {
    uint8_t kind;                 /* 0: none */
    uint8_t packing;              /* a WRITE that is packed if that gains */
    uint32_t head_len, body_len;  /* bytes of header and segments; of the body */
    uint32_t sent;                /* of both */
    struct tcp_op *first, *last;  /* its operations: still in conn->tx */
    struct tcp_answer *answer;    /* first of conn->answers */
    uint8_t *head;                /* header and segments: the rail's scratch memory, or allocated when the frame goes on later */
    uint64_t seq;                 /* WRITE, SEND */
    tcp_packed *packed;           /* the body, if it is packed */
} tcp_out;

/* A frame that is being received. */
typedef struct tcp_in {
    tcp_header h;
    uint32_t have; /* bytes of the header, then of the segments */
    uint32_t left; /* bytes of the body, unpacked, that are to be placed */
    uint32_t packed; /* bytes of a packed body that are to come; 0: it is none */
    tcp_unpacking *unpacking; /* of a packed body */
    size_t unpacked; /* bytes of text that this receive has put into place: a packed byte may stand for 7,000 */
    uint8_t state; /* TCP_IN_* */
    uint8_t careful; /* memory of the frame is not there: its pieces are received one by one, to find which */
    uint32_t seg, seg_off;  /* where the next byte of the body goes */
    uint64_t changes;       /* of the table, when the segments were checked last */
    uint8_t header[TCP_HEADER];
    uint8_t *segments;      /* allocated while a WRITE comes in */
    tcp_copy *copy;         /* where the piece of tcp_frame_pieces is; NULL: in host memory */
    tcp_op *op;             /* READ that is answered, or the receive that a message fills */
} tcp_in;
enum { TCP_IN_HEADER, TCP_IN_SEGMENTS, TCP_IN_BODY };
enum { TCP_NEW, TCP_CONNECTING, TCP_UP, TCP_FAILED };
typedef struct tcp_rail tcp_rail;
typedef struct tcp_records tcp_records;
typedef struct tcp_record_rail tcp_record_rail;
struct plan;

typedef struct tcp_conn {
    tcp_rail *rail;
    int fd, state, err; /* err: why it has failed, an errno */
    uint8_t salt[16];   /* of the session's keys */
    uint8_t blocked, ready, dirty; /* blocked: no room to send. ready, dirty: in that list. ready is 2: in waiting */
    uint8_t bulk;    /* the last body was large: receives put it into place, and take TCP_GLANCE bytes beside it */
    uint8_t data, then[2]; /* the last frame had bytes for the application's memory; whether one that had some, or had none, was followed by such */
    uint32_t head;   /* bytes of header and segments of the last frame that had some */
    uint8_t leaving; /* the peer has said goodbye */
    uint8_t ending;  /* the socket has an end or an error, behind what is to be received */
    uint8_t inq;     /* receives say how many bytes are left (TCP_INQ) */
    TAILQ_ENTRY(tcp_conn) ready_next;
    TAILQ_ENTRY(tcp_conn) dirty_next;

    struct tcp_ops tx;      /* not sent, or in part */
    struct tcp_ops unacked; /* WRITEs and messages that were sent, by seq */
    struct tcp_ops reading; /* READs that were asked for, by id */
    struct tcp_ops rx;      /* posted receives */
    struct tcp_ops early;   /* messages that came before their receives */
    struct tcp_answers answers;
    uint32_t ops, recvs, earlies, reads, nanswers; /* lengths: tx + unacked + reading; rx; early; reading; answers */
    uint64_t read_bytes, answer_bytes;
    uint64_t sent_seq, acked; /* frames of ours: the last built, the last acknowledged */
    uint64_t got_seq, placed_seq; /* frames of the peer's: the last taken in, the last whose bytes are in place */
    uint32_t next_id, ask; /* ask: an acknowledgement is due */
    struct { /* a WRITE of the peer's that was refused: nothing after it is taken in */
        uint64_t seq; /* 0: none */
        uint32_t seg, status;
        uint8_t sent;
    } refusal;
    struct { /* copies of GPUs, gpu.c */
        tcp_copy *in, *out;      /* open */
        tcp_rest frames, records; /* wait for a bounce buffer, in this order */
        struct tcp_copies ins;   /* to GPUs: in order, until all effects have come */
        uint8_t busy, failed, closed; /* busy: a failed copy ends the connection later. closed: the last copy frees the connection */
        uint32_t flying, late;   /* copies; messages without a receive that wait for one */
        struct tcp_ops held;     /* operations of a connection that has ended: they end with its last copy */
    } gpu;
    struct { /* memory of the peer's GPUs, import.c */
        tcp_import **import, *left; /* by the core's number of the region; left: to be unmapped */
        uint32_t n, jobs;
        _Atomic uint32_t copying; /* jobs that wait for a GPU of ours alone */
        uint64_t number; /* of the connection: mappings are never shared between peers */
    } maps;
    tcp_out out;
    tcp_in in;
    tcp_records *records; /* NULL: the frames are in clear */
    uint8_t packs;        /* bodies may be packed, both ways */
    pack_hint pack_hint;
    uint32_t under[2];   /* WRITEs and READs under way, if paces measure them */
    tcp_paces *paces;    /* NULL: compression=auto leaves it in clear */
} tcp_conn;
TAILQ_HEAD(tcp_conns, tcp_conn);

/* One registered range. */
typedef struct tcp_region {
    uint64_t addr, len;
    uint64_t key; /* random; peers get tcp_session_key */
    uint8_t peers; /* TCP_PEERS_*, TCP_OURS */
    uint8_t live;
    uint8_t absent; /* an answer could not read all of it: it is read before further ones begin */
    tcp_gpu *gpu;   /* the memory is on this GPU; NULL: host memory */
    const tcp_vram *vram; /* the memory is a GPU's that peers map: no byte of it goes over the connection */
    uint32_t next_free;
} tcp_region;
enum { TCP_PEERS_READ = 1, TCP_PEERS_WRITE = 2 }; /* option.Rights */
enum { TCP_OURS = 4 }; /* a bounce buffer in GPU memory */

typedef struct tcp_counters {
    uint64_t sends, receives, waits; /* system calls */
    uint64_t refused;                /* operations of peers */
    uint64_t broken;                 /* connections of peers that broke a rule */
    uint64_t forged;                 /* connections with a record that was not the peer's */
    uint64_t texts, packed;          /* bytes that were packed; as many as they became */
    uint64_t regions;                /* in the table now */
} tcp_counters;

struct tcp_rail {
    gr_rail base;
    uint32_t nconns;
    /* May have bytes to receive or room to send; has something to send; is ready once another copy has ended. */
    struct tcp_conns ready, dirty, waiting;
    tcp_conn *hot[TCP_HOT];
    unsigned turns; /* polls since epoll was asked */
    uint8_t crowd;  /* epoll has just named more connections than are hot: it is asked again */
    int wake_fd;    /* eventfd in wait_fd */
    SLIST_HEAD(, tcp_gpu) gpus;
    uint32_t flying, kept; /* copies; connections that are closed and have some */
    int timer_fd;       /* timerfd in wait_fd, for long copies; -1: no GPU */
    uint8_t armed, polling; /* a thread may sleep on wait_fd; the ops table looks at the lists by itself */
    struct tcp_ops done, pool;
    struct tcp_answers answer_pool;
    struct { /* the table of regions */
        tcp_region *at;
        uint32_t size, used, free; /* free: the first free entry + 1, 0: none */
        uint32_t live;
        uint64_t changes; /* registrations that have ended */
    } table;
    tcp_counters count;
    struct iovec iov[TCP_IOV];
    uint8_t staging[TCP_STAGING];
    uint8_t *heads; /* scratch memory for headers of one sendmsg */
    tcp_record_rail *records; /* NULL: nothing is encrypted */
    tcp_pack_rail *pack; /* NULL: nothing is packed */
    tcp_bulk *bulk; /* NVLink between hosts; NULL: a rail of sockets alone */
};

/* region.c */
int tcp_region_add(tcp_rail *rail, uint64_t addr, uint64_t len, uint64_t key, uint8_t peers, tcp_gpu *gpu, uint32_t *number);
void tcp_region_remove(tcp_rail *rail, uint32_t number);
/* The key of a region for the peers of a session: SipHash-2-4 under the session's salt. */
uint64_t tcp_session_key(const uint8_t salt[16], uint64_t key, uint32_t number);
/* Local address of a range that a peer names, or NULL: then *err is EACCES, ESTALE or EFAULT. */
void *tcp_region_find(const tcp_conn *conn, const tcp_segment *seg, uint8_t right, int *err);

/* The region of a range that a peer names, of any length, or NULL. */
const tcp_region *tcp_region_for(const tcp_conn *conn, const tcp_segment *seg, uint64_t len, uint8_t right, int *err);

/* Local address of a segment that was found, while table.changes stays the same. */
static inline uint8_t *tcp_region_at(const tcp_rail *rail, const tcp_segment *seg)
{
    return (uint8_t *)(uintptr_t)(rail->table.at[TCP_REGION(seg->addr)].addr + TCP_OFFSET(seg->addr));
}

/* conn.c */
tcp_op *tcp_op_new(tcp_rail *rail);
void tcp_op_done(tcp_rail *rail, tcp_op *op, int err);
void tcp_take_early(tcp_conn *conn, tcp_op *op); /* the oldest message that came before its receive ends the receive op */
void tcp_wake(tcp_rail *rail); /* what the caller has found needs a poll, and no event of a socket announces it */
void tcp_conn_dirty(tcp_conn *conn); /* has something to send: the next flush sends it */
void tcp_conn_ready(tcp_conn *conn); /* may have bytes to receive, though no event comes: the next poll looks */
void tcp_conn_wait(tcp_conn *conn);  /* the same, for a poll after a copy has ended */
void tcp_conn_not_ready(tcp_conn *conn);
void tcp_conn_hot(tcp_conn *conn);   /* has given bytes: polls receive from it at once */
void tcp_conn_fail(tcp_conn *conn, int err); /* ends all operations; messages that were acknowledged stay for their receives */
void tcp_conn_left(tcp_conn *conn); /* the peer has closed the connection, and said so before */
int tcp_conn_has_output(const tcp_conn *conn);
uint64_t tcp_conn_round_trip(gr_rail *rail, void *ep); /* Implements TCP_INFO */
void tcp_answer_done(tcp_conn *conn);

/* gpu.c */
int tcp_gpu_write(tcp_conn *conn, tcp_op *op); /* 0: its bytes have room in a bounce buffer. -EAGAIN: no buffer is free */
int tcp_gpu_answer(tcp_conn *conn, tcp_answer *a); /* the same; other errors: what the peer names cannot be read */
tcp_copy *tcp_gpu_in(tcp_conn *conn, tcp_gpu *gpu); /* an open copy with room; NULL: no buffer is free */
void tcp_gpu_post(tcp_conn *conn);  /* posts open copies, and waits for a few microseconds. The connection may fail */
void tcp_gpu_busy(tcp_conn *conn, uint8_t busy);
void tcp_gpu_ended(tcp_rail *rail); /* effects of copies that have ended */
void tcp_gpu_sent(tcp_op *op, tcp_answer *a); /* one of the two needs its bounce buffer no more */
void tcp_gpu_drop(tcp_conn *conn);  /* the connection ends: nothing follows from its copies. What waited for them is put into unacked */
int tcp_gpu_await(tcp_conn *conn);  /* until none of its copies flies, a second at most; result as tcp_conn_close. Leaves the lock meanwhile */
static inline tcp_copy *tcp_gpu_last(const tcp_conn *conn) { return TAILQ_LAST(&conn->gpu.ins, tcp_copies); }
static inline int tcp_copied(const tcp_copy *c) { return !c || (c->state >= TCP_COPY_ENDED && !c->err); }
int tcp_keeps(const tcp_conn *conn); /* received bytes wait for a bounce buffer */
int tcp_resume(tcp_conn *conn);      /* takes them in. An errno: the connection ends */

/* tx.c: sends what is due, TCP_TURN bytes at most. */
void tcp_send(tcp_conn *conn);
/* rx.c: receives until the socket is empty, or until TCP_TURN bytes and a little more have come. Returns their number: from TCP_TURN
 * on there may be more. Of packed bodies it is the larger number, of what came or what it stands for. */
size_t tcp_receive(tcp_conn *conn);

/* For record.c, wait.c. They return an errno if the connection ends; tcp_place also EAGAIN: no bounce buffer is free. */
int tcp_take(tcp_conn *conn, uint8_t *at, size_t n); /* bytes of frames, in order */
int tcp_take_end(tcp_conn *conn); /* the frame's body is complete, or it has none */
/* Bytes of the body, packed or not, as tcp_place. */
int tcp_take_body(tcp_conn *conn, uint8_t *at, size_t n, int sealed, size_t *done);
/* Puts bytes of the body into place, from memory that may change: *done of n, fewer if the frame was refused. sealed: decrypts them. */
int tcp_place(tcp_conn *conn, uint8_t *at, size_t n, int sealed, size_t *done);

/* record.c, seal.c: option encryption. Of a connection with records the bytes go through them. */
void tcp_records_free(tcp_records *r); /* may be NULL */
ssize_t tcp_seal(tcp_conn *conn, const struct plan *p); /* sends what is planned: its bytes that were sealed, or -1 and errno */
int tcp_sealed_left(const tcp_conn *conn); /* sealed bytes wait for the socket: they go first */
int tcp_send_sealed(tcp_conn *conn); /* sends them. An errno: EAGAIN if some are left */
void tcp_seal_last(tcp_conn *conn, const uint8_t *text, size_t len); /* a record before the end, if one may begin */
uint8_t *tcp_received(tcp_conn *conn, size_t *room); /* what is received comes here, without encryption too */
int tcp_open(tcp_conn *conn, uint8_t *at, size_t n); /* received bytes. An errno: the connection ends; EBADMSG: they are not the peer's */
int tcp_record_place(tcp_conn *conn, void *to, const void *from, size_t n); /* decrypts bytes of the record. 0, or an errno */

/* packed.c: option compression. Errors are an errno: the connection ends. */
void tcp_pack_free(tcp_pack_rail *r); /* may be NULL */
/* Packs the body of a planned frame, whose pieces are the rail's iov from that one on, if that pays: it is then one piece. 1: it is packed. */
int tcp_pack(tcp_conn *conn, struct plan *p, tcp_out *f, int from);
void tcp_packed_give(tcp_rail *rail, tcp_packed *p); /* may be NULL */
int tcp_unpack_begin(tcp_conn *conn, uint64_t text); /* a packed body comes in, of so many bytes unpacked */
void tcp_unpack_end(tcp_conn *conn);                 /* or there is none */
int tcp_unpack(tcp_conn *conn, uint8_t *at, size_t n, int sealed, size_t *done); /* as tcp_place */
int tcp_unpack_room(tcp_conn *conn, struct iovec *iov); /* 1: where the next bytes may be received */
size_t tcp_unpack_beside(const tcp_conn *conn, size_t room); /* bytes of the staging buffer that are received with them */
int tcp_unpack_came(tcp_conn *conn, size_t n);          /* ... and so many were */

/* pace.c: whether packing makes WRITEs or READs faster. */
int tcp_pace_packs(const tcp_conn *conn, int read); /* the next one is packed */
void tcp_pace_moved(tcp_conn *conn, int read, int packing, uint32_t text); /* a body of an operation of ours. packing: it was planned, or asked for, packed */
void tcp_pace_begins(tcp_conn *conn, const tcp_op *op); /* it is counted in conn->ops */
void tcp_pace_ends(tcp_conn *conn, const tcp_op *op);   /* no more */
void tcp_pace_leave(tcp_conn *conn);                    /* all have ended */

/* frames.c. These return 0, or an errno: the connection ends. */
int tcp_frame_header(tcp_conn *conn);   /* the header is there */
int tcp_frame_segments(tcp_conn *conn); /* the segments are there */
int tcp_frame_end(tcp_conn *conn);      /* the body is there */
void tcp_frame_took(tcp_conn *conn, tcp_op *op); /* the message or the READ has ended */
/* Where the next bytes of the body go: fills at most max pieces of at most `most` bytes in all, and returns their number. 0: the
 * frame was refused meanwhile, or no bounce buffer is free. Bytes for a GPU are one piece, in a bounce buffer. */
int tcp_frame_pieces(tcp_conn *conn, struct iovec *iov, int max, size_t most);
void tcp_frame_check(tcp_conn *conn, uint32_t from); /* checks segments from there on again */
void tcp_frame_advance(tcp_conn *conn, size_t n); /* n bytes of the body are in place */
void tcp_frame_refuse(tcp_conn *conn, uint32_t seg, int err); /* the segment is at fault */

/* ops.c */
extern const gr_rail_ops tcp_ops;

/* For Go. All take the rail's lock. */
tcp_rail *tcp_rail_new(uint32_t worker, int *err);
/* Before the first connection. path is of libcrypto, empty for the usual ones. Returns 0, or -1 and a text. */
int tcp_rail_encrypt(tcp_rail *rail, const char *path, char *why, size_t size);
/* For tests: records and bytes under one key, bytes of a record inside a body. */
void tcp_rail_tune(tcp_rail *rail, uint64_t records, uint64_t bytes, uint32_t body);
int tcp_rail_pack(tcp_rail *rail, uint8_t mode); /* before the first connection: TCP_PACK_*. An errno */
void tcp_rail_tune_packing(tcp_rail *rail, uint32_t least, int gainless); /* for tests, of a rail that packs */
void tcp_conn_pack(tcp_conn *conn, tcp_paces *paces); /* before Attach: the peer unpacks, too. paces stay until the connection is closed, or are NULL */
tcp_paces *tcp_paces_new(void);                        /* NULL: no memory */
void tcp_paces_free(tcp_paces *paces);
int tcp_rail_free(tcp_rail *rail); /* EBUSY: a connection or a region is open */
tcp_conn *tcp_conn_new(tcp_rail *rail);
void tcp_conn_begin(tcp_conn *conn, const uint8_t salt[16]); /* operations may be posted */
/* Before Attach, on a rail that encrypts. secret is trust.RecordSecret. 0, ENOMEM, or EIO: libcrypto fails, or the process ends. */
int tcp_conn_encrypt(tcp_conn *conn, const uint8_t secret[32], int initiator);
int tcp_conn_attach(tcp_conn *conn, int fd); /* takes fd over, also with an error */
void tcp_conn_broken(tcp_conn *conn, int err); /* there will be no connection */
/* 0, or the number of a GPU + 1: it has not ended a copy within a second, and what that copy uses stays allocated until it has. */
int tcp_conn_close(tcp_conn *conn);
uint32_t tcp_rail_kept(tcp_rail *rail); /* connections that are closed and have such copies. Polls them */
int tcp_conn_option(tcp_conn *conn, int level, int name, void *to, uint32_t len); /* an errno; ENOTCONN: there is no socket */
int tcp_rail_gpu(tcp_rail *rail, tcp_gpu *gpu); /* regions may be on it, until tcp_rail_free. An errno */
int tcp_register(tcp_rail *rail, uint64_t addr, uint64_t len, uint64_t key, uint8_t peers, tcp_gpu *gpu, uint32_t *number);
/* A region for tcp_register_all, as the arguments of tcp_register. err: what that returns. */
typedef struct tcp_entry {
    uint64_t addr, len, key;
    tcp_gpu *gpu;
    uint32_t number;
    int32_t err;
    uint8_t peers;
} tcp_entry;
void tcp_register_all(tcp_rail *rail, tcp_entry *entries, size_t n); /* with one turn at the rail's lock */
/* Waits as tcp_deregister does for copies of memory of a GPU that is not registered. */
int tcp_await_copies(tcp_rail *rail, uint64_t addr, uint64_t len, tcp_gpu *gpu);
/* Memory of a GPU that peers map. */
int tcp_register_vram(tcp_rail *rail, uint64_t addr, uint64_t len, uint64_t key, uint8_t peers, tcp_vram *vram, uint32_t *number);
int tcp_deregister(tcp_rail *rail, uint32_t number); /* waits for copies of the region. EBUSY: one is still in progress a second after it was first waited for */
tcp_counters tcp_rail_counters(tcp_rail *rail);
uint64_t tcp_rail_failed(tcp_rail *rail, const tcp_gpu *gpu, gr_gpu_fault *fault); /* copies that have failed, and why the last one did */

#endif
