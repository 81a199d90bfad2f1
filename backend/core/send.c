/* Notifications on the wire: fragments out within the peer's credits, messages in, credits back. */
#include "core_int.h"
#include "msg_wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Behind the last, but before those without a number if it has one. 0: the link is dead, and m has ended with its error; it may be gone. */
int msg_queue(gr_link *link, msg *m)
{
    msg *before = m->numbered ? link->plain : NULL;
    m->link = link;
    m->next = before;
    m->prev = before ? before->prev : link->msgs_tail;
    if (m->prev)
        m->prev->next = m;
    else
        link->msgs = m;
    if (before)
        before->prev = m;
    else
        link->msgs_tail = m;
    if (link->cur == before)
        link->cur = m;
    if (!m->numbered && !link->plain)
        link->plain = m;
    atomic_store(&m->listed, link->rail);
    link->nmsgs++;
    if (link->state != LINK_DEAD)
        return 1;
    msg_end(m, link->dead_err);
    return 0;
}

void msg_unlist(msg *m)
{
    gr_link *link = m->link;
    if (!atomic_load(&m->listed))
        return;
    if (link->cur == m)
        link->cur = m->next;
    if (link->plain == m)
        link->plain = m->next;
    if (m->next)
        m->next->prev = m->prev;
    else
        link->msgs_tail = m->prev;
    if (m->prev)
        m->prev->next = m->next;
    else
        link->msgs = m->next;
    atomic_store(&m->listed, NULL);
    link->nmsgs--;
}

/* The peer has it (err 0), or it will never be sent. */
void msg_end(msg *m, int err)
{
    gr_link *link = m->link;
    msg_unlist(m);
    if (m->numbered)
        msg_proved(m);
    atomic_fetch_sub(&link->sess->tx_queued, m->len + OVERHEAD);
    if (!err)
        COUNT(link->rail->core, GR_C_NOTIF_SENT, 1);
    if (m->xfer) {
        m->done = 1;
        m->ended(m, err);
    } else {
        if (m->body != (char *)(m + 1))
            free(m->body);
        free(m);
    }
}

/* The peer has nothing of a numbered message and shall go on without it: a gap goes out, and m is its transfer's again. */
int msg_gap(msg *m)
{
    msg *gap = calloc(1, sizeof *gap);
    if (!gap)
        return -ENOMEM;
    gap->seq = m->seq;
    gap->len = m->len; /* counted in tx_queued */
    gap->block = m->block;
    gap->numbered = gap->skip = 1;
    msg_unlist(m);
    m->done = m->skip = 1;
    msg_queue(m->link, gap);
    return 0;
}

/* Parts a numbered message from its transfer, which ends with err (0: well) while the message, of which the peer may have
 * a part or all, goes its way: it is the link's now, and sent again after a fence if need be. */
int msg_part(msg *m, int err)
{
    gr_link *link = m->link;
    msg *own = malloc(sizeof *own);
    if (!own)
        return -ENOMEM;
    *own = *m;
    own->xfer = NULL;
    own->unproved = err && m->pipelined;
    if (own->prev)
        own->prev->next = own;
    else
        link->msgs = own;
    if (own->next)
        own->next->prev = own;
    else
        link->msgs_tail = own;
    if (link->cur == m)
        link->cur = own;
    for (ctx *c = link->posted; c; c = c->next)
        if (c->msg == m)
            c->msg = own;
    atomic_store(&m->listed, NULL);
    m->done = 1;
    m->body = NULL;
    m->ended(m, err);
    return 0;
}

static void start_msg(rail_st *rail, cmd *self)
{
    (void)rail;
    msg *m = (msg *)(void *)((char *)self - offsetof(msg, start));
    gr_link *link = m->link;
    if (msg_queue(link, m) && m->xfer && !m->numbered && atomic_load(&m->xfer->err))
        msg_end(m, atomic_load(&m->xfer->err));
    msg_pump(link);
}

/* To another link of the session, whose rail is not held. */
void msg_move(msg *m, gr_link *to)
{
    msg_unlist(m);
    m->link = to;
    m->start.run = start_msg;
    rail_push(to->rail, &m->start);
}

static int post_frame(gr_link *link, const header *h, const void *body, size_t len, int wake, msg *m)
{
    rail_st *rail = link->rail;
    if (link->inflight_ops >= rail->dev->tx_depth)
        return -EAGAIN;
    buf *b = rail_buf(rail);
    ctx *c = b ? rail_ctx(rail, link, CTX_SEND) : NULL;
    if (!c) {
        if (b)
            rail_buf_put(rail, b);
        return -EAGAIN;
    }
    memcpy(b->data, h, HDR);
    memcpy(b->data + offsetof(header, to), &link->peer_id, sizeof link->peer_id);
    if (len)
        memcpy(b->data + HDR, body, len);
    c->buf = b;
    c->msg = m;
    c->slot = h->count;
    int rc = rail->dev->ops->send(rail->dev, link->ep, b->data, HDR + len, b->desc, wake, &c->base);
    if (rc != 0) {
        rail_buf_put(rail, b);
        rail_ctx_done(rail, c);
        link_refused(link, rc);
        return rc;
    }
    link->inflight_ops++;
    c->slotted = h->kind != KIND_CREDIT && slot_use(link, c->slot);
    return 0;
}

