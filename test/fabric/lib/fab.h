/* A libfabric for tests: it offers the fabrics efa, efa-direct and cxi, keeps their rules, and lets the real libfabric's tcp
 * provider move the bytes.
 *
 * One file per noun: config.c (switches.h), breach.c (and what is recorded beside breaches), real.c (the real library), info.c and exports.c (what is offered),
 * domain.c, page.c (what endpoints of one host know about each other), av.c, mr.c, mapped.c, ep.c, post.c (what is checked when an
 * operation is posted), calls.c, op.c (an operation's life), launch.c, recv.c, cq.c, wait.c.
 *
 * Objects are our own and hold real ones. One lock per domain covers all of it, and every call of the real library: its net
 * provider needs that. A closed object stays allocated, so that its use is seen. Errors are checked where the rule is known:
 * a bad key never reaches the real provider, which would cancel the innocents behind it.
 */
#ifndef FAB_H
#define FAB_H

#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "page.h"
#include "switches.h"

enum { FAB_IOV = 4, FAB_MRS_KEPT = 1024, FAB_ADDR_LEN = 32 };

/* Appends to GORAIL_FABRIC_BREACHES and stderr; rule is one word that tests look for. */
void fab_breach(int kind, const char *rule, const char *format, ...) __attribute__((format(printf, 3, 4)));

typedef struct fab_real {
    void *dl;
    uint32_t version;
    const char *prov; /* "net" or "tcp" */
    bool lazy_sockets; /* net: fi_trywait doesn't work and sockets keep data after a poll */
    char error[256];
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
    void (*freeinfo)(struct fi_info *);
    struct fi_info *(*dupinfo)(const struct fi_info *);
    int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
    const char *(*strerror)(int);
} fab_real;

/* NULL when there is none; loaded once. */
const fab_real *fab_real_get(void);
/* The real provider's entry for an interface, or NULL; freed with freeinfo. */
struct fi_info *fab_real_info(const char *interface);

const char *fab_prov_name(int kind);
const char *fab_fabric_name(int kind);
int fab_getinfo(uint32_t version, uint64_t flags, const struct fi_info *hints, struct fi_info **out);
int fab_fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **out, void *context);

/* state of every object: OPEN, then CLOSED for ever. */
enum { FAB_OPEN = 0x6f70656e, FAB_CLOSED = 0x636c6f73 };

typedef struct fab_fabric {
    struct fid_fabric fid;
    uint32_t state;
    int kind, domains;
} fab_fabric;

typedef struct fab_dom fab_dom;
typedef struct fab_ep fab_ep;
typedef struct fab_cq fab_cq;
typedef struct fab_av fab_av;
typedef struct fab_mr fab_mr;
typedef struct fab_peer fab_peer;
typedef struct fab_op fab_op;

struct fab_dom {
    struct fid_domain fid;
    uint32_t state;
    int kind, rail;
    bool hmem;       /* FI_HMEM was asked for */
    bool one_thread; /* FI_THREAD_DOMAIN was asked for: two calls at a time are a breach, */
    bool crowded;    /* told once */
    uint32_t tclass, service, vni;
    fab_fabric *fabric;
    pthread_mutex_t mu; /* guards all below, and all that hangs on it */
    int eps, cqs, avs, mrs; /* open ones */
    uint64_t random;
    uint64_t dice; /* of SENDs that fail: so that neither time nor polls decide which */
    uint64_t posted; /* operations so far, for fail_at */
    struct fi_info *real_info;
    struct fid_fabric *real_fabric;
    struct fid_domain *real;
    struct fid_av *real_av;
    struct fid_cq *real_cq;
    int real_fd;
    uint64_t signal_tag; /* how the real queue's own signal shows in real_fd */
    bool more;           /* the real queue was not read to its end */
    int page_fd;
    fab_page *page;
    fab_ep *ep[FAB_EPS];
    fab_cq *cq_list;
    fab_op *ops;        /* all of them */
    fab_op *held;       /* not yet given to the real provider, oldest first */
    fab_op *held_last;
    uint32_t nheld;
    fab_op *contexts[1024]; /* operations by op_context, where those are ours */
    fab_mr **mr;        /* by descriptor */
    uint32_t mr_room, mr_next;
    fab_mr *mr_free, *mr_kept[FAB_MRS_KEPT];
    uint32_t mr_kept_at;
    uint32_t mr_waiting; /* registered and not enabled */
};

