/* The ops tables of messages and RMA. Every form of a call becomes fab_post or fab_recv. */
#include "fab.h"

static uint64_t flags_of(fab_ep *ep) { return ep->tx_flags; }

static ssize_t recv_one(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t from, void *ctx)
{
    struct iovec iov = {.iov_base = buf, .iov_len = len};
    return fab_recv(FAB_OF(fab_ep, fid), &iov, &desc, 1, from, ctx);
}

static ssize_t recv_v(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t n, fi_addr_t from, void *ctx)
{
    return fab_recv(FAB_OF(fab_ep, fid), iov, desc, n, from, ctx);
}

static ssize_t recv_msg(struct fid_ep *fid, const struct fi_msg *m, uint64_t flags)
{
    (void)flags;
    return fab_recv(FAB_OF(fab_ep, fid), m->msg_iov, m->desc, m->iov_count, m->addr, m->context);
}

static ssize_t send_v(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t n, fi_addr_t to, void *ctx)
{
    fab_ep *ep = FAB_OF(fab_ep, fid);
    return fab_post(ep, FAB_SEND, iov, desc, n, to, NULL, 0, ctx, flags_of(ep));
}

static ssize_t send_one(struct fid_ep *fid, const void *buf, size_t len, void *desc, fi_addr_t to, void *ctx)
{
    struct iovec iov = {.iov_base = (void *)buf, .iov_len = len};
    return send_v(fid, &iov, &desc, 1, to, ctx);
}

static ssize_t send_msg(struct fid_ep *fid, const struct fi_msg *m, uint64_t flags)
{
    return fab_post(FAB_OF(fab_ep, fid), FAB_SEND, m->msg_iov, m->desc, m->iov_count, m->addr, NULL, 0, m->context, flags);
}

static ssize_t send_inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t to)
{
    struct iovec iov = {.iov_base = (void *)buf, .iov_len = len};
    return fab_post(FAB_OF(fab_ep, fid), FAB_SEND, &iov, NULL, 1, to, NULL, 0, NULL, FI_INJECT | FAB_QUIET);
}

static ssize_t send_data(struct fid_ep *fid, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t to, void *ctx)
{
    struct iovec iov = {.iov_base = (void *)buf, .iov_len = len};
    (void)data;
    return fab_post(FAB_OF(fab_ep, fid), FAB_SEND, &iov, &desc, 1, to, NULL, 0, ctx, FI_REMOTE_CQ_DATA);
}

struct fi_ops_msg fab_msg_ops = {
    .size = sizeof(struct fi_ops_msg),
    .recv = recv_one,
    .recvv = recv_v,
    .recvmsg = recv_msg,
    .send = send_one,
    .sendv = send_v,
    .sendmsg = send_msg,
    .inject = send_inject,
    .senddata = send_data,
};

static ssize_t rma(struct fid_ep *fid, int kind, const struct iovec *iov, void **desc, size_t n, fi_addr_t to, uint64_t addr, uint64_t key, void *ctx,
                   uint64_t flags)
{
    struct fi_rma_iov remote = {.addr = addr, .key = key};
    for (size_t i = 0; i < n; i++)
        remote.len += iov[i].iov_len;
    return fab_post(FAB_OF(fab_ep, fid), kind, iov, desc, n, to, &remote, 1, ctx, flags);
}

static ssize_t read_one(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t to, uint64_t addr, uint64_t key, void *ctx)
{
    struct iovec iov = {.iov_base = buf, .iov_len = len};
    return rma(fid, FAB_READ, &iov, &desc, 1, to, addr, key, ctx, 0);
}

static ssize_t read_v(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t n, fi_addr_t to, uint64_t addr, uint64_t key, void *ctx)
{
    return rma(fid, FAB_READ, iov, desc, n, to, addr, key, ctx, 0);
}

static ssize_t any_msg(struct fid_ep *fid, int kind, const struct fi_msg_rma *m, uint64_t flags)
{
    return fab_post(FAB_OF(fab_ep, fid), kind, m->msg_iov, m->desc, m->iov_count, m->addr, m->rma_iov, m->rma_iov_count, m->context, flags);
}

static ssize_t read_msg(struct fid_ep *fid, const struct fi_msg_rma *m, uint64_t flags) { return any_msg(fid, FAB_READ, m, flags); }

static ssize_t write_v(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t n, fi_addr_t to, uint64_t addr, uint64_t key, void *ctx)
{
    return rma(fid, FAB_WRITE, iov, desc, n, to, addr, key, ctx, flags_of(FAB_OF(fab_ep, fid)));
}

static ssize_t write_one(struct fid_ep *fid, const void *buf, size_t len, void *desc, fi_addr_t to, uint64_t addr, uint64_t key, void *ctx)
{
    struct iovec iov = {.iov_base = (void *)buf, .iov_len = len};
    return write_v(fid, &iov, &desc, 1, to, addr, key, ctx);
}

static ssize_t write_msg(struct fid_ep *fid, const struct fi_msg_rma *m, uint64_t flags) { return any_msg(fid, FAB_WRITE, m, flags); }

static ssize_t write_inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t to, uint64_t addr, uint64_t key)
{
    struct iovec iov = {.iov_base = (void *)buf, .iov_len = len};
    return rma(fid, FAB_WRITE, &iov, NULL, 1, to, addr, key, NULL, FI_INJECT | FAB_QUIET);
}

static ssize_t write_data(struct fid_ep *fid, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t to, uint64_t addr, uint64_t key,
                          void *ctx)
{
    struct iovec iov = {.iov_base = (void *)buf, .iov_len = len};
    (void)data;
    return rma(fid, FAB_WRITE, &iov, &desc, 1, to, addr, key, ctx, FI_REMOTE_CQ_DATA);
}

struct fi_ops_rma fab_rma_ops = {
    .size = sizeof(struct fi_ops_rma),
    .read = read_one,
    .readv = read_v,
    .readmsg = read_msg,
    .write = write_one,
    .writev = write_v,
    .writemsg = write_msg,
    .inject = write_inject,
    .writedata = write_data,
};