static void send_credits(gr_link *link)
{
    if (!credits_due(link)) /* never of a rail's hub, which has no session */
        return;
    int full = sess_full(link->sess);
    if (full && !link->answer)
        return;
    header h = {.magic = MAGIC, .version = VERSION, .kind = KIND_CREDIT, .seq = link->answer,
                .count = full ? link->slots_told : (uint32_t)link->slots_taken};
    if (post_frame(link, &h, NULL, 0, 1, NULL) != 0)
        return;
    link->slots_told = h.count;
    link->credit_failed = 0;
    link->answered = link->answer;
    link->answer = 0;
}

/* One message that wants an answer, by which a link is known to work both ways. */
static void send_probe(gr_link *link)
{
    header h = {.magic = MAGIC, .version = VERSION, .kind = KIND_PROBE, .seq = link_probe_seq(link), .count = slot_probe(link)};
    if (link->probe || post_frame(link, &h, NULL, 0, 1, NULL) != 0)
        return;
    link->probe = 1;
    link->hello = 0;
    link_count(link, GR_N_PROBES, 1);
}

/* Not before other work, which would then not be the first to fail if the endpoint does not work. */
static int hello_due(const gr_link *link)
{
    return link->hello == HELLO_DUE || (!link->inflight_ops && !link->todo && !link->cur);
}

void msg_pump(gr_link *link)
{
    if (link->state == LINK_PROBING || (link->state == LINK_UP && link->hello && hello_due(link)))
        send_probe(link);
    if (link->state != LINK_UP)
        return;
    if (link->recv_debt)
        msg_repay(link);
    send_credits(link);
    size_t room = rail_msg_size(link->rail) - HDR;
    while (link->state == LINK_UP && link->cur && credits_left(link)) {
        msg *m = link->cur;
        if (!msg_number(m))
            return;
        size_t n = m->len - m->off < room ? m->len - m->off : room;
        header h = {.magic = MAGIC, .version = VERSION, .kind = KIND_NOTIF, .parts = 1, .seq = m->seq,
                    .total = (uint32_t)m->len, .offset = (uint32_t)m->off, .count = slot_next(link)};
        if (m->skip) {
            n = m->len - m->off; /* counted off, not sent */
            h.kind = KIND_SKIP;
            h.total = 0;
        }
        int wake = m->skip || m->len > room || (credits_left(link) - 1) % (RX_BUFS / 2) == 0;
        int rc = post_frame(link, &h, m->skip ? NULL : m->body + m->off, m->skip ? 0 : n, wake, m);
        if (rc != 0) {
            m->blamed |= rc != -EAGAIN;
            return;
        }
        link_count(link, GR_N_MSGS_SENT, 1);
        m->inflight++;
        m->off += n;
        if (m->off == m->len) {
            m->posted = 1;
            link->cur = m->next;
            if (m->xfer && atomic_load(&m->xfer->parts_left) == 0)
                msg_part(m, atomic_load(&m->xfer->err)); /* the data is there and the rest is ours to see to */
        }
    }
}

void msg_sent(ctx *c, int err)
{
    gr_link *link = c->link;
    msg *m = c->msg;
    link->inflight_ops--;
    rail_buf_put(link->rail, c->buf);
    if (err && c->slotted)
        slot_failed(link, c->slot);
    if (err && link->role & GR_LINK_RX) { /* a CREDIT is all that it sends */
        link->credit_failed = 1;
        if (!link->answer)
            link->answer = link->answered;
    }
    if (!m)
        return;
    m->inflight--;
    if (err) {
        m->failed = 1;
        m->blamed |= c->first;
        if (m->xfer)
            atomic_store(&m->xfer->wire_err, err);
    } else if (m->xfer)
        atomic_store_explicit(&m->xfer->last_ns, link->rail->now, memory_order_relaxed);
    if (m->inflight == 0 && m->posted && !m->failed)
        msg_end(m, 0);
}

void msg_credit_cmd(rail_st *rail, cmd *self)
{
    (void)rail;
    gr_link *link = (gr_link *)(void *)((char *)self - offsetof(gr_link, credit_cmd));
    atomic_store(&link->credit_queued, 0);
    msg_pump(link);
}

/* A message of no transfer; it counts in tx_queued already. */
static msg *msg_new(gr_link *link, const void *body, size_t len)
{
    msg *m = calloc(1, sizeof *m + len);
    if (!m) {
        atomic_fetch_sub(&link->sess->tx_queued, len + OVERHEAD);
        return NULL;
    }
    m->body = (char *)(m + 1);
    if (len)
        memcpy(m->body, body, len);
    m->len = len;
    m->link = link;
    m->start.run = start_msg;
    return m;
}

static void msg_send(msg *m)
{
    rail_st *rail = m->link->rail;
    rail_push(rail, &m->start);
    rail_run(rail);
    rail_unstarve(rail);
}

int gr_notify(gr_link *link, const void *body, size_t len)
{
    gr_sess *sess = link->sess;
    uint64_t size = len + OVERHEAD, before = atomic_fetch_add(&sess->tx_queued, size);
    if (before && before + size > sess->core->cfg.notif_limit) {
        atomic_fetch_sub(&sess->tx_queued, size);
        return -EAGAIN;
    }
    msg *m = msg_new(link, body, len);
    if (!m)
        return -ENOMEM;
    msg_send(m);
    return 0;
}

int gr_notify_again(gr_link *link, const gr_taken *t)
{
    atomic_fetch_add(&link->sess->tx_queued, t->len + OVERHEAD);
    msg *m = msg_new(link, t->body, t->len);
    if (!m)
        return -ENOMEM;
    m->skip = t->skip != 0;
    if (t->numbered)
        msg_resend(m, t->seq);
    msg_send(m);
    return 0;
}