struct fab_av {
    struct fid_av fid;
    uint32_t state;
    fab_dom *dom;
    int users; /* endpoints bound */
    fab_peer **peer; /* by fi_addr_t */
    size_t room;
};

/* One address of a vector. It outlives its removal while operations name it. */
struct fab_peer {
    uint8_t addr[FAB_ADDR_LEN];
    uint64_t cookie;
    int refs, users;
    uint32_t idx; /* the peer's endpoint in its page */
    pid_t pid;
    fi_addr_t real;
    fab_page *page; /* of the peer, or NULL: it is gone */
    bool listed;
    bool stuck, sent; /* in this pass over what is held: full, or a message of it stays */
    uint64_t checked; /* when it was last seen alive */
};

struct fab_mr {
    struct fid_mr fid;
    uint32_t state;
    fab_dom *dom;
    fab_ep *ep;
    struct fid_mr *real;
    uint64_t base, len, access, key;
    uint32_t index, salt;
    int users; /* operations in flight with its descriptor */
    bool enabled;
    char *at;   /* of a GPU's memory: where this process has it, else NULL */
    void *map;  /* the mapping around that */
    size_t map_len;
    fab_mr *next;
};

struct fab_ep {
    struct fid_ep fid;
    uint32_t state;
    fab_dom *dom;
    uint32_t idx; /* in the page */
    uint64_t cookie, caps, tx_flags;
    uint32_t tclass;
    size_t tx, rx; /* depths */
    fab_av *av;
    fab_cq *tx_cq, *rx_cq;
    int mrs; /* bound to it */
    bool enabled;
    struct fid_ep *real;
    uint8_t addr[FAB_ADDR_LEN];
    uint32_t sending, receiving; /* operations in flight */
    fab_op *recvs, *recvs_last;  /* posted, in order */
};

typedef struct fab_entry {
    void *ctx;
    uint64_t flags;
    size_t len, olen;
    int err, prov_err;
    uint32_t age;
} fab_entry;

struct fab_cq {
    struct fid_cq fid;
    uint32_t state;
    fab_dom *dom;
    fab_cq *next;
    enum fi_cq_format format;
    int users;
    size_t size;
    fab_entry *entry; /* completions; errors are kept apart */
    size_t n, room;
    fab_entry *error;
    size_t nerrors, errors_room;
    bool overrun;
    int fd, event, timer; /* fd is an epoll of the other two and the real queue's; -1 without */
    bool armed;           /* somebody may be blocked */
};

enum { FAB_WRITE, FAB_READ, FAB_SEND, FAB_RECV, FAB_BOUNCE };

/* In front of every message on the real wire. */
typedef struct fab_header {
    uint64_t source; /* cookie of the sender's endpoint */
    uint32_t len, directed;
} fab_header;

struct fab_op {
    struct fi_context2 real; /* first: its address is the real op_context */
    fab_op *next, *prev;     /* dom->ops */
    fab_op *held_next, *held_prev;
    fab_op *ctx_next;        /* dom->contexts */
    int kind;
    bool held, silent, waiting, owns_ctx;
    bool any; /* a receive for messages of all peers */
    fab_ep *ep;
    fab_cq *cq;
    void *ctx;
    fab_peer *peer;
    struct iovec iov[FAB_IOV];
    struct fi_rma_iov rma[FAB_IOV];
    fab_mr *mr[FAB_IOV];
    size_t niov, nrma, len;
    uint32_t age, due, tries;
    uint64_t number, since;  /* since: of waiting, ns */
    int fail;
    bool lands; /* a SEND that fails, and arrives all the same */
    void *copy;
    fab_header header;
};

