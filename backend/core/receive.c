/* Incoming messages: posts receives, passes notifications to the application, takes credits. */
#include "link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int msg_post_recv(gr_link *link, buf *b)
{
    rail_st *rail = link->rail;
    ctx *c = ctx_new(rail, link, CTX_RECV);
    if (!c) {
        rail_buf_put(rail, b);
        return -EAGAIN;
    }
    c->buf = b;
    int rc = rail->dev->ops->recv(rail->dev, link->ep.handle, b->data, rail_buf_size(rail, b->kind), b->desc, &c->base);
    if (rc != 0) {
        ctx_done(rail, c);
        rail_buf_put(rail, b);
    }
    return rc;
}

/* Number of receives that a link needs. */
uint32_t msg_recvs(const gr_link *link) { return link->role & GR_LINK_RX ? RX_BUFS : CREDIT_BUFS; }

/* Only CREDITs come in on a link that sends. */
static int recv_kind(const gr_link *link) { return link->role & GR_LINK_RX || link == link->rail->shared ? BUF_FULL : BUF_HEADER; }

static void lacks_recvs(gr_link *on, uint32_t n)
{
    on->ep.missing_recvs += n;
    on->rail->starved = 1;
    link_busy(on);
}

/* Posts the receives that a link needs. A shared endpoint's receives serve all links of the rail. They exceed the links'
 * needs by rx_surplus, and fall short of them by missing_recvs. */
int msg_post_recvs(gr_link *link)
{
    rail_st *rail = link->rail;
    gr_link *on = rail->shared ? rail->shared : link;
    int kind = recv_kind(on);
    if (kind != BUF_FULL) {
        buf *first = rail_buf(rail, BUF_FULL); /* of the first notification: a lack of memory shows here, not when that is sent */
        if (!first)
            return -ENOMEM;
        rail_buf_put(rail, first);
    }
    for (uint32_t i = 0, n = msg_recvs(link); i < n; i++) {
        if (on == rail->shared && rail->rx_surplus) {
            rail->rx_surplus--;
            continue;
        }
        buf *b = rail_buf(rail, kind);
        int rc = b ? msg_post_recv(on, b) : -ENOMEM;
        if (rc == 0)
            continue;
        lacks_recvs(on, rc == -EAGAIN ? 1 : n - i);
        if (rc != -EAGAIN)
            return rc;
    }
    return 0;
}

/* Posts the receives that could not be posted before. On a shared endpoint every failure is tried again. */
void msg_post_missing_recvs(gr_link *link)
{
    rail_st *rail = link->rail;
    while (link->ep.missing_recvs && link->state == LINK_UP) {
        int rc = 0;
        if (link == rail->shared && rail->rx_surplus) {
            rail->rx_surplus--;
        } else {
            buf *b = rail_buf(rail, recv_kind(link));
            rc = b ? msg_post_recv(link, b) : -EAGAIN;
        }
        if (rc == -EAGAIN || (rc != 0 && link == rail->shared)) {
            rail->starved = 1;
            break;
        }
        link->ep.missing_recvs--;
        if (rc != 0)
            link_error(link, -rc);
    }
}

/* A complete notification in order goes straight to the application. Anything else goes to Go, which restores the order.
 * All later notifications then go to Go too, until Go calls gr_sess_resume. */
static int take_notif(gr_sess *sess, const header *h, const char *body, size_t len)
{
    int rc = 0;
    pthread_mutex_lock(&sess->rx.mu);
    if (sess->rx.ended || (!sess->rx.slow && h->seq < sess->rx.next)) {
        COUNT(sess->core, GR_C_NOTIF_DUP, 1);
    } else if (!sess->rx.slow && h->seq == sess->rx.next && h->kind == KIND_SKIP) {
        sess->rx.next++;
    } else if (!sess->rx.slow && h->seq == sess->rx.next && h->offset == 0 && h->total == len && h->subs == 1) {
        rc = gr_sess_deliver(sess, body, len);
        if (rc == 0)
            sess->rx.next++;
    } else {
        void *copy = GR_ALLOC(core_notif_part, malloc(len ? len : 1));
        if (copy) {
            memcpy(copy, body, len); /* ours */
            gr_event ev = {.kind = GR_EV_MSG,
                           .id = sess->id,
                           .seq = h->seq,
                           .subs = h->kind == KIND_SKIP ? 0 : h->subs,
                           .total = h->total,
                           .offset = h->offset,
                           .len = (uint32_t)len,
                           .data = copy};
            rc = core_event_msg(sess, &ev);
            sess->rx.slow |= rc == 0;
            sess->rx.handed += rc == 0;
        } else {
            rc = -ENOMEM;
        }
        if (rc != 0)
            free(copy);
    }
    pthread_mutex_unlock(&sess->rx.mu);
    return rc;
}

static gr_link *find(rail_st *rail, uint64_t id)
{
    gr_link *link = rail->by_id[id % ID_BUCKETS];
    while (link && link->id != id)
        link = link->id_next;
    return link;
}

