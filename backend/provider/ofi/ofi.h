/* The C half of the libfabric provider, as its Go files and its own C files see it.
 *
 * One file per noun: guard.c (the host process round dlopen), loader.c (the library), info.c (what it offers and is asked),
 * rail.c (an opened device), endpoint.c, door.c (who may connect to it), sockets.c (what it forgets at its end), mr.c and ops.c
 * (posting and polling, the ops table of gr_provider.h).
 * libfabric is never linked: five symbols come from dlvsym, all else from the ops tables in its objects.
 */
#ifndef GORAIL_OFI_H
#define GORAIL_OFI_H

#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "gr_provider.h"

/* A loaded libfabric. It stays loaded and is never freed: its threads and atexit handlers may outlive us. */
typedef struct ofi_lib {
    void *dl;
    uint32_t version; /* fi_version() */
    uint32_t api;     /* what we ask for: min(version, newest we know) */
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
    void (*freeinfo)(struct fi_info *);
    struct fi_info *(*dupinfo)(const struct fi_info *);
    int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
    const char *(*strerror)(int);
} ofi_lib;

/* dlopen, dlvsym and the first fi_getinfo, which starts all providers (60-120 ms), with the host process guarded.
 * Names of the providers come back in names, separated by spaces. NULL: the reason is in err. One caller at a time. */
ofi_lib *ofi_load(const char *path, char *names, size_t names_len, char *err, size_t err_len);

/* State of the process that loading must not change. Between begin and end no other thread may be in here. */
typedef struct ofi_guard {
    struct { unsigned char raw[64]; int ok; } act[65];
    int set_env[2];
} ofi_guard;
void ofi_guard_begin(ofi_guard *guard);
void ofi_guard_end(ofi_guard *guard);

/* What is asked of a provider beyond FI_EP_RDM, FI_RMA and FI_MSG. */
enum { OFI_WANT_DELIVERY = 1, OFI_WANT_HMEM = 2 };

/* What the operator asks for; 0 is the provider's own choice. */
typedef struct ofi_asked {
    uint32_t tclass; /* FI_TC_* */
    uint32_t tx_depth, rx_depth;
    uint8_t thread_domain;
} ofi_asked;

/* Implements fi_getinfo; prov is the provider's full name. The list belongs to the caller (lib->freeinfo). */
int ofi_getinfo(ofi_lib *lib, const char *prov, int want, const ofi_asked *asked, struct fi_info **list);

/* Gives an entry CXI's key, which fi_domain will show to the device. */
int ofi_set_key(struct fi_info *info, uint32_t service, uint16_t vni);

void ofi_freeinfo(ofi_lib *lib, struct fi_info *list);
const char *ofi_strerror(ofi_lib *lib, int err);

/* One entry of a list, flattened for Go; the pointers live as long as the entry. */
typedef struct ofi_desc {
    const char *provider, *fabric, *domain, *nic;
    const void *src;
    size_t src_len;
    uint32_t protocol;
    uint64_t max_msg;
    uint64_t link_bps;
    uint64_t tx_depth, rx_depth;
    int has_pci, ip; /* ip: addresses are struct sockaddr */
    unsigned pci[4]; /* domain, bus, device, function */
} ofi_desc;
void ofi_describe(const struct fi_info *info, ofi_desc *out);

/* Deviations of a provider that no attribute tells (quirks.go). */
typedef struct ofi_quirks {
    uint8_t per_peer;   /* an endpoint for each peer, and closing it is a fence; else one endpoint for all */
    uint8_t no_trywait; /* fi_trywait never lets the caller block */
} ofi_quirks;

typedef struct ofi_caps {
    uint8_t delivery, virt_addr, prov_key, local_desc, endpoint_mr;
    uint8_t emulated_read, emulated_write; /* as far as the provider tells */
    uint8_t hmem; /* opened with FI_HMEM */
    int no_p2p;   /* the errno with which it refused to let the device alone move memory of GPUs; 0: it will */
    uint64_t key_size, max_send;
} ofi_caps;

/* An opened device. base comes first: gr_rail * and ofi_rail * are the same address. base.mu guards all of it. */
typedef struct ofi_rail {
    gr_rail base;
    ofi_lib *lib;
    struct fi_info *info; /* borrowed from Go for the rail's life */
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *shared; /* the endpoint of all peers, or NULL */
    ofi_caps caps;
    ofi_quirks quirks;
    uint64_t write_flags, send_flags;
    uint32_t cq_size; /* before opening: what is asked for, or 0 */
    uint64_t signal_tag; /* how the queue's own signal shows in wait_fd (no_trywait) */
    uint32_t open_eps, open_mrs;
    struct ofi_peer *peers;
    size_t addr_len;    /* of this rail's own addresses */
    struct ofi_ep *any; /* the shared endpoint as one without a peer, for receives */
    void *fds, *fds_locked; /* DIRs of the process's descriptors, for sockets.c: for who is `looking`, and under the lock (for door.c, too) */
    pthread_mutex_t look_mu; /* above base.mu; guards what follows */
    pthread_cond_t look_over;
    struct ofi_sockets *looked_for;
    int looking;
    struct ofi_ep *eps; /* all that are open, but the shared one */
    struct fi_info *bound; /* a copy of info for endpoints of a port of our choice, or NULL */
    uint16_t first_port, last_port, next_port; /* of that choice */
    uint32_t doors;     /* endpoints that admit their peer; see door.c */
    int reserve;        /* a descriptor for when the process has no more; -1: none */
    int no_door;        /* why a listening socket has no filter; 0: all have */
    uint64_t turned_away; /* connections reset for want of descriptors */
} ofi_rail;

