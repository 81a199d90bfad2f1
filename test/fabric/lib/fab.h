/* A libfabric for tests. It offers the fabrics efa, efa-direct and cxi, enforces their rules, and moves the bytes with the real
 * libfabric's tcp provider.
 *
 * config.c (switches.h), breach.c (records of breaches and endpoints, locks), real.c (the real library), info.c (fi_getinfo), exports.c,
 * domain.c (fabrics, domains), page.c (state shared between processes), av.c, mr.c, mapped.c (is memory mapped), ep.c, post.c (checks
 * at posting), calls.c (ops tables), op.c (operations), launch.c (posting to the real provider), recv.c, cq.c, wait.c.
 *
 * Each object here holds an object of the real library. One lock per domain covers the domain and all calls of the real library; its net
 * provider needs that. A closed object stays allocated, so that a use after close is recorded. Rules are checked before the real
 * provider: a bad key there would also cancel operations behind it that broke no rule.
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

/* Writes a breach to the file GORAIL_FABRIC_BREACHES and to stderr. Tests compare rule, one word. */
void fab_breach(int kind, const char *rule, const char *format, ...) __attribute__((format(printf, 3, 4)));

typedef struct fab_real {
    void *dl;
    uint32_t version;
    const char *prov; /* "net" or "tcp" */
    bool lazy_sockets; /* net: fi_trywait does not work, and sockets may keep data after a poll */
    char error[256];
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
    void (*freeinfo)(struct fi_info *);
    struct fi_info *(*dupinfo)(const struct fi_info *);
    int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
    const char *(*strerror)(int);
} fab_real;

/* The real library, loaded once, or NULL. */
const fab_real *fab_real_get(void);
/* The real provider's entry for an interface, or NULL. The caller frees it with freeinfo. */
struct fi_info *fab_real_info(const char *interface);

const char *fab_prov_name(int kind);
const char *fab_fabric_name(int kind);
int fab_getinfo(uint32_t version, uint64_t flags, const struct fi_info *hints, struct fi_info **out);
int fab_fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **out, void *context);

/* The state of every object. A closed object stays allocated in state CLOSED. */
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
    bool hmem;       /* the caller requested FI_HMEM */
    bool one_thread; /* the caller requested FI_THREAD_DOMAIN: concurrent calls are a breach, */
    bool threads_reported; /* reported once */
    uint32_t tclass, service, vni;
    fab_fabric *fabric;
    pthread_mutex_t mu; /* protects all fields below, and the objects of the domain */
    int eps, cqs, avs, mrs; /* numbers of open objects */
    uint64_t random;
    uint64_t fail_random; /* random state of fail_sends: separate, so that the number of polls does not change which SENDs fail */
    uint64_t posted; /* operations so far, for fail_at */
    uint64_t idle_ns; /* when the device has moved what was launched, with the switch mbps */
    struct fi_info *real_info;
    struct fid_fabric *real_fabric;
    struct fid_domain *real;
    struct fid_av *real_av;
    struct fid_cq *real_cq;
    int real_fd;
    uint64_t signal_tag; /* epoll data of the real queue's own signal in real_fd */
    bool more;           /* the real queue may have more completions */
    int page_fd;
    fab_page *page;
    fab_ep *ep[FAB_EPS];
    fab_cq *cq_list;
    fab_op *ops;        /* all operations of the domain */
    fab_op *held;       /* not yet posted to the real provider, oldest first */
    fab_op *held_last;
    uint32_t nheld;
    fab_op *contexts[1024]; /* hash table by op_context, with the switch context2 */
    fab_mr **mr;        /* by descriptor */
    uint32_t mr_room, mr_next;
    fab_mr *mr_free, *mr_kept[FAB_MRS_KEPT];
    uint32_t mr_kept_at;
    uint32_t mr_waiting; /* regions registered and not enabled */
};

struct fab_av {
    struct fid_av fid;
    uint32_t state;
    fab_dom *dom;
    int users; /* number of bound endpoints */
    fab_peer **peer; /* by fi_addr_t */
    size_t room;
};

/* An address in a vector. After removal it lives until its last operation ends. */
struct fab_peer {
    uint8_t addr[FAB_ADDR_LEN];
    uint64_t cookie;
    int refs, users;
    uint32_t idx; /* the peer's endpoint in its page */
    pid_t pid;
    fi_addr_t real;
    fab_page *page; /* the peer's page; NULL: the peer is gone */
    bool listed;
    bool full, send_held; /* in this pass of fab_pump: the real provider took no more; a message stays held */
    uint64_t checked; /* time of the last check that the process lives, ns */
};

