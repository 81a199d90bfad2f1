/* Posting and polling: the ops table and its data. C, because the core calls it for each operation and each poll with
 * the rail's lock held. */
#include <poll.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdlib.h>
#include <string.h>

#include "ofi.h"

/* Implements fi_writemsg and fi_readmsg. WRITEs have FI_DELIVERY_COMPLETE if the provider offers it, unless they are
 * unsignaled. */
static int rma(gr_rail *base, void *opaque, int op, uint32_t n, const gr_seg *seg, gr_ctx *ctx)
{
    ofi_rail *rail = (ofi_rail *)base;
    ofi_ep *ep = opaque;
    struct iovec local[GR_MAX_IOV];
    struct fi_rma_iov remote[GR_MAX_IOV];
    void *desc[GR_MAX_IOV];
    union ofi_msg_rma msg;

    if (n == 0 || n > base->limit.iov_limit)
        return -FI_EINVAL;
    if (ep->peer == FI_ADDR_NOTAVAIL)
        return -FI_ENOTCONN;
    for (uint32_t i = 0; i < n; i++) {
        local[i] = (struct iovec){.iov_base = (void *)(uintptr_t)seg[i].laddr, .iov_len = seg[i].len};
        remote[i] = (struct fi_rma_iov){.addr = seg[i].raddr, .len = seg[i].len, .key = seg[i].rkey};
        desc[i] = seg[i].ldesc;
    }
    msg.v = (struct fi_msg_rma){
        .msg_iov = local,
        .desc = desc,
        .iov_count = n,
        .addr = ep->peer,
        .rma_iov = remote,
        .rma_iov_count = n,
        .context = ctx,
    };
    if (op == GR_READ)
        return ofi_errno(fi_readmsg(ep->ep, &msg.v, FI_COMPLETION));
    return ofi_errno(fi_writemsg(ep->ep, &msg.v, op == GR_WRITE_UNSIGNALED ? FI_COMPLETION : rail->done_flags));
}

/* Implements fi_sendmsg. */
static int send_msg(gr_rail *base, void *opaque, void *buf, size_t len, void *desc, int wake, gr_ctx *ctx)
{
    ofi_rail *rail = (ofi_rail *)base;
    ofi_ep *ep = opaque;
    struct iovec iov = {.iov_base = buf, .iov_len = len};
    union ofi_msg msg;

    (void)wake; /* in libfabric every message wakes the receiver */
    if (ep->peer == FI_ADDR_NOTAVAIL)
        return -FI_ENOTCONN;
    msg.v = (struct fi_msg){.msg_iov = &iov, .desc = &desc, .iov_count = 1, .addr = ep->peer, .context = ctx};
    return ofi_errno(fi_sendmsg(ep->ep, &msg.v, rail->done_flags));
}

/* Implements fi_recv. */
static int recv_msg(gr_rail *base, void *opaque, void *buf, size_t len, void *desc, gr_ctx *ctx)
{
    ofi_ep *ep = opaque;
    (void)base;
    return ofi_errno(fi_recv(ep->ep, buf, len, desc, FI_ADDR_UNSPEC, ctx));
}

/* Takes the failed completion at the head of the queue. Only its op_context, err and prov_errno are reliable. */
static int poll_error(ofi_rail *rail, gr_comp *out)
{
    union ofi_cq_err e;
    ssize_t rc;
    memset(&e, 0, sizeof(e));
    rc = fi_cq_readerr(rail->cq, &e.v, 0);
    if (rc < 0)
        return rc == -FI_EAGAIN ? 0 : ofi_errno(rc);
    if (rc == 0 || !e.v.op_context)
        return 0;
    *out = (gr_comp){.ctx = e.v.op_context, .err = e.v.err ? -ofi_errno(-e.v.err) : FI_EIO, .prov_err = e.v.prov_errno};
    return 1;
}

/* Implements fi_cq_read and fi_cq_readerr. Bounded: at most max completions and max calls. */
static int poll_cq(gr_rail *base, gr_comp *out, int max)
{
    ofi_rail *rail = (ofi_rail *)base;
    struct fi_cq_msg_entry entry[64];
    int n = 0;

    for (int calls = 0; n < max && calls < max; calls++) {
        int want = max - n < 64 ? max - n : 64;
        ssize_t rc = fi_cq_read(rail->cq, entry, (size_t)want);
        if (rc == -FI_EAGAIN)
            break;
        if (rc == -FI_EAVAIL) {
            int got = poll_error(rail, &out[n]);
            if (got < 0)
                return n ? n : got;
            n += got;
            continue;
        }
        if (rc < 0)
            return n ? n : ofi_errno(rc);
        for (ssize_t i = 0; i < rc; i++)
            if (entry[i].op_context)
                out[n++] = (gr_comp){.ctx = entry[i].op_context, .len = entry[i].len};
        if (rc < want)
            break;
    }
    return n;
}

/* Implements fi_trywait. epoll keeps an event that arrives between this call and the wait, and libfabric relies on level
 * triggering: a descriptor that stays readable gives no other edge, so its level is checked here. */
static int arm(gr_rail *base)
{
    ofi_rail *rail = (ofi_rail *)base;
    struct fid *fid = &rail->cq->fid;
    struct pollfd level = {.fd = base->wait_fd, .events = POLLIN};
    if (base->wait_fd < 0)
        return 0;
    return fi_trywait(rail->fabric, &fid, 1) != 0 || poll(&level, 1, 0) > 0;
}

/* Implements fi_close of the shared endpoint. If regions are bound to the endpoint they must close first, else they
 * close after it. */
static void shut(gr_rail *base)
{
    ofi_rail *rail = (ofi_rail *)base;
    if (rail->shared && !rail->endpoint_mr && fi_close(&rail->shared->fid) == 0)
        rail->shared = NULL;
}

const gr_rail_ops ofi_ops = {
    .rma = rma,
    .send = send_msg,
    .recv = recv_msg,
    .poll = poll_cq,
    .arm = arm,
    .reg = ofi_own_reg,
    .unreg = ofi_own_unreg,
    .shut = shut,
};

ofi_rail *ofi_rail_new(void)
{
    ofi_rail *rail = GR_ALLOC(ofi_rail, calloc(1, sizeof(*rail)));
    if (!rail)
        return NULL;
    gr_rail_init(&rail->base, &ofi_ops);
    rail->any.peer = FI_ADDR_NOTAVAIL;
    return rail;
}

void ofi_rail_free(ofi_rail *rail)
{
    pthread_mutex_destroy(&rail->base.mu);
    free(rail);
}

ofi_ep *ofi_ep_new(void)
{
    ofi_ep *ep = GR_ALLOC(ofi_endpoint, calloc(1, sizeof(*ep)));
    if (!ep)
        return NULL;
    ep->peer = FI_ADDR_NOTAVAIL;
    return ep;
}
