/* The flat C boundary between the shim (cshim/) and the Go backend (plugin/). All types here are plain data.
 *
 * Ownership: gr_bytes is borrowed for the call; gr_owned is malloc'ed by the callee and freed by the caller.
 * Every exported function returns a nixl_status_t value (0 success, 1 in progress, negative: an error) and never panics.
 * Every function may be called from any thread at any time.
 */
#ifndef GORAIL_H
#define GORAIL_H

#include <stddef.h>
#include <stdint.h>

#include "../backend/include/gr_nixl.h" /* GR_SUCCESS, GR_ERR_*, GR_MEM_*, GR_READ, GR_WRITE */

typedef struct gr_bytes {
    const void *ptr;
    uint64_t len;
} gr_bytes;

typedef struct gr_owned {
    void *ptr;
    uint64_t len;
} gr_owned;

/* One element of a descriptor list, with the memory layout of nixlMetaDesc. md points to the shim's metadata object. The
 * region id (uint64_t) is at offset GR_MD_REGION of that object. */
typedef struct gr_desc {
    uint64_t addr;
    uint64_t len;
    uint64_t dev;
    const void *md;
} gr_desc;

enum { GR_MD_REGION = 16 };

/* A descriptor with its metadata blob (nixlBlobDesc). */
typedef struct gr_region_args {
    uint64_t addr;
    uint64_t len;
    uint64_t dev;
    int32_t mem; /* GR_MEM_* */
    gr_bytes blob;
} gr_region_args;

/* Bytes of the largest blob that a registration has for peers. */
enum { GR_REGION_BLOB = 96 };

/* A registration: its id, and the blob that peers load. The same range has the same blob each time. */
typedef struct gr_registered {
    uint64_t region;
    uint32_t len; /* bytes of the blob */
    uint8_t blob[GR_REGION_BLOB];
} gr_registered;

typedef struct gr_param {
    gr_bytes key;
    gr_bytes value;
} gr_param;

typedef struct gr_create_args {
    gr_bytes agent;  /* localAgent */
    gr_bytes type;   /* backend name that NIXL requested */
    gr_param *params;
    uint64_t nparams;
    gr_bytes lack; /* what the process lacks, so that no engine may start; empty: nothing */
} gr_create_args;

typedef struct gr_created {
    uint64_t engine; /* handle for all other calls */
    void *core;      /* gr_core*: the fast path, see backend/core/gr_core.h; valid until gorail_destroy returns */
    gr_owned conn;   /* connection blob, immutable */
    int32_t vram;    /* a driver for GPU memory is present */
} gr_created;

typedef struct gr_prep_args {
    int32_t op; /* 0 READ, 1 WRITE: nixl_xfer_op_t */
    gr_desc *local;
    uint64_t nlocal;
    gr_desc *remote;
    uint64_t nremote;
    gr_bytes peer;
} gr_prep_args;

typedef struct gr_prepped {
    uint64_t xfer; /* handle {index, generation} */
    void *slot;    /* gr_xfer*: read by gr_check, never unmapped while the engine lives */
} gr_prepped;

typedef struct gr_notif_args {
    int32_t has; /* 0: no notification */
    gr_bytes msg; /* may be empty */
} gr_notif_args;

typedef struct gr_estimate {
    int64_t duration_us;
    int64_t margin_us;
} gr_estimate;

/* Describes the NIXL that loads the plugin, as found by the shim. */
typedef struct gr_host_args {
    gr_bytes nixl;       /* NIXL's library and version */
    gr_bytes releases;   /* the NIXL releases with a supported table of virtual functions */
    gr_bytes compared;   /* the stock plugin compared with, or why there is none */
    gr_bytes difference; /* the first difference of its table from the supported one */
    gr_bytes added;      /* its functions beyond the supported table, which the shim answers */
    int32_t served;
} gr_host_args;

/* Why the shim itself refuses a call. */
enum {
    GR_REFUSED_MEMORY,  /* an allocation failed */
    GR_REFUSED_ENGINE,  /* createBackend failed, and the engine is used all the same */
    GR_REFUSED_ORDER,   /* a call before getConnInfo, or of an unknown function: NIXL calls by another table of functions */
    GR_REFUSED_LAYOUT,  /* the end of an engine before any call: NIXL has the members of its base class elsewhere */
    GR_REFUSED_REGION,  /* deregistered or unloaded already */
    GR_REFUSED_REQUEST, /* released already */
    GR_REFUSED_NULL,    /* no transfer's handle */
    GR_REFUSED_VIEW,    /* prepMemView */
    GR_REFUSED_COUNT
};

/* Exported by the Go half (prototypes in cgo's header):
 *
 *  int32_t gorail_create(gr_create_args *, gr_created *);
 *  int32_t gorail_destroy(uint64_t engine);                            waits at most 0.2 s until accepted notifications are sent
 *  int32_t gorail_register(uint64_t engine, gr_region_args *, gr_registered *);  registerMem, getPublicData
 *  int32_t gorail_deregister(uint64_t engine, uint64_t region);
 *  int32_t gorail_load_conn(uint64_t engine, gr_bytes peer, gr_bytes blob);     loadRemoteConnInfo
 *  int32_t gorail_load_remote(uint64_t engine, gr_bytes peer, gr_region_args *, uint64_t *region);  loadRemoteMD
 *  int32_t gorail_unload_remote(uint64_t engine, uint64_t region);
 *  int32_t gorail_connect(uint64_t engine, gr_bytes peer);
 *  int32_t gorail_disconnect(uint64_t engine, gr_bytes peer);
 *  int32_t gorail_prep(uint64_t engine, gr_prep_args *, gr_prepped *);
 *  int32_t gorail_post(uint64_t engine, uint64_t xfer, gr_notif_args *);
 *  int32_t gorail_release(uint64_t engine, uint64_t xfer);
 *  int32_t gorail_estimate(uint64_t engine, uint64_t xfer, gr_estimate *);
 *  int32_t gorail_notify(uint64_t engine, gr_bytes peer, gr_bytes msg);         genNotif
 *  int32_t gorail_query_mem(uint64_t engine, gr_region_args *, int32_t *known);
 *  int32_t gorail_options(gr_bytes file, gr_owned *table);     "name\0default\0name\0default\0...": get_backend_options of the
 *                                                             plugin loaded from file; the file may have another backend's name
 *  int32_t gorail_vram(int32_t *yes);                          reports whether a driver for GPU memory is present; initializes nothing
 *  int32_t gorail_version(gr_owned *version);
 *  int32_t gorail_refused(gr_bytes call, int32_t why);         logs the shim's own error GR_REFUSED_* and returns its status
 *  int32_t gorail_host(gr_host_args *);                        logs an unsupported NIXL, or the plugin that NIXL was compared with
 *
 * gr_bytes parameters above are passed by pointer (gr_bytes *) in the real prototypes.
 */

#endif
