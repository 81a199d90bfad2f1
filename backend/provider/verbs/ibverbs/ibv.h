/* Functions of libibverbs that Go calls, as pointers. Every call goes through them. No object gets a Go context. */
#ifndef GORAIL_IBV_H
#define GORAIL_IBV_H

#include <errno.h>
#include <string.h>

#include "verbs.h"

/* A NULL member is an optional function that the loaded library is too old for. */
typedef struct vb_calls {
    vb_lib lib;

    struct ibv_device **(*get_device_list)(int *n);
    void (*free_device_list)(struct ibv_device **list);
    struct ibv_context *(*open_device)(struct ibv_device *dev);
    int (*close_device)(struct ibv_context *ctx);
    int (*query_device)(struct ibv_context *ctx, struct ibv_device_attr *attr);
    int (*query_port)(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr);
    int (*get_async_event)(struct ibv_context *ctx, struct ibv_async_event *ev);
    void (*ack_async_event)(struct ibv_async_event *ev);
    const char *(*event_type_str)(enum ibv_event_type ev);
    int (*fork_init)(void);

    struct ibv_pd *(*alloc_pd)(struct ibv_context *ctx);
    int (*dealloc_pd)(struct ibv_pd *pd);
    struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova, int fd,
                                    int access); /* rdma-core 34 (IBVERBS_1.12) */
    struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *ctx);
    int (*destroy_comp_channel)(struct ibv_comp_channel *ch);
    struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
} vb_calls;

/* Go cannot call function pointers, so each has a wrapper. */
static inline struct ibv_device **vb_get_device_list(const vb_calls *c, int *n) { return c->get_device_list(n); }
static inline void vb_free_device_list(const vb_calls *c, struct ibv_device **list) { c->free_device_list(list); }
static inline struct ibv_context *vb_open_device(const vb_calls *c, struct ibv_device *dev) { return c->open_device(dev); }
static inline int vb_close_device(const vb_calls *c, struct ibv_context *ctx) { return c->close_device(ctx); }
static inline int vb_query_device(const vb_calls *c, struct ibv_context *ctx, struct ibv_device_attr *attr) { return c->query_device(ctx, attr); }
static inline int vb_query_port(const vb_calls *c, struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr)
{
    return c->query_port(ctx, port, attr);
}
static inline int vb_get_async_event(const vb_calls *c, struct ibv_context *ctx, struct ibv_async_event *ev) { return c->get_async_event(ctx, ev); }
static inline void vb_ack_async_event(const vb_calls *c, struct ibv_async_event *ev) { c->ack_async_event(ev); }
static inline const char *vb_event_type_str(const vb_calls *c, enum ibv_event_type ev) { return c->event_type_str(ev); }
static inline void vb_fork_init(const vb_calls *c) { (void)(c->fork_init ? c->fork_init() : 0); }
static inline struct ibv_pd *vb_alloc_pd(const vb_calls *c, struct ibv_context *ctx) { return c->alloc_pd(ctx); }
static inline int vb_dealloc_pd(const vb_calls *c, struct ibv_pd *pd) { return c->dealloc_pd(pd); }
static inline struct ibv_mr *vb_reg_mr(const vb_calls *c, struct ibv_pd *pd, void *addr, size_t len, int access)
{
    return c->lib.reg_mr(pd, addr, len, access);
}
static inline struct ibv_mr *vb_reg_dmabuf_mr(const vb_calls *c, struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova, int fd, int access)
{
    return c->reg_dmabuf_mr(pd, offset, len, iova, fd, access);
}
static inline int vb_dereg_mr(const vb_calls *c, struct ibv_mr *mr) { return c->lib.dereg_mr(mr); }
static inline struct ibv_comp_channel *vb_create_comp_channel(const vb_calls *c, struct ibv_context *ctx) { return c->create_comp_channel(ctx); }
static inline int vb_destroy_comp_channel(const vb_calls *c, struct ibv_comp_channel *ch) { return c->destroy_comp_channel(ch); }
static inline struct ibv_qp *vb_create_qp(const vb_calls *c, struct ibv_pd *pd, struct ibv_qp_init_attr *attr) { return c->create_qp(pd, attr); }
static inline int vb_modify_qp(const vb_calls *c, struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) { return c->lib.modify_qp(qp, attr, mask); }
static inline int vb_destroy_qp(const vb_calls *c, struct ibv_qp *qp) { return c->lib.destroy_qp(qp); }

#endif
