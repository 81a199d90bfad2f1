/* Connections of iWARP: librdmacm, which is loaded, never linked, and only where a device needs it.
 *
 * A vb_cm is one rail's listener and event channel. It has no lock of its own: calls that take a vb_cm or an id are made one
 * at a time, but for vb_cm_connect, which may wait as long as TCP does (siw connects in the caller's name). Addresses are
 * IPv6, IPv4 ones mapped. Functions return 0 or a negative errno; *step names the call that failed.
 */
#ifndef GORAIL_VERBS_CM_H
#define GORAIL_VERBS_CM_H

#include <rdma/rdma_cma.h>

#include "verbs.h"

typedef struct vb_cm_lib {
    void *dl;
    struct rdma_event_channel *(*create_event_channel)(void);
    void (*destroy_event_channel)(struct rdma_event_channel *ch);
    int (*create_id)(struct rdma_event_channel *ch, struct rdma_cm_id **id, void *ctx, enum rdma_port_space ps);
    int (*destroy_id)(struct rdma_cm_id *id);
    int (*bind_addr)(struct rdma_cm_id *id, struct sockaddr *addr);
    int (*listen)(struct rdma_cm_id *id, int backlog);
    uint16_t (*get_src_port)(struct rdma_cm_id *id);
    int (*resolve_addr)(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int ms);
    int (*resolve_route)(struct rdma_cm_id *id, int ms);
    int (*connect)(struct rdma_cm_id *id, struct rdma_conn_param *param);
    int (*accept)(struct rdma_cm_id *id, struct rdma_conn_param *param);
    int (*reject)(struct rdma_cm_id *id, const void *data, uint8_t len);
    int (*get_cm_event)(struct rdma_event_channel *ch, struct rdma_cm_event **ev);
    int (*ack_cm_event)(struct rdma_cm_event *ev);
    const char *(*event_str)(enum rdma_cm_event_type type);
} vb_cm_lib;

/* Loads path once more. NULL: err says why. */
vb_cm_lib *vb_cm_load(const char *path, char *err, size_t err_len);

/* The name of the RDMA device that has the address. Implements rdma_bind_addr. */
int vb_cm_device(const vb_cm_lib *lib, const uint8_t ip[16], char name[IBV_SYSFS_NAME_MAX], const char **step);

typedef struct vb_cm {
    const vb_cm_lib *lib;
    struct rdma_event_channel *channel; /* its descriptor does not block */
    struct rdma_cm_id *listener;
    uint8_t ip[16];
    uint16_t port;
} vb_cm;

/* Listens on the first port of the range that is free; 0: the system chooses. */
int vb_cm_open(const vb_cm_lib *lib, const uint8_t ip[16], uint16_t first, uint16_t last, vb_cm **out, const char **step);
/* Without ids of connections. */
void vb_cm_close(vb_cm *cm);

enum { VB_CM_DATA = 16 }; /* bytes that a request carries: see cm.go */

enum { VB_CM_REQUEST, VB_CM_ADDR, VB_CM_ROUTE, VB_CM_UP, VB_CM_FAILED, VB_CM_LOST, VB_CM_OTHER };

typedef struct vb_cm_event {
    int kind, err; /* err: of VB_CM_FAILED, a positive errno */
    struct rdma_cm_id *id; /* of a VB_CM_REQUEST: a new one */
    const char *text;
    uint8_t reads;         /* of a VB_CM_REQUEST: READs that its sender answers at a time */
    uint8_t len;           /* of data, 0 when it is not VB_CM_DATA */
    uint8_t data[VB_CM_DATA];
} vb_cm_event;

/* The next event, acknowledged: 1, or 0 for none. */
int vb_cm_next(vb_cm *cm, vb_cm_event *ev);

/* A new id that looks for the way to an address; VB_CM_ADDR or VB_CM_FAILED tells. */
int vb_cm_dial(vb_cm *cm, const uint8_t ip[16], uint16_t port, int ms, struct rdma_cm_id **out, const char **step);
int vb_cm_route(vb_cm *cm, struct rdma_cm_id *id, int ms);
/* `in` READs of the peer's are answered at a time, `out` of ours are under way. Takes the queue pair to RTS. */
int vb_cm_connect(vb_cm *cm, struct rdma_cm_id *id, uint32_t qpn, uint8_t in, uint8_t out, const uint8_t data[VB_CM_DATA]);
int vb_cm_accept(vb_cm *cm, struct rdma_cm_id *id, uint32_t qpn, uint8_t in, uint8_t out);
/* Refuses a request, and destroys its id. */
void vb_cm_reject(vb_cm *cm, struct rdma_cm_id *id);
void vb_cm_destroy(vb_cm *cm, struct rdma_cm_id *id);

#endif
