/* Posting and polling. The core holds the rail's lock around every call here. Each call takes the fabric's mutex. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"

/* A peer without an endpoint is EAGAIN for ever, as with libfabric's tcp. */
static int admit(fake_rail *rail, fake_ep *ep)
{
    rail->posted++;
    if (!ep->peer)
        return -ENOTCONN;
    if ((rail->script.eagain_every && rail->posted % rail->script.eagain_every == 0) || ep->tx_out >= rail->config.tx_depth ||
        !fake_ep_find(rail->fabric, ep->peer)) {
        rail->count.eagain++;
        return -EAGAIN;
    }
    return 0;
}

int fake_check_desc(fake_rail *rail, uint64_t addr, uint64_t len, void *desc)
{
    const fake_mr *mr = desc;
    if (!rail->config.local_desc)
        return 0;
    if (!mr || fake_mr_find(rail, mr->key) != mr || addr < mr->addr || addr - mr->addr > mr->len || len > mr->len - (addr - mr->addr))
        return -EINVAL;
    return 0;
}

static void enqueue(fake_op *op, fake_op **head, fake_op **tail)
{
    op->next = NULL;
    op->prev = *tail;
    if (*tail)
        (*tail)->next = op;
    else
        *head = op;
    *tail = op;
}

void fake_flush(fake_rail *rail)
{
    fake_fabric *fabric = rail->fabric;
    while (rail->waiting) {
        fake_op *op = rail->waiting;
        rail->waiting = op->next;
        enqueue(op, &fabric->head, &fabric->tail);
        fake_ep *target = fake_ep_find(fabric, op->target);
        fake_signal(rail);
        if (target)
            fake_signal(target->rail);
    }
    rail->waiting_tail = NULL;
    rail->base.gathered = 0;
}

static void flush(gr_rail *base)
{
    fake_rail *rail = (fake_rail *)base;
    pthread_mutex_lock(&rail->fabric->mu);
    fake_flush(rail);
    pthread_mutex_unlock(&rail->fabric->mu);
}

void fake_flushed(const fake_rail *rail)
{
    if (!rail->base.gathered)
        return;
    fprintf(stderr, "fake fabric: the rail was unlocked with posts that wait for flush\n");
    abort();
}

int fake_post(fake_rail *rail, fake_ep *ep, fake_op *op, gr_ctx *ctx)
{
    int rc = admit(rail, ep);
    if (rc)
        return rc;
    memset(ctx->scratch, 0xa5, sizeof(ctx->scratch)); /* the provider owns scratch until completion: overwriting it exposes
                                                       * other users */
    op->ep = ep;
    op->ctx = ctx;
    op->target = ep->peer;
    op->wait = rail->script.delay;
    if (rail->script.fail_at && --rail->script.fail_at == 0) {
        op->err = rail->script.fail_errno;
        op->breaks = rail->script.fail_breaks;
    }
    if (op->kind == FAKE_SEND && rail->script.fail_sends && fake_random(&rail->send_rng) % rail->script.fail_sends == 0) {
        op->err = rail->script.fail_errno;
        op->lands = rail->script.fail_lands && fake_random(&rail->send_rng) & 1;
    }
    if (ep->broken)
        op->err = ECANCELED;
    enqueue(op, &rail->waiting, &rail->waiting_tail);
    rail->base.gathered = 1;
    ep->tx_out++;
    if (op->kind == FAKE_SEND)
        rail->count.sends++;
    else
        rail->count.posts++;
    if (!rail->config.gather)
        fake_flush(rail);
    return 0;
}

static int post(fake_rail *rail, fake_ep *ep, int kind, uint32_t n, const gr_seg *seg, gr_ctx *ctx)
{
    fake_op *op;
    uint64_t len = 0;
    int rc = n && n <= rail->config.iov_limit ? 0 : -EINVAL;

    for (uint32_t i = 0; !rc && i < n; i++) {
        rc = fake_check_desc(rail, seg[i].laddr, seg[i].len, seg[i].ldesc);
        len += seg[i].len;
    }
    if (!rc && len > (kind == FAKE_SEND ? rail->config.msg_size : rail->config.max_msg))
        rc = -EMSGSIZE;
    if (rc)
        return rc;
    op = calloc(1, sizeof(*op));
    if (!op)
        return -ENOMEM;
    op->kind = kind == GR_WRITE_UNSIGNALED || kind == GR_WRITE_FLUSHED ? GR_WRITE : kind;
    op->unsignaled = kind == GR_WRITE_UNSIGNALED;
    op->n = n;
    op->len = len;
    for (uint32_t i = 0; i < n; i++)
        op->seg[i] = seg[i];
    rc = fake_post(rail, ep, op, ctx);
    if (rc)
        free(op);
    return rc;
}

static int rma(gr_rail *base, void *ep, int op, uint32_t n, const gr_seg *seg, gr_ctx *ctx)
{
    fake_rail *rail = (fake_rail *)base;
    while (atomic_load(&rail->blocked)) /* as a copy by the kernel of memory behind userfaultfd */
        usleep(100);
    pthread_mutex_lock(&rail->fabric->mu);
    int rc = post(rail, ep, op, n, seg, ctx);
    pthread_mutex_unlock(&rail->fabric->mu);
    return rc;
}

