/* Outgoing notifications: their list on a link, their numbers, their end; then their fragments, probes and credits. */
#include "link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Appends m to the link's list; a numbered message goes before the unnumbered ones. 0: the link is dead, and m has ended
 * with the link's error; m may be freed. */
int msg_queue(gr_link *link, msg *m)
{
    msg *before = m->number.given ? link->out.plain : NULL;
    m->link = link;
    if (before)
        TAILQ_INSERT_BEFORE(before, m, list);
    else
        TAILQ_INSERT_TAIL(&link->out.list, m, list);
    if (link->out.cur == before)
        link->out.cur = m;
    link_busy(link);
    if (!m->number.given && !link->out.plain)
        link->out.plain = m;
    atomic_store(&m->listed, link->rail);
    link->out.n++;
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
    if (link->out.cur == m)
        link->out.cur = TAILQ_NEXT(m, list);
    if (link->out.plain == m)
        link->out.plain = TAILQ_NEXT(m, list);
    TAILQ_REMOVE(&link->out.list, m, list);
    atomic_store(&m->listed, NULL);
    link->out.n--;
}

/* Gives the message its number of the session. 0: no number yet. */
int msg_number(msg *m)
{
    gr_link *link = m->link;
    if (m->number.given)
        return 1;
    m->number.given = sess_number(link->sess, m->len, &m->number.block, &m->number.seq) != 0;
    if (m->number.given && link->out.plain == m)
        link->out.plain = TAILQ_NEXT(m, list);
    return m->number.given;
}

/* The message keeps its number of an earlier session. */
void msg_resend(msg *m, uint64_t seq)
{
    m->number.given = 1;
    m->number.seq = seq;
    m->number.block = sess_resent(m->link->sess);
}

/* Takes the message from its link and its session. */
void msg_leave(msg *m)
{
    gr_sess *sess = m->link->sess;
    msg_unlist(m);
    if (m->number.given)
        sess_acked(sess, m->number.block);
    atomic_fetch_sub(&sess->tx_queued, m->len + OVERHEAD);
}

/* Frees a message without a transfer. */
void msg_free(msg *m)
{
    msg_body_free(m);
    free(m);
}

/* Ends the message: the peer has it (err 0), or it will never be sent. */
void msg_end(msg *m, int err)
{
    gr_link *link = m->link;
    msg_leave(m);
    if (!err)
        COUNT(link->rail->core, GR_C_NOTIF_SENT, 1);
    if (m->xfer) {
        m->done = 1;
        xfer_msg_ended(m, err);
    } else if (m->reused) {
        msg_body_free(m);
        m->next = link->rail->mem.free_msg;
        link->rail->mem.free_msg = m;
    } else {
        msg_free(m);
    }
}

/* Queues a SKIP with the number of m, which will not be sent. m belongs to its transfer again. -ENOMEM. */
int msg_skip(msg *m)
{
    msg *skip_msg = GR_ALLOC(core_notif_skip, calloc(1, sizeof *skip_msg));
    if (!skip_msg)
        return -ENOMEM;
    skip_msg->number.seq = m->number.seq;
    skip_msg->len = m->len; /* counted in tx_queued */
    skip_msg->number.block = m->number.block;
    skip_msg->number.given = skip_msg->skip = 1;
    msg_unlist(m);
    m->done = m->skip = 1;
    msg_queue(m->link, skip_msg);
    return 0;
}

/* Detaches a numbered message from its transfer, which ends with err (0: success). The link owns the message from then on,
 * and sends it again after a fence if necessary. The peer may have none, a part or all of it. */
int msg_detach(msg *m, int err)
{
    gr_link *link = m->link;
    msg *own = link->rail->mem.free_msg;
    if (own)
        link->rail->mem.free_msg = own->next;
    else if (!(own = GR_ALLOC(core_notif_detached, malloc(sizeof *own))))
        return -ENOMEM;
    *own = *m;
    own->reused = 1;
    if (m->body == m->small)
        own->body = own->small;
    own->xfer = NULL;
    own->unproved = err && m->pipelined;
    TAILQ_INSERT_BEFORE(m, own, list);
    TAILQ_REMOVE(&link->out.list, m, list);
    if (link->out.cur == m)
        link->out.cur = own;
    for (ctx *c = link->ep.posted; c; c = c->next)
        if (c->msg == m)
            c->msg = own;
    atomic_store(&m->listed, NULL);
    m->done = 1;
    m->body = NULL;
    xfer_msg_ended(m, err);
    return 0;
}

/* ---- Outgoing messages: notifications in fragments within the peer's credits, probes, credits. */

static int post_frame(gr_link *link, const header *h, const void *body, size_t len, int wake, msg *m)
{
    rail_st *rail = link->rail;
    if (link->ep.ops >= rail->dev->limit.tx_depth)
        return -EAGAIN;
    buf *b = rail_buf(rail, len ? BUF_FULL : BUF_HEADER);
    ctx *c = b ? ctx_new(rail, link, CTX_SEND) : NULL;
    if (!c) {
        if (b)
            rail_buf_put(rail, b);
        return -EAGAIN;
    }
    memcpy(b->data, h, HDR); /* ours */
    memcpy(b->data + offsetof(header, to), &link->peer_id, sizeof link->peer_id); /* ours */
    if (len)
        memcpy(b->data + HDR, body, len); /* ours */
    c->buf = b;
    c->msg = m;
    c->slot = h->count;
    int rc = rail->dev->ops->send(rail->dev, link->ep.handle, b->data, HDR + len, b->desc, wake, &c->base);
    if (rc != 0) {
        rail_buf_put(rail, b);
        ctx_done(rail, c);
        link_refused(link, rc);
        return rc;
    }
    link_posted(link);
    c->slotted = h->kind != KIND_CREDIT && slot_use(link, c->slot);
    return 0;
}

