/* Checks at the posting of an operation. */
#include <stdlib.h>
#include <string.h>

#include "fab.h"

static size_t total(const struct iovec *iov, size_t n)
{
    size_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += iov[i].iov_len;
    return sum;
}

/* The region of GPU memory that contains this address, or NULL. */
static fab_mr *of_gpu(fab_dom *dom, uint64_t at)
{
    for (uint32_t i = 0; i < dom->mr_next; i++)
        if (dom->mr[i] && dom->mr[i]->at && at >= dom->mr[i]->base && at - dom->mr[i]->base < dom->mr[i]->len)
            return dom->mr[i];
    return NULL;
}

/* Checks a local buffer's descriptors. Each must be of an open region that contains the buffer and has the access. Only FI_MR_LOCAL
 * needs a descriptor for host memory; FI_MR_HMEM needs one for GPU memory. Replaces a GPU address by its address in this process. */
bool fab_descs(fab_ep *ep, fab_op *op, void **desc, uint64_t access)
{
    fab_dom *dom = ep->dom;
    if (!SW(dom->kind, mr_local) && !dom->hmem)
        return true;
    for (size_t i = 0; i < op->niov; i++) {
        uint64_t d = desc ? (uint64_t)(uintptr_t)desc[i] : 0, at = (uint64_t)(uintptr_t)op->iov[i].iov_base;
        uint32_t index = (uint32_t)d;
        fab_mr *mr = d && index < dom->mr_next ? dom->mr[index] : NULL;
        const char *why = NULL;
        if (!op->iov[i].iov_len || (!SW(dom->kind, mr_local) && !(mr && mr->at) && !of_gpu(dom, at)))
            continue;
        if (!d)
            why = "no descriptor";
        else if (!mr || mr->salt != (uint32_t)(d >> 32))
            why = "the descriptor is not of an open region";
        else if (at < mr->base || op->iov[i].iov_len > mr->len || at - mr->base > mr->len - op->iov[i].iov_len)
            why = "the buffer is outside the descriptor's region";
        else if ((mr->access & access) != access)
            why = "the region was registered without this access";
        if (why) {
            fab_breach(dom->kind, "desc", "local buffer %zu: %s", i, why);
            return false;
        }
        op->mr[i] = mr;
        mr->users++;
        if (mr->at)
            op->iov[i].iov_base = mr->at + (at - mr->base);
    }
    return true;
}

static int refuse(fab_dom *dom, const char *rule, int rc, uint64_t have, uint64_t most)
{
    fab_breach(dom->kind, rule, "got %llu, limit %llu", (unsigned long long)have, (unsigned long long)most);
    return rc;
}

static int check_limits(fab_dom *dom, int kind, size_t niov, size_t nrma, size_t len, size_t remote, uint64_t flags)
{
    if (flags & FI_REMOTE_CQ_DATA)
        return refuse(dom, "imm", -FI_EINVAL, 1, 0);
    if (niov > (uint64_t)SW(dom->kind, iov) || niov > FAB_IOV)
        return refuse(dom, "iov", -FI_EINVAL, niov, (uint64_t)SW(dom->kind, iov));
    if (kind == FAB_SEND) {
        if (len > (uint64_t)SW(dom->kind, msg_max))
            return refuse(dom, "msg_size", -FI_EMSGSIZE, len, (uint64_t)SW(dom->kind, msg_max));
    } else {
        if (!nrma || nrma > (uint64_t)SW(dom->kind, rma_iov) || nrma > FAB_IOV)
            return refuse(dom, "rma_iov", -FI_EINVAL, nrma, (uint64_t)SW(dom->kind, rma_iov));
        if (len > (uint64_t)SW(dom->kind, rma_max))
            return refuse(dom, "rma_size", -FI_EMSGSIZE, len, (uint64_t)SW(dom->kind, rma_max));
        if (len != remote)
            return refuse(dom, "lengths", -FI_EINVAL, len, remote);
    }
    if ((flags & FI_INJECT) && len > (uint64_t)SW(dom->kind, inject))
        return refuse(dom, "inject_size", -FI_EMSGSIZE, len, (uint64_t)SW(dom->kind, inject));
    return 0;
}

/* Copies the data, because the operation reads it after the caller may reuse the buffer. */
static int keep_copy(fab_op *op)
{
    char *to = op->copy = malloc(op->len ? op->len : 1);
    if (!to)
        return -FI_ENOMEM;
    for (size_t i = 0; i < op->niov; i++) {
        if (op->iov[i].iov_len)
            memcpy(to, op->iov[i].iov_base, op->iov[i].iov_len);
        to += op->iov[i].iov_len;
    }
    return 0;
}

