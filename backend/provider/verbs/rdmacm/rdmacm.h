/* Functions of librdmacm, as pointers. Every call goes through them. Ids have no context, so the library keeps no Go
 * pointer. */
#ifndef GORAIL_RDMACM_H
#define GORAIL_RDMACM_H

#include <rdma/rdma_cma.h>
#include <stdint.h>

typedef struct cm_calls {
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
} cm_calls;

/* Go cannot call function pointers, so each has a wrapper. */
static inline struct rdma_event_channel *cm_create_event_channel(const cm_calls *c) { return c->create_event_channel(); }
static inline void cm_destroy_event_channel(const cm_calls *c, struct rdma_event_channel *ch) { c->destroy_event_channel(ch); }
static inline int cm_create_id(const cm_calls *c, struct rdma_event_channel *ch, struct rdma_cm_id **id)
{
    return c->create_id(ch, id, NULL, RDMA_PS_TCP);
}
static inline int cm_destroy_id(const cm_calls *c, struct rdma_cm_id *id) { return c->destroy_id(id); }
static inline int cm_bind_addr(const cm_calls *c, struct rdma_cm_id *id, void *addr) { return c->bind_addr(id, addr); }
static inline int cm_listen(const cm_calls *c, struct rdma_cm_id *id, int backlog) { return c->listen(id, backlog); }
static inline uint16_t cm_get_src_port(const cm_calls *c, struct rdma_cm_id *id) { return c->get_src_port(id); }
static inline int cm_resolve_addr(const cm_calls *c, struct rdma_cm_id *id, void *dst, int ms) { return c->resolve_addr(id, NULL, dst, ms); }
static inline int cm_resolve_route(const cm_calls *c, struct rdma_cm_id *id, int ms) { return c->resolve_route(id, ms); }
static inline int cm_reject(const cm_calls *c, struct rdma_cm_id *id) { return c->reject(id, NULL, 0); }
static inline int cm_get_cm_event(const cm_calls *c, struct rdma_event_channel *ch, struct rdma_cm_event **ev) { return c->get_cm_event(ch, ev); }
static inline int cm_ack_cm_event(const cm_calls *c, struct rdma_cm_event *ev) { return c->ack_cm_event(ev); }

/* C fills in the parameters, because they contain a pointer to Go memory: the data. */
static inline int cm_connect(const cm_calls *c, struct rdma_cm_id *id, struct rdma_conn_param p, const void *data, uint8_t len)
{
    p.private_data = data;
    p.private_data_len = len;
    return c->connect(id, &p);
}
static inline int cm_accept(const cm_calls *c, struct rdma_cm_id *id, struct rdma_conn_param p) { return c->accept(id, &p); }

#endif
