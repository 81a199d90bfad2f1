/* What the Go files of this package and its C files share.
 *
 * Set-up is Go. C is what the core calls (ops.c, and mr.c and accept_filter.c behind it) and libfabric's calls one by one: without the lock (calls.c),
 * or each with it (setup.c).
 * libfabric is never linked: six symbols come from dlvsym, all else from the ops tables in its objects.
 */
#ifndef GORAIL_OFI_H
#define GORAIL_OFI_H

#include <linux/filter.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <stdbool.h>

#include "abi.h"
#include "gr_provider.h"

/* ---- calls.c: thin calls, without locks ---- */

/* The symbols of a loaded libfabric. */
typedef struct ofi_lib {
    uint32_t (*version)(void);
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
    void (*freeinfo)(struct fi_info *);
    struct fi_info *(*dupinfo)(const struct fi_info *);
    int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
    const char *(*strerror)(int);
} ofi_lib;

uint32_t ofi_version(const ofi_lib *lib);
int ofi_getinfo(const ofi_lib *lib, uint32_t api, uint64_t flags, const struct fi_info *hints, struct fi_info **list);
void ofi_freeinfo(const ofi_lib *lib, struct fi_info *list);
struct fi_info *ofi_dupinfo(const ofi_lib *lib, const struct fi_info *info);
int ofi_fabric(const ofi_lib *lib, struct fi_fabric_attr *attr, struct fid_fabric **out);
const char *ofi_strerror(const ofi_lib *lib, int err);

int ofi_av_open(struct fid_domain *domain, struct fid_av **out);
int ofi_cq_open(struct fid_domain *domain, size_t size, enum fi_wait_obj wait, struct fid_cq **out);
int ofi_cq_getwait(struct fid_cq *cq, int *fd);
/* NULL unless the device is on a PCI bus. */
const struct fi_pci_attr *ofi_pci(const struct fi_info *info);

/* ---- what posting and polling use; base.mu guards it ---- */

/* The `ep` of the ops table: one peer. */
typedef struct ofi_ep {
    struct fid_ep *ep;
    fi_addr_t peer;             /* where operations go; FI_ADDR_NOTAVAIL until connected */
    struct ofi_ep *next, *prev; /* rail->filters, while open */
    int listener;     /* the descriptor, libfabric's; -1: none, or it has no filter */
    uint8_t open;     /* the listener admits the peer */
    uint8_t unswept;  /* it does no more, and what it had admitted has not been looked at */
} ofi_ep;

/* An opened device. base comes first: gr_rail * and ofi_rail * are the same address. */
typedef struct ofi_rail {
    gr_rail base;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *shared; /* the endpoint of all peers, or NULL */
    ofi_ep any;            /* that one as an endpoint without a peer, for receives */
    uint64_t done_flags;   /* of operations whose completion says that the data is in place */
    uint64_t signal_tag;   /* how the queue's own signal shows in wait_fd (no_trywait) */
    uint8_t no_trywait;    /* fi_trywait never lets the caller block */
    uint8_t local_desc, prov_key, endpoint_mr; /* FI_MR_LOCAL, FI_MR_PROV_KEY, FI_MR_ENDPOINT */
    uint64_t key_size;     /* bytes */
    uint32_t open_mrs;
    ofi_ep *filters;         /* endpoints that admit their peer; see accept_filter.c */
    int reserve;           /* a descriptor for when the process has no more; -1: none */
    uint64_t turned_away;  /* connections reset for want of descriptors */
} ofi_rail;

extern const gr_rail_ops ofi_ops;

/* NULL without memory. The second closes the reserve, and nothing else. */
ofi_rail *ofi_rail_new(void);
void ofi_rail_free(ofi_rail *rail);
ofi_ep *ofi_ep_new(void);
/* Returns when no poll is under way that had begun before the call. Takes the lock. */
void ofi_rail_pass(ofi_rail *rail);
/* Implements fi_cq_read of nothing, `times` times: libfabric looks at its sockets. The caller holds the lock. */
void ofi_rail_progress(ofi_rail *rail, unsigned times);

/* ---- accept_filter.c; the caller holds the lock ---- */

/* The listener of an endpoint admits whom the filter admits. -errno. */
int ofi_filter_open(ofi_rail *rail, ofi_ep *ep, struct sock_filter *filter, unsigned short len);
/* Nobody is admitted any more: the peer's first message is in, or it does not come. */
void ofi_filter_shut(ofi_rail *rail, ofi_ep *ep);
/* Resets what waits to be accepted; how many. */
int ofi_filter_turn_away(ofi_rail *rail, int listener);
/* When libfabric has something to do that it may not be able to: resets connections for which there is no descriptor. */
void ofi_filter_relieve(ofi_rail *rail);

/* ---- setup.c; each takes the lock ---- */

/* Implements fi_av_insert of one address, in a buffer of 256 bytes. libfabric's code. */
int ofi_av_insert(ofi_rail *rail, const void *addr, fi_addr_t *at);
/* Says where operations go. */
void ofi_ep_point(ofi_rail *rail, ofi_ep *ep, fi_addr_t at);
/* ofi_filter_open, if the endpoint has a listener. */
int ofi_filter_admit(ofi_rail *rail, ofi_ep *ep, struct sock_filter *filter, unsigned short len);
/* ofi_filter_shut; whether what had been admitted is to be looked at. */
int ofi_filter_end(ofi_rail *rail, ofi_ep *ep);
int ofi_filter_unswept(ofi_rail *rail, const ofi_ep *ep);
void ofi_filter_swept(ofi_rail *rail, ofi_ep *ep);
uint64_t ofi_filter_turned_away(ofi_rail *rail);
/* Implements fi_close of all objects in the reverse order of opening: a queue closes only when nothing is bound to it. The first error is in
 * *rc. 0, and nothing was done, while endpoints are open, or regions: how many. */
int ofi_rail_close(ofi_rail *rail, uint32_t endpoints, uint32_t *regions, int *rc);

/* ---- mr.c ---- */

/* A range to be registered. Memory of a GPU is named by address (dmabuf -1), or by a dmabuf in which the range begins at offset. */
typedef struct ofi_range {
    uint64_t addr, len;
    uint64_t key;    /* of host memory, where the provider does not choose it; of GPUs it is random */
    uint8_t gpu;     /* memory of GPU `device` */
    int device, dmabuf;
    uint64_t offset;
} ofi_range;

/* Both take the lock. -errno. */
int ofi_mr_open(ofi_rail *rail, const ofi_range *range, struct fid_mr **out, uint64_t *key, void **desc);
int ofi_mr_close(ofi_rail *rail, struct fid_mr *mr);

/* For the ops table: memory of the core's own; the caller holds the lock. */
int ofi_own_reg(gr_rail *base, void *buf, size_t len, void **mr, void **desc);
void ofi_own_unreg(gr_rail *base, void *mr);

/* A negative errno from what libfabric returned: its own codes (256 and up) become the nearest errno. */
int ofi_errno(long rc);

#endif
