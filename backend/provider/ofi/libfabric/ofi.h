/* Declarations shared by the Go files and the C files of this package.
 *
 * Set-up is Go. C has the functions that the core calls (ops.c, with mr.c), and single calls of
 * libfabric: without the lock (calls.c) or with it (setup.c). libfabric is never linked: six symbols come from dlvsym,
 * all others from the ops tables in its objects. */
#ifndef GORAIL_OFI_H
#define GORAIL_OFI_H

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <stdbool.h>

#include "abi.h"
#include "gr_failpoint.h"
#include "gr_provider.h"

/* ---- calls.c: thin wrappers, without locks ---- */

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

/* ---- data of posting and polling, guarded by base.mu ---- */

/* The `ep` of the ops table: one peer. */
typedef struct ofi_ep {
    struct fid_ep *ep;
    fi_addr_t peer;             /* address of operations; FI_ADDR_NOTAVAIL until connected */
} ofi_ep;

/* An opened device. base is the first member: gr_rail * and ofi_rail * are the same address. */
typedef struct ofi_rail {
    gr_rail base;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *shared; /* the shared endpoint, or NULL */
    ofi_ep any;            /* the shared endpoint as an endpoint without a peer, for receives */
    uint64_t done_flags;   /* flags of operations whose completion must prove placement */
    uint8_t local_desc, prov_key, endpoint_mr; /* FI_MR_LOCAL, FI_MR_PROV_KEY, FI_MR_ENDPOINT */
    uint64_t key_size;     /* bytes */
    uint32_t open_mrs;
} ofi_rail;

extern const gr_rail_ops ofi_ops;

/* NULL: out of memory. The second function closes nothing of libfabric's. */
ofi_rail *ofi_rail_new(void);
void ofi_rail_free(ofi_rail *rail);
ofi_ep *ofi_ep_new(void);
/* ---- setup.c; each function takes the lock ---- */

/* Implements fi_av_insert of one address, in a buffer of 256 bytes. Returns libfabric's code. */
int ofi_av_insert(ofi_rail *rail, const void *addr, fi_addr_t *at);
/* Sets the address of operations. */
void ofi_ep_set_peer(ofi_rail *rail, ofi_ep *ep, fi_addr_t at);
/* Implements fi_close of all objects in the reverse order of opening: a queue closes only when nothing is bound to it.
 * *rc is the first error. Returns 0 and does nothing while endpoints or regions are open; *regions is the number of
 * open regions. */
int ofi_rail_close(ofi_rail *rail, uint32_t endpoints, uint32_t *regions, int *rc);

/* ---- mr.c ---- */

/* A range to register. GPU memory is named by address (dmabuf -1), or by a dmabuf in which the range begins at offset. */
typedef struct ofi_range {
    uint64_t addr, len;
    uint64_t key;    /* of host memory, if the provider does not choose keys; keys of GPU memory are random */
    uint8_t gpu;     /* memory of GPU `device` */
    int device, dmabuf;
    uint64_t offset;
    uint8_t peers_read, peers_write; /* what peers may do */
} ofi_range;

/* Both take the lock. -errno. */
int ofi_mr_open(ofi_rail *rail, const ofi_range *range, struct fid_mr **out, uint64_t *key, void **desc);
int ofi_mr_close(ofi_rail *rail, struct fid_mr *mr);

/* For the ops table: memory of the core; the caller holds the lock. */
int ofi_own_reg(gr_rail *base, void *buf, size_t len, void **mr, void **desc);
void ofi_own_unreg(gr_rail *base, void *mr);

/* Maps a return value of libfabric to a negative errno. libfabric's own codes (256 and up) become the nearest errno. */
int ofi_errno(long rc);

#endif
