/* NVLink between hosts: memory of peers' GPUs that our GPUs have mapped, and the jobs that copy. The connection carries messages, and a
 * question to the owner for each copy: whether its memory is still what was registered. ../doc.go, "NVLink". */
#ifndef GORAIL_TCP_BULK_H
#define GORAIL_TCP_BULK_H

#include <pthread.h>

#include "gr_gpu.h"
#include "gr_provider.h"

struct tcp_rail;
struct tcp_conn;
struct tcp_op;

enum { TCP_GPUS = 64, TCP_JOBS = 32 /* of a connection */ };

/* The registration descriptor of memory of a GPU. */
typedef struct tcp_vram {
    int device;
    const gr_gpu_parts *parts; /* what was mapped there at registration */
    struct tcp_vram *next;     /* retired */
    uint32_t number;           /* of its region */
} tcp_vram;

enum { TCP_MAP, TCP_UNMAP, TCP_PAIR, TCP_CHANGED };
typedef struct tcp_task { /* for the mapper (../nvlink_map.go) */
    struct tcp_task *next;
    int what;
} tcp_task;

/* A peer's region as one of our GPUs sees it. */
enum { TCP_ASKED, TCP_READY, TCP_UNMAPPABLE };
typedef struct tcp_import {
    tcp_task map, unmap;
    struct tcp_import *next; /* of the same region, or in conn->maps.left */
    uint64_t key, base, addr, len; /* of the region: the peer's key, wire address and range */
    uint32_t index;
    uint32_t jobs; /* that use it; under the rail's lock */
    int device;
    uint64_t conn; /* number of the connection */
    _Atomic int state;
    int why;       /* TCP_UNMAPPABLE: a gr_gpu_why */
    uint64_t delta;
} tcp_import;

/* A stream of one of our GPUs, with its free jobs. */
typedef struct tcp_pair {
    tcp_task task;
    int device, asked, failed; /* failed: a gr_gpu_why */
    gr_gpu_stream *stream;
    struct tcp_job *free;
} tcp_pair;

typedef struct tcp_range {
    uint64_t key, addr, len; /* addr: of the wire */
} tcp_range;

typedef struct tcp_here {
    const tcp_vram *mem;
    uint64_t from, len;
} tcp_here;

/* A copy. A READ asks and copies at once. A WRITE copies after the answer. It is done when both have ended. */
typedef struct tcp_job {
    struct tcp_job *next;
    tcp_pair *pair;
    gr_gpu_job *job;
    struct tcp_conn *conn;
    struct tcp_op *end; /* reports the completion */
    const void *ops;
    int write, posted, under_way, stopped, answered, err, ops_freed;
    int copying; /* counted in its connection's copying */
    uint32_t asked, questions, expired; /* ranges that the peer was asked about; questions without an answer; times that answers came too late */
    uint64_t asked_ns; /* the first question */
    uint64_t late_ns; /* until then deregistrations wait for it; 0: none has waited */
    gr_gpu_work work;
    struct {
        tcp_range *range;
        tcp_here *here;
        tcp_import **on;
        uint32_t nrange, nhere, n, room;
    } use;
} tcp_job;

/* Of a rail. */
typedef struct tcp_bulk {
    gr_gpu *_Atomic driver;
    int how; /* enum gr_gpu_how */
    int peer; /* of its streams */
    tcp_pair pairs[TCP_GPUS];
    gr_gpu_table *deltas[TCP_GPUS];
    tcp_job *jobs;
    tcp_vram *retired;
    uint64_t conns; /* numbers given */
    uint32_t kept;  /* jobs of closed connections */
    _Atomic uint32_t opening;
    pthread_mutex_t mu; /* guards the rest; taken after the rail's lock */
    int doorbell_fd;
    tcp_task *head, **tail;
    uint64_t asked; /* tasks added */
    _Atomic int changed; /* TCP_CHANGED is queued */
    tcp_task changed_task;
    char last_error[256];
} tcp_bulk;

extern const gr_rail_bulk tcp_bulk_ops;

/* bulk.c, with the rail locked. */
int tcp_job_post(gr_rail *rail, void *ep, int kind, const gr_bulk *w, gr_ctx *ctx);
void tcp_job_stop(gr_rail *rail, void *ep, gr_ctx *ctx);
void tcp_jobs_poll(struct tcp_rail *rail);
int tcp_jobs_busy(const struct tcp_rail *rail); /* a GPU copies */
void tcp_job_answered(struct tcp_conn *conn, struct tcp_op *question, int err); /* the question has left its connection */
int tcp_jobs_end(struct tcp_conn *conn); /* cancels the connection's jobs and waits, a second at most. Result as tcp_conn_close. Leaves the lock meanwhile */
int tcp_same(struct tcp_conn *conn); /* answers the question that has come in: 0, EACCES, EFAULT, ESTALE */
int tcp_jobs_await(struct tcp_rail *rail, uint32_t number); /* until no job uses our region, a second at most: EBUSY. Leaves the lock meanwhile */

/* import.c, with the rail locked. */
tcp_import *tcp_import_of(struct tcp_conn *conn, const gr_bulk_region *remote, int device, int *rc);
void tcp_imports_drop(struct tcp_conn *conn, const struct tcp_op *of); /* what the question was about, or all if of is NULL. They are unmapped when no job uses them */
void tcp_imports_sweep(struct tcp_conn *conn);
void tcp_task_add(struct tcp_rail *rail, tcp_task *t, int what);
void tcp_note_error(struct tcp_rail *rail, const char *what, int why, const gr_gpu_fault *fault);

/* For Go: bulk_rail.c, import.c. */
int tcp_bulk_new(struct tcp_rail *rail, int doorbell_fd, int how);
void tcp_bulk_free(struct tcp_rail *rail); /* no connection is open */
void tcp_bulk_use(struct tcp_rail *rail, gr_gpu *driver);
tcp_task *tcp_task_take(struct tcp_rail *rail);
uint64_t tcp_tasks_asked(struct tcp_rail *rail);
void tcp_pair_make(struct tcp_rail *rail, tcp_task *t);
int tcp_import_done(struct tcp_rail *rail, tcp_import *m, int why, uint64_t delta); /* the reason why it is not mapped in spite of all; one call at a time */
void tcp_import_forget(struct tcp_conn *conn, uint32_t index);
void tcp_last_error(struct tcp_rail *rail, char *to, size_t size);
void tcp_set_last_error(struct tcp_rail *rail, const char *text);
void tcp_vram_retire(struct tcp_rail *rail, tcp_vram *v);
uint64_t tcp_conn_number(const struct tcp_conn *conn);
uint32_t tcp_conn_copying(struct tcp_conn *conn); /* operations that wait for a GPU of ours alone. Without the lock */
uint32_t tcp_jobs_kept(struct tcp_rail *rail);

#endif