/* What endpoints with a port of their own may listen on; 0: the system chooses. */
typedef struct ofi_ports {
    uint16_t first, last;
} ofi_ports;

/* fi_fabric, fi_domain, fi_av_open, fi_cq_open. On failure a negative errno, and *step names the call. cq_depth 0: as deep as
 * the provider makes it. */
int ofi_rail_open(ofi_lib *lib, struct fi_info *info, const ofi_quirks *quirks, const ofi_ports *ports, uint32_t cq_depth, ofi_rail **out,
                  const char **step);
/* -EBUSY while endpoints or regions are open; the rail is then still whole. */
int ofi_rail_close(ofi_rail *rail);

/* An address in the address vector. Some providers count how often it was inserted, EFA doesn't: so we do, and insert once. */
typedef struct ofi_peer {
    struct ofi_peer *next;
    fi_addr_t addr;
    uint32_t users;
    size_t len;
    unsigned char bytes[];
} ofi_peer;

/* The `ep` of the ops table: one peer. */
typedef struct ofi_ep {
    struct fid_ep *ep;
    fi_addr_t peer; /* where operations go; FI_ADDR_NOTAVAIL until connected */
    ofi_peer *at;   /* its place in the address vector */
    struct ofi_ep *next, *prev; /* rail->eps */
    struct sockaddr_storage own; /* where it listens */
    int listener;   /* the descriptor, libfabric's; -1: none, or it has no filter */
    uint8_t open;   /* the listener admits the peer */
    uint8_t unswept; /* it does no more, and what it had admitted has not been looked at */
} ofi_ep;

enum { OFI_ADDR_MAX = 256 };

/* fi_endpoint, fi_ep_bind, fi_enable, fi_getname; addr takes OFI_ADDR_MAX bytes. Takes the rail's lock, as all below. */
int ofi_ep_open(ofi_rail *rail, ofi_ep **out, void *addr, size_t *addr_len, const char **step);
int ofi_ep_connect(ofi_rail *rail, ofi_ep *ep, const void *addr);
int ofi_ep_close(ofi_rail *rail, ofi_ep *ep);
/* For rail.c: an enabled endpoint; the caller holds the lock. */
int ofi_ep_make(ofi_rail *rail, struct fid_ep **out, const char **step);

/* A network whose addresses may connect: an address's first bits. */
typedef struct ofi_net {
    uint8_t ip[16]; /* of IPv4 the first four */
    uint8_t v6, bits;
} ofi_net;

/* door.c. Lets a listening socket take connections of these networks alone; -errno. */
int ofi_door_filter(int fd, const ofi_net *nets, int n);
/* The lowest free descriptor, which a listener may get; the caller holds the lock, here and in the next. */
int ofi_door_hint(const ofi_rail *rail);
/* Finds the endpoint's listening socket, which admits nobody from then on. */
void ofi_door_fit(ofi_rail *rail, ofi_ep *ep, const void *addr, size_t len, int hint);
/* Nobody is admitted any more: the peer's first message is in, or it does not come. */
void ofi_door_shut(ofi_rail *rail, ofi_ep *ep);
/* When libfabric has something to do that it may not be able to: resets connections for which there is no descriptor. */
void ofi_door_relieve(ofi_rail *rail);
/* These are admitted. Takes the lock; -errno. */
int ofi_door_admit(ofi_rail *rail, ofi_ep *ep, const ofi_net *nets, int n);
/* Breaks connections of endpoints that were shut since the last time, but for the peers'. How many, or a negative errno: do it again. Takes the
 * lock. */
int ofi_door_sweep(ofi_rail *rail);

/* sockets.c. Both of a family, and the same address and port. */
bool ofi_same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b);
/* The socket listens. */
bool ofi_listens(int fd);
/* How many bytes of a connection libfabric has read; 0 where nobody knows. */
uint64_t ofi_bytes_read(int fd);

/* sockets.c, before fi_close of an endpoint: finds its connections, without the lock; then breaks them, with it, and frees what was found.
 * Completions stay in the queue. The folder of the process's descriptors is opened with the rail, as there may be none left later. */
typedef struct ofi_sockets ofi_sockets;
void ofi_find_connections(ofi_rail *rail, const ofi_ep *ep, ofi_sockets **out);
void ofi_break_connections(ofi_rail *rail, ofi_sockets *all);

int ofi_mr_open(ofi_rail *rail, uint64_t addr, uint64_t len, uint64_t key, struct fid_mr **out, uint64_t *out_key,
                void **desc);
/* The same for memory of a GPU, by its number: by address (fd -1), or of a dmabuf in which the range begins at offset. Keys are the provider's, or
 * of those that are the rail's own. */
int ofi_mr_open_gpu(ofi_rail *rail, uint64_t addr, uint64_t len, int device, int fd, uint64_t offset, struct fid_mr **out, uint64_t *out_key,
                    void **desc);
int ofi_mr_close(ofi_rail *rail, struct fid_mr *mr);

extern const gr_rail_ops ofi_ops;

/* A negative errno from what libfabric returned: its own codes (256 and up) become the nearest errno. */
int ofi_errno(long rc);

#endif