static int prepare(fab_ep *ep, fab_op *op, void **desc, void *ctx, uint64_t flags)
{
    static const uint64_t access[] = {[FAB_WRITE] = FI_WRITE, [FAB_READ] = FI_READ, [FAB_SEND] = FI_SEND};
    const bool early = op->kind == FAB_WRITE && !(flags & FI_DELIVERY_COMPLETE), inject = (flags & FI_INJECT) != 0;
    fab_dom *dom = ep->dom;
    int64_t most = early ? SW(dom->kind, late) : SW(dom->kind, hold);
    for (size_t i = 0; inject && dom->hmem && i < op->niov; i++)
        if (of_gpu(dom, (uint64_t)(uintptr_t)op->iov[i].iov_base)) {
            fab_breach(dom->kind, "desc", "an injected operation has GPU memory");
            return -FI_EINVAL;
        }
    if (!inject && !fab_descs(ep, op, desc, access[op->kind]))
        return -FI_EINVAL;
    if ((early || inject) && keep_copy(op))
        return -FI_ENOMEM;
    if (op->silent)
        op->ctx = NULL;
    else if (!fab_op_context(dom, op, ctx))
        return -FI_EINVAL;
    op->number = ++dom->posted;
    if ((int64_t)op->number == SW(dom->kind, fail_at))
        op->fail = (int)SW(dom->kind, fail_errno);
    if (op->kind == FAB_SEND && SW(dom->kind, fail_sends) && fab_next_random(&dom->fail_random) % (uint64_t)SW(dom->kind, fail_sends) == 0) {
        op->fail = (int)SW(dom->kind, fail_errno);
        op->lands = SW(dom->kind, fail_lands) && fab_next_random(&dom->fail_random) & 1;
    }
    op->due = SW(dom->kind, shuffle) ? (uint32_t)(fab_random(dom) % (uint64_t)(most + 1)) : 0;
    ep->sending += !op->silent;
    fab_op_hold(dom, op);
    if (early && !op->fail && !op->silent)
        fab_op_done(dom, op, 0, 0, op->len);
    return 0;
}

static ssize_t post(fab_ep *ep, int kind, const struct iovec *iov, void **desc, size_t niov, fi_addr_t addr, const struct fi_rma_iov *rma,
                    size_t nrma, void *ctx, uint64_t flags)
{
    fab_dom *dom = ep->dom;
    fab_peer *peer;
    fab_op *op;
    size_t remote = 0;
    int rc;
    if (fab_is_closed(ep->state, dom->kind, "an operation"))
        return -FI_EBADF;
    if (!ep->enabled) {
        fab_breach(dom->kind, "not_enabled", "an operation on an endpoint before fi_enable");
        return -FI_EOPBADSTATE;
    }
    for (size_t i = 0; i < nrma; i++)
        remote += rma[i].len;
    rc = check_limits(dom, kind, niov, nrma, total(iov, niov), remote, flags);
    if (rc)
        return rc;
    peer = fab_av_peer(ep->av, addr);
    if (!peer || !peer->cookie) {
        fab_breach(dom->kind, "no_peer", "an operation to fi_addr %llu, which is not in the address vector", (unsigned long long)addr);
        return -FI_EADDRNOTAVAIL;
    }
    if (ep->sending >= ep->tx)
        return -FI_EAGAIN;
    op = fab_op_new(dom, kind);
    if (!op)
        return -FI_ENOMEM;
    op->ep = ep;
    op->cq = ep->tx_cq;
    op->peer = peer;
    peer->users++;
    op->niov = niov;
    op->nrma = nrma;
    op->len = total(iov, niov);
    op->silent = (flags & FAB_QUIET) != 0;
    memcpy(op->iov, iov, niov * sizeof(*iov));
    if (nrma)
        memcpy(op->rma, rma, nrma * sizeof(*rma));
    rc = prepare(ep, op, desc, ctx, flags);
    if (rc) {
        fab_op_free(dom, op);
        return rc;
    }
    fab_pump(dom, false);
    if (dom->nheld)
        fab_wake(dom);
    return 0;
}

ssize_t fab_post(fab_ep *ep, int kind, const struct iovec *iov, void **desc, size_t niov, fi_addr_t addr, const struct fi_rma_iov *rma, size_t nrma,
                 void *ctx, uint64_t flags)
{
    ssize_t rc;
    fab_lock(ep->dom);
    rc = post(ep, kind, iov, desc, niov, addr, rma, nrma, ctx, flags);
    fab_unlock(ep->dom);
    return rc;
}