static void send_credits(gr_link *link)
{
    if (!credits_due(link)) /* false for a rail's shared link, which has no session */
        return;
    int full = sess_full(link->sess);
    if (full && !link->credit.held)
        COUNT(link->rail->core, GR_C_CREDITS_HELD, 1);
    full |= link->rail->mem.untaken != 0;
    link->credit.held = (uint8_t)full;
    if (full && !link->probe.answer)
        return;
    header h = {.magic = MAGIC,
                .version = VERSION,
                .kind = KIND_CREDIT,
                .seq = link->probe.answer,
                .count = full ? link->credit.granted : (uint32_t)link->credit.taken};
    if (post_frame(link, &h, NULL, 0, 1, NULL) != 0)
        return;
    link->credit.granted = h.count;
    link->credit.resend = 0;
    link->probe.answered = link->probe.answer;
    link->probe.answer = 0;
}

/* Sends a probe: a message whose answer proves that the link works both ways. */
static void send_probe(gr_link *link)
{
    header h = {.magic = MAGIC, .version = VERSION, .kind = KIND_PROBE, .seq = link_probe_seq(link), .count = slot_probe(link)};
    if (link->probe.posted || post_frame(link, &h, NULL, 0, 1, NULL) != 0)
        return;
    link->probe.posted = 1;
    link->probe.wanted = 0;
    link_count(link, GR_N_PROBES, 1);
}

/* Whether the probe of a link that is up may go out. Other work goes first: if the endpoint does not work, that work must
 * be the first to fail. */
static int probe_due(const gr_link *link) { return link->probe.wanted == PROBE_DUE || (!link->ep.ops && !link->work.todo && !link->out.cur); }

void msg_pump(gr_link *link)
{
    if (link->state == LINK_PROBING || (link->state == LINK_UP && link->probe.wanted && probe_due(link)))
        send_probe(link);
    if (link->state != LINK_UP)
        return;
    if (link->ep.missing_recvs)
        msg_post_missing_recvs(link);
    send_credits(link);
    size_t room = rail_msg_size(link->rail) - HDR;
    while (link->state == LINK_UP && link->out.cur && credits_left(link)) {
        msg *m = link->out.cur;
        if (!msg_number(m))
            return;
        size_t n = m->len - m->sent.off < room ? m->len - m->sent.off : room;
        header h = {.magic = MAGIC,
                    .version = VERSION,
                    .kind = KIND_NOTIF,
                    .subs = 1,
                    .seq = m->number.seq,
                    .total = (uint32_t)m->len,
                    .offset = (uint32_t)m->sent.off,
                    .count = slot_next(link)};
        if (m->skip) {
            n = m->len - m->sent.off; /* consumes the length without sending a body */
            h.kind = KIND_SKIP;
            h.total = 0;
        }
        int wake = m->skip || m->len > room || (credits_left(link) - 1) % (RX_BUFS / 2) == 0;
        int rc = post_frame(link, &h, m->skip ? NULL : m->body + m->sent.off, m->skip ? 0 : n, wake, m);
        if (rc != 0) {
            m->sent.at_fault |= rc != -EAGAIN;
            return;
        }
        link_count(link, GR_N_MSGS_SENT, 1);
        m->sent.inflight++;
        m->sent.off += n;
        if (m->sent.off == m->len) {
            m->sent.posted = 1;
            link->out.cur = TAILQ_NEXT(m, list);
            if (m->xfer && atomic_load(&m->xfer->subs_left) == 0)
                msg_detach(m, atomic_load(&m->xfer->err)); /* the data is complete, and the link takes over the message */
        }
    }
}

void msg_sent(ctx *c, int err)
{
    gr_link *link = c->link;
    msg *m = c->msg;
    link->ep.ops--;
    rail_buf_put(link->rail, c->buf);
    if (err && c->slotted)
        slot_failed(link, c->slot);
    if (err && link->role & GR_LINK_RX) { /* a target's link sends only CREDITs */
        link->credit.resend = 1;
        if (!link->probe.answer)
            link->probe.answer = link->probe.answered;
        link_busy(link);
    }
    if (!m)
        return;
    m->sent.inflight--;
    if (err) {
        m->sent.failed = 1;
        m->sent.at_fault |= c->first;
        if (m->xfer)
            note_wire_err(m->xfer, err);
    } else if (m->xfer)
        atomic_store_explicit(&m->xfer->last_ns, rail_now(link->rail), memory_order_relaxed);
    if (m->sent.inflight == 0 && m->sent.posted && !m->sent.failed)
        msg_end(m, 0);
}

void msg_credit_cmd(rail_st *rail, cmd *self)
{
    (void)rail;
    gr_link *link = (gr_link *)(void *)((char *)self - offsetof(gr_link, credit.cmd));
    atomic_store(&link->credit.queued, 0);
    msg_pump(link);
}

void msg_start(rail_st *rail, cmd *self)
{
    (void)rail;
    msg *m = (msg *)(void *)((char *)self - offsetof(msg, start));
    gr_link *link = m->link;
    if (msg_queue(link, m) && m->xfer && !m->number.given && atomic_load(&m->xfer->err))
        msg_end(m, atomic_load(&m->xfer->err));
    msg_pump(link);
}

/* Moves the message to another link of the session. The caller need not hold that link's rail. */
void msg_move(msg *m, gr_link *to)
{
    msg_unlist(m);
    m->link = to;
    m->start.run = msg_start;
    rail_push(to->rail, &m->start);
}