/* op.c. The caller holds the lock in all of these. */
fab_op *fab_op_new(fab_dom *dom, int kind);
void fab_op_free(fab_dom *dom, fab_op *op);
void fab_op_done(fab_dom *dom, fab_op *op, int err, int prov_err, size_t len);
bool fab_op_context(fab_dom *dom, fab_op *op, void *ctx); /* false: a breach, refuse it */
void fab_op_hold(fab_dom *dom, fab_op *op);
void fab_op_unhold(fab_dom *dom, fab_op *op);
void fab_op_drop(fab_ep *ep); /* all of an endpoint that closes */

/* What goes wrong, and how each fabric says so. */
enum { FAB_BAD_KEY, FAB_UNKNOWN, FAB_RNR, FAB_GONE, FAB_TRUNCATED };
void fab_op_fail(fab_dom *dom, fab_op *op, int what);
uint64_t fab_now(void);

/* launch.c */
void fab_pump(fab_dom *dom, bool polled);
void fab_real_done(fab_dom *dom, fab_op *op, int err);
bool fab_must_poll(const fab_dom *dom, bool *waiting);

/* post.c. FAB_QUIET among the flags: it completes unseen (fi_inject). */
#define FAB_QUIET (UINT64_C(1) << 63)
ssize_t fab_post(fab_ep *ep, int kind, const struct iovec *iov, void **desc, size_t niov, fi_addr_t addr,
                 const struct fi_rma_iov *rma, size_t nrma, void *ctx, uint64_t flags);
bool fab_descs(fab_ep *ep, fab_op *op, void **desc, uint64_t access);

/* recv.c */
ssize_t fab_recv(fab_ep *ep, const struct iovec *iov, void **desc, size_t niov, fi_addr_t from, void *ctx);
void fab_arrived(fab_dom *dom, fab_op *bounce, size_t len);
ssize_t fab_cancel(fid_t fid, void *ctx);

/* cq.c, wait.c */
void fab_progress(fab_dom *dom);
void fab_cq_add(fab_cq *cq, const fab_entry *entry);
void fab_wake(fab_dom *dom);
int fab_wait_open(fab_cq *cq);
void fab_wait_close(fab_cq *cq);
int fab_trywait(struct fid_fabric *fabric, struct fid **fids, int count);
int fab_cq_control(struct fid *fid, int command, void *arg);

int fab_domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **out, void *context);
int fab_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **out, void *context);
int fab_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **out, void *context);
int fab_ep_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **out, void *context);
extern struct fi_ops_mr fab_mr_ops;
extern struct fi_ops_msg fab_msg_ops;
extern struct fi_ops_rma fab_rma_ops;

/* mapped.c: whether there is something, and whether it is the processor's. */
bool fab_mapped(uint64_t base, uint64_t len);
bool fab_readable(uint64_t at);

/* av.c */
fab_peer *fab_av_peer(fab_av *av, fi_addr_t addr);
void fab_peer_put(fab_dom *dom, fab_peer *peer);
bool fab_peer_alive(const fab_peer *peer);

/* Every call takes the domain's lock with this. */
void fab_lock(fab_dom *dom);
void fab_unlock(fab_dom *dom);
/* Appends what an endpoint was opened with to GORAIL_FABRIC_OPENED. */
void fab_opened(const fab_ep *ep);
int fab_class_ok(int kind, uint32_t tclass); /* 0 or an error */

uint64_t fab_random(fab_dom *dom);
uint64_t fab_dice(uint64_t *state);
/* Of a call on an object that was closed: recorded, and true. */
bool fab_is_closed(uint32_t state, int kind, const char *call);
int fab_busy(int kind, const char *what, const char *why);

#define FAB_OF(type, pointer) ((type *)(void *)(pointer)) /* the fid comes first in every object */

#endif
