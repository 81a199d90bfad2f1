/* Receives. A message with its header lands in a bounce buffer. The data is copied from there to the caller's receive. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fab.h"

static int post_bounce(fab_ep *ep)
{
    fab_dom *dom = ep->dom;
    size_t room = sizeof(fab_header) + (size_t)SW(dom->kind, msg_max);
    fab_op *op = fab_op_new(dom, FAB_BOUNCE);
    ssize_t rc = -FI_ENOMEM;
    if (!op)
        return -FI_ENOMEM;
    op->copy = malloc(room);
    op->ep = ep;
    if (op->copy)
        rc = fi_recv(ep->real, op->copy, room, NULL, FI_ADDR_UNSPEC, op);
    if (rc)
        fab_op_free(dom, op);
    return (int)rc;
}

static void unlink_recv(fab_ep *ep, fab_op *op)
{
    if (op->held_prev)
        op->held_prev->held_next = op->held_next;
    else
        ep->recvs = op->held_next;
    if (op->held_next)
        op->held_next->held_prev = op->held_prev;
    else
        ep->recvs_last = op->held_prev;
}

static int post(fab_ep *ep, fab_op *op, void **desc, fi_addr_t from, void *ctx)
{
    fab_dom *dom = ep->dom;
    uint64_t cookie = 0;
    int rc;
    op->any = from == FI_ADDR_UNSPEC || !(ep->caps & FI_DIRECTED_RECV);
    if (!op->any) {
        fab_peer *peer = fab_av_peer(ep->av, from);
        if (!peer || !peer->cookie) {
            fab_breach(dom->kind, "no_peer", "a receive from fi_addr %llu, which is not in the address vector", (unsigned long long)from);
            return -FI_EADDRNOTAVAIL;
        }
        cookie = peer->cookie;
    }
    if (!fab_descs(ep, op, desc, FI_RECV) || !fab_op_context(dom, op, ctx))
        return -FI_EINVAL;
    rc = post_bounce(ep);
    if (rc)
        return rc;
    op->header.source = cookie;
    op->held_prev = ep->recvs_last;
    if (ep->recvs_last)
        ep->recvs_last->held_next = op;
    else
        ep->recvs = op;
    ep->recvs_last = op;
    ep->receiving++;
    fab_page_post(dom->page, ep->idx, cookie, 1);
    return 0;
}

ssize_t fab_recv(fab_ep *ep, const struct iovec *iov, void **desc, size_t niov, fi_addr_t from, void *ctx)
{
    fab_dom *dom = ep->dom;
    fab_op *op = NULL;
    int rc = 0;
    fab_lock(dom);
    if (fab_is_closed(ep->state, dom->kind, "fi_recv")) {
        rc = -FI_EBADF;
    } else if (!ep->enabled) {
        fab_breach(dom->kind, "not_enabled", "fi_recv on an endpoint before fi_enable");
        rc = -FI_EOPBADSTATE;
    } else if (niov > (uint64_t)SW(dom->kind, iov) || niov > FAB_IOV) {
        fab_breach(dom->kind, "iov", "a receive with %zu buffers", niov);
        rc = -FI_EINVAL;
    } else if (ep->receiving >= ep->rx) {
        rc = -FI_EAGAIN;
    } else if (!(op = fab_op_new(dom, FAB_RECV))) {
        rc = -FI_ENOMEM;
    }
    if (!rc) {
        op->ep = ep;
        op->cq = ep->rx_cq;
        op->niov = niov;
        memcpy(op->iov, iov, niov * sizeof(*iov));
        rc = post(ep, op, desc, from, ctx);
        if (rc)
            fab_op_free(dom, op);
    }
    fab_unlock(dom);
    return rc;
}

static size_t scatter(const fab_op *op, const char *from, size_t len)
{
    size_t done = 0;
    for (size_t i = 0; i < op->niov && done < len; i++) {
        size_t n = op->iov[i].iov_len < len - done ? op->iov[i].iov_len : len - done;
        memcpy(op->iov[i].iov_base, from + done, n);
        done += n;
    }
    return done;
}

/* The sender took a receive of the page before the SEND: one of the peer (directed) or one for all peers. */
void fab_arrived(fab_dom *dom, fab_op *bounce, size_t len)
{
    fab_header h;
    fab_ep *ep = bounce->ep;
    fab_op *op = ep ? ep->recvs : NULL;
    memcpy(&h, bounce->copy, sizeof(h));
    while (op && (op->any ? h.directed : !h.directed || op->header.source != h.source))
        op = op->held_next;
    if (op && len == sizeof(h) + h.len) {
        size_t got = scatter(op, (const char *)bounce->copy + sizeof(h), h.len);
        unlink_recv(ep, op);
        if (got < h.len) {
            fab_breach(dom->kind, "truncated", "a message of %u bytes for a receive of %zu", h.len, got);
            fab_op_fail(dom, op, FAB_TRUNCATED);
        } else {
            fab_op_done(dom, op, 0, 0, got);
        }
    }
    if (!op)
        fprintf(stderr, "fabric: a message arrived, but the receive that its sender took is gone\n");
    fab_op_free(dom, bounce);
}

/* Cancels a receive, with the switch cancel. The bounce buffer stays posted in the real queue. */
ssize_t fab_cancel(fid_t fid, void *ctx)
{
    fab_ep *ep = FAB_OF(fab_ep, fid);
    fab_dom *dom = ep->dom;
    if (!SW(dom->kind, cancel)) {
        fab_breach(dom->kind, "cancel", "fi_cancel is not supported");
        return -FI_ENOSYS;
    }
    fab_lock(dom);
    for (fab_op *op = ep->recvs; op; op = op->held_next) {
        if (op->ctx != ctx)
            continue;
        unlink_recv(ep, op);
        fab_page_post(dom->page, ep->idx, op->header.source, -1);
        fab_op_done(dom, op, FI_ECANCELED, 0, 0);
        break;
    }
    fab_unlock(dom);
    return 0;
}