static int send_msg(gr_rail *base, void *ep, void *buf, size_t len, void *desc, int wake, gr_ctx *ctx)
{
    fake_rail *rail = (fake_rail *)base;
    const gr_seg seg = {.laddr = (uintptr_t)buf, .len = len, .ldesc = desc};
    (void)wake; /* only the polls of both sides make progress here */
    pthread_mutex_lock(&rail->fabric->mu);
    int rc = post(rail, ep, FAKE_SEND, 1, &seg, ctx);
    pthread_mutex_unlock(&rail->fabric->mu);
    return rc;
}

static int recv_msg(gr_rail *base, void *opaque, void *buf, size_t len, void *desc, gr_ctx *ctx)
{
    fake_rail *rail = (fake_rail *)base;
    fake_ep *ep = opaque;
    fake_recv *r = calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    *r = (fake_recv){.ctx = ctx, .buf = buf, .len = len};
    pthread_mutex_lock(&rail->fabric->mu);
    int rc = fake_check_desc(rail, (uintptr_t)buf, len, desc);
    if (!rc && rail->script.recv_errno) {
        rc = -rail->script.recv_errno;
        rail->script.recv_errno = 0;
    }
    if (!rc && ep->rx_out >= rail->config.rx_depth)
        rc = -EAGAIN;
    if (!rc) {
        if (ep->rx_tail)
            ep->rx_tail->next = r;
        else
            ep->rx_head = r;
        ep->rx_tail = r;
        ep->rx_out++;
        rail->count.recvs++;
        fake_signal(rail);
    }
    pthread_mutex_unlock(&rail->fabric->mu);
    if (rc)
        free(r);
    return rc;
}

static int poll_cq(gr_rail *base, gr_comp *out, int max)
{
    fake_rail *rail = (fake_rail *)base;
    uint64_t drained;
    int n = 0, more = 0;

    pthread_mutex_lock(&rail->fabric->mu);
    rail->count.polls++;
    if (base->wait_fd >= 0 && read(base->wait_fd, &drained, sizeof(drained)) < 0)
        drained = 0; /* was not signaled */
    if (!rail->stalled)
        more = fake_progress(rail);
    for (; n < max && rail->cq_head; n++) { /* also when stalled: the peer may already count the operation as complete */
        fake_comp *c = rail->cq_head;
        out[n] = c->c;
        rail->cq_head = c->next;
        free(c);
    }
    if (!rail->cq_head)
        rail->cq_tail = NULL;
    if (more || rail->cq_head)
        fake_signal(rail);
    pthread_mutex_unlock(&rail->fabric->mu);
    return n;
}

static int arm(gr_rail *base)
{
    fake_rail *rail = (fake_rail *)base;
    fake_flushed(rail);
    pthread_mutex_lock(&rail->fabric->mu);
    int again = rail->cq_head != NULL;
    pthread_mutex_unlock(&rail->fabric->mu);
    return again;
}

/* Own keys start anywhere in the key space and skip keys in use. */
static int own_reg(gr_rail *base, void *buf, size_t len, void **mr, void **desc)
{
    fake_rail *rail = (fake_rail *)base;
    int rc = 0;
    *mr = *desc = NULL;
    if (!rail->config.local_desc)
        return 0;
    pthread_mutex_lock(&rail->fabric->mu);
    do {
        uint64_t key = rail->own_key--;
        if (rail->config.key_size < 8)
            key &= (UINT64_C(1) << (8 * rail->config.key_size)) - 1;
        *mr = fake_mr_add(rail, (uintptr_t)buf, len, key, 0, &rc);
    } while (rc == -ENOKEY);
    pthread_mutex_unlock(&rail->fabric->mu);
    *desc = *mr;
    return rc;
}

static void own_unreg(gr_rail *base, void *mr)
{
    fake_rail *rail = (fake_rail *)base;
    if (!mr)
        return;
    pthread_mutex_lock(&rail->fabric->mu);
    fake_mr_drop(rail, mr);
    pthread_mutex_unlock(&rail->fabric->mu);
}

/* Only counts the calls. */
static int assist(gr_rail *base)
{
    fake_rail *rail = (fake_rail *)base;
    pthread_mutex_lock(&rail->fabric->mu);
    rail->count.assists++;
    pthread_mutex_unlock(&rail->fabric->mu);
    return 0;
}

const gr_rail_ops fake_ops = {
    .rma = rma,
    .send = send_msg,
    .recv = recv_msg,
    .poll = poll_cq,
    .arm = arm,
    .reg = own_reg,
    .unreg = own_unreg,
    .flush = flush,
    .assist = assist,
    .shut = fake_shared_close,
};
const gr_rail_bulk fake_bulk_ops = {.post = fake_bulk, .stop = fake_bulk_stop, .ops_alloc = fake_ops_alloc, .ops_free = fake_ops_free};