struct fab_mr {
    struct fid_mr fid;
    uint32_t state;
    fab_dom *dom;
    fab_ep *ep;
    struct fid_mr *real;
    uint64_t base, len, access, key;
    uint32_t index, salt;
    int users; /* operations in flight with the descriptor of this region */
    bool enabled;
    char *at;   /* GPU memory: its address in this process; else NULL */
    void *map;  /* the mapping that contains at */
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
    int mrs; /* number of bound regions */
    bool enabled;
    struct fid_ep *real;
    uint8_t addr[FAB_ADDR_LEN];
    uint32_t sending, receiving; /* operations in flight */
    fab_op *recvs, *recvs_last;  /* posted receives, in order */
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
    fab_entry *entry; /* successful completions; errors are separate */
    size_t n, room;
    fab_entry *error;
    size_t nerrors, errors_room;
    bool overrun;
    int fd, event, timer; /* fd is an epoll of the other two and of real_fd; -1 without a wait object */
    bool armed;           /* fi_trywait has returned 0: a thread may block */
};

enum { FAB_WRITE, FAB_READ, FAB_SEND, FAB_RECV, FAB_BOUNCE };

/* The header of every message on the real wire. */
typedef struct fab_header {
    uint64_t source; /* the sending endpoint's cookie; in a posted receive: the peer's, or 0 */
    uint32_t len, directed;
} fab_header;

struct fab_op {
    struct fi_context2 real; /* the first field: the operation's address is the real op_context */
    fab_op *next, *prev;     /* dom->ops */
    fab_op *held_next, *held_prev;
    fab_op *ctx_next;        /* dom->contexts */
    int kind;
    bool held, silent, waiting, owns_ctx; /* silent: reports no (further) completion; waiting: its last launch must be repeated */
    bool any; /* a receive for messages from all peers */
    fab_ep *ep;
    fab_cq *cq;
    void *ctx;
    fab_peer *peer;
    struct iovec iov[FAB_IOV];
    struct fi_rma_iov rma[FAB_IOV];
    fab_mr *mr[FAB_IOV];
    size_t niov, nrma, len;
    uint32_t age, due, tries;
    uint64_t number, since;  /* number: n-th operation of the domain; since: time of the first launch, ns */
    int fail;
    bool lands; /* a SEND that fails and still arrives */
    void *copy;
    fab_header header;
};

/* op.c. The caller holds the domain's lock. */
fab_op *fab_op_new(fab_dom *dom, int kind);
void fab_op_free(fab_dom *dom, fab_op *op);
void fab_op_done(fab_dom *dom, fab_op *op, int err, int prov_err, size_t len);
bool fab_op_context(fab_dom *dom, fab_op *op, void *ctx); /* false: a breach, and the operation is refused */
void fab_op_hold(fab_dom *dom, fab_op *op);
void fab_op_unhold(fab_dom *dom, fab_op *op);
void fab_op_drop(fab_ep *ep); /* drops all operations of an endpoint that closes */

/* Failures; fab_op_fail reports each with the fabric's own error. */
enum { FAB_BAD_KEY, FAB_UNKNOWN, FAB_RNR, FAB_GONE, FAB_TRUNCATED };
void fab_op_fail(fab_dom *dom, fab_op *op, int what);
uint64_t fab_now(void);

/* launch.c */
void fab_pump(fab_dom *dom, bool polled);
void fab_real_done(fab_dom *dom, fab_op *op, int err);
bool fab_must_poll(const fab_dom *dom, bool *waiting);

/* post.c. Flag FAB_QUIET: the operation has no completion (fi_inject). */
#define FAB_QUIET (UINT64_C(1) << 63)
ssize_t fab_post(fab_ep *ep, int kind, const struct iovec *iov, void **desc, size_t niov, fi_addr_t addr, const struct fi_rma_iov *rma, size_t nrma,
                 void *ctx, uint64_t flags);
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

/* mapped.c: whether memory is mapped, and whether the CPU can read the byte. */
bool fab_mapped(uint64_t base, uint64_t len);
bool fab_readable(uint64_t at);

/* av.c */
fab_peer *fab_av_peer(fab_av *av, fi_addr_t addr);
void fab_peer_put(fab_dom *dom, fab_peer *peer);
bool fab_peer_alive(const fab_peer *peer);

/* Takes the domain's lock for a call; reports concurrent calls with FI_THREAD_DOMAIN. */
void fab_lock(fab_dom *dom);
void fab_unlock(fab_dom *dom);
/* Appends a line with the endpoint's attributes to the file GORAIL_FABRIC_OPENED. */
void fab_opened(const fab_ep *ep);
int fab_class_ok(int kind, uint32_t tclass); /* 0 or an error */

uint64_t fab_random(fab_dom *dom);
uint64_t fab_next_random(uint64_t *state);
/* Whether the object is closed. If so, records a breach of the call. */
bool fab_is_closed(uint32_t state, int kind, const char *call);
int fab_busy(int kind, const char *what, const char *why); /* records a breach, returns -FI_EBUSY; without close_order returns 0 */

#define FAB_OF(type, pointer) ((type *)(void *)(pointer)) /* the fid is the first field of every object */

#endif