/* Posts the buffer again on its endpoint, or frees it if no receive is needed there. */
static int post_again(gr_link *on, buf *b)
{
    rail_st *rail = on->rail;
    if (on == rail->shared && rail->rx_surplus)
        rail->rx_surplus--;
    else if (on->state == LINK_UP || on->state == LINK_PROBING)
        return msg_post_recv(on, b);
    rail_buf_put(rail, b);
    return 0;
}

/* Handles the first message over an endpoint: a target's Go learns that the initiator's link works. */
static void first_message(gr_link *link)
{
    link->probe.received = 1;
    if (link->role & GR_LINK_RX) {
        gr_event ev = {.kind = GR_EV_LINK, .id = link->id, .seq = link->ep.epoch};
        core_event(link->rail->core, &ev, &link->owed, NULL);
    }
}

/* Handles the answer to our probe: Go learns that the link works both ways. */
static void probe_answered(gr_link *link, uint64_t seq)
{
    if (link->state != LINK_PROBING || !link->probe.posted || seq != link_probe_seq(link))
        return;
    gr_event ev = {.kind = GR_EV_LINK, .id = link->id, .seq = link->ep.epoch};
    core_event(link->rail->core, &ev, &link->owed, NULL);
}

/* Keeps a message that there was no memory for: its sender has a completion, and does not send it again. */
static void hold(gr_link *link, buf *b, size_t len)
{
    rail_st *rail = link->rail;
    atomic_fetch_add(&link->sess->refs, 1);
    b->sess = link->sess;
    b->len = len;
    b->next = rail->mem.untaken;
    rail->mem.untaken = b;
}

void msg_take_held(rail_st *rail)
{
    buf *list = rail->mem.untaken;
    rail->mem.untaken = NULL;
    for (buf *b = list, *next; b; b = next) {
        header h;
        next = b->next;
        memcpy(&h, b->data, HDR); /* ours */
        if (take_notif(b->sess, &h, b->data + HDR, b->len - HDR) != 0) {
            b->next = rail->mem.untaken;
            rail->mem.untaken = b;
            rail->starved = 1;
            continue;
        }
        sess_unref(b->sess);
        rail_buf_put(rail, b);
    }
}

static int dispatch(gr_link *link, const header *h, const char *body, size_t len)
{
    rail_st *rail = link->rail;
    int ours = h->kind == KIND_CREDIT ? GR_LINK_TX : GR_LINK_RX;
    int rc = !(link->role & ours) ? -EBADMSG : h->kind == KIND_CREDIT ? slots_acked(link, h->count) : slot_taken(link, h->count);
    if (rc != 0) {
        COUNT(rail->core, GR_C_BAD_MSG, 1);
        return rc;
    }
    if (!link->probe.received)
        first_message(link);
    if (h->kind == KIND_PROBE)
        link->probe.answer = h->seq;
    else if (h->kind == KIND_CREDIT)
        probe_answered(link, h->seq);
    if (credits_due(link)) {
        rail->work_left = 1;
        link_busy(link);
    }
    if (h->kind == KIND_CREDIT || h->kind == KIND_PROBE)
        return 0;
    link_count(link, GR_N_MSGS_RECEIVED, 1);
    return take_notif(link->sess, h, body, len);
}

/* Whether wire.ParseMessage would accept the header. The payload is not inspected. */
static int well_formed(const header *h, size_t payload)
{
    int alone = !h->subs && !h->sub && !h->total && !h->offset && !payload;
    if (h->magic != MAGIC || h->version != VERSION || h->sum)
        return 0;
    switch (h->kind) {
    case KIND_NOTIF: return h->sub < h->subs && h->offset + (uint64_t)payload <= h->total;
    case KIND_SKIP: return h->subs == 1 && !h->sub && !h->total && !payload;
    case KIND_PROBE: return alone && h->seq;
    case KIND_CREDIT: return alone;
    }
    return 0;
}

void msg_received(ctx *c, int err, uint64_t len)
{
    gr_link *on = c->link;
    rail_st *rail = on->rail;
    header h;
    if (err) {
        rail_buf_put(rail, c->buf);
        if (on == rail->shared && err != ECANCELED) {
            lacks_recvs(on, 1);
        }
        return;
    }
    int rc = 0;
    gr_link *link = on;
    if (len >= HDR)
        memcpy(&h, c->buf->data, HDR); /* ours */
    if (len < HDR || len > rail_buf_size(rail, c->buf->kind) || !well_formed(&h, len - HDR)) {
        COUNT(rail->core, GR_C_BAD_MSG, 1);
        rc = -EBADMSG;
    } else {
        link = on == rail->shared ? find(rail, h.to) : h.to == on->id ? on : NULL;
        if (link)
            rc = dispatch(link, &h, c->buf->data + HDR, len - HDR);
        else
            COUNT(rail->core, GR_C_BAD_MSG, 1); /* perhaps a message of an ended session */
    }
    if (rc == -ENOMEM) {
        hold(link, c->buf, len);
        lacks_recvs(on, 1);
        return;
    }
    if (rc != 0 && link && link != rail->shared)
        link_error(link, -rc);
    rc = post_again(on, c->buf);
    if (rc == -EAGAIN || (rc != 0 && on == rail->shared)) {
        lacks_recvs(on, 1);
    } else if (rc != 0) {
        link_error(on, -rc);
    }
}
