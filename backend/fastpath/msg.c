/* Notifications on the wire: fragments out within the peer's credits, messages in, credits back. */
#include "core_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { HDR = 32, KIND_NOTIF = 1, KIND_CREDIT = 2, KIND_SKIP = 3, MAGIC = 0x5247, VERSION = 1 };

/* Same layout as wire.Header, little endian on every machine we run on. */
typedef struct header {
    uint16_t magic;
    uint8_t version;
    uint8_t kind;
    uint16_t parts;
    uint16_t pad;
    uint64_t seq;
    uint32_t total;
    uint32_t offset;
    uint32_t count;
    uint32_t sum;
} header;

_Static_assert(sizeof(header) == HDR, "message header is 32 bytes on the wire");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the header goes out as it lies in memory");

void msg_queue(gr_link *link, msg *m)
{
    m->link = link;
    m->next = NULL;
    m->prev = link->msgs_tail;
    if (link->msgs_tail)
        link->msgs_tail->next = m;
    else
        link->msgs = m;
    link->msgs_tail = m;
    if (!link->cur)
        link->cur = m;
    m->listed = 1;
    link->nmsgs++;
    if (link->state == LINK_DEAD)
        msg_end(m, link->dead_err);
}

void msg_unlist(msg *m)
{
    gr_link *link = m->link;
    if (!m->listed)
        return;
    if (link->cur == m)
        link->cur = m->next;
    if (m->next)
        m->next->prev = m->prev;
    else
        link->msgs_tail = m->prev;
    if (m->prev)
        m->prev->next = m->next;
    else
        link->msgs = m->next;
    m->listed = 0;
    link->nmsgs--;
}

/* The peer has it (err 0), or it will never be sent. */
void msg_end(msg *m, int err)
{
    gr_link *link = m->link;
    xfer *x = m->x;
    msg_unlist(m);
    atomic_fetch_sub(&link->sess->tx_queued, m->len + OVERHEAD);
    if (!err)
        COUNT(link->rail->core, GR_C_NOTIF_SENT, 1);
    if (x) {
        m->done = 1;
        xfer_msg_end(x, err);
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
    gap->numbered = gap->skip = 1;
    msg_unlist(m);
    m->done = 1;
    msg_queue(m->link, gap);
    return 0;
}

/* Parts a numbered message from its transfer, which ends with err while the message, of which the peer may have a part
 * or all, goes its way. */
int msg_part(msg *m, int err)
{
    gr_link *link = m->link;
    msg *own = malloc(sizeof *own);
    if (!own)
        return -ENOMEM;
    *own = *m;
    own->x = NULL;
    own->unproved = m->x->pipelined;
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
    m->listed = 0;
    m->done = 1;
    m->body = NULL;
    xfer_msg_end(m->x, err);
    return 0;
}

static int post_frame(gr_link *link, const header *h, const void *body, size_t len, msg *m)
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
    if (len)
        memcpy(b->data + HDR, body, len);
    c->buf = b;
    c->msg = m;
    int rc = rail->dev->ops->send(rail->dev, link->ep, b->data, HDR + len, b->desc, &c->base);
    if (rc != 0) {
        rail_buf_put(rail, b);
        rail_ctx_done(rail, c);
        if (rc == -EAGAIN) {
            rail->starved = 1;
            link->eagain++;
            COUNT(rail->core, GR_C_EAGAIN, 1);
        } else {
            link_error(link, -rc, 0);
        }
        return rc;
    }
    link->inflight_ops++;
    return 0;
}

static void send_credits(gr_link *link)
{
    uint64_t limit = link->rail->core->cfg.notif_limit;
    if (link->owed < CREDIT_BATCH || atomic_load(&link->sess->ready_bytes) >= limit ||
        atomic_load(&link->sess->handed_bytes) >= limit)
        return;
    header h = {.magic = MAGIC, .version = VERSION, .kind = KIND_CREDIT, .count = link->owed};
    if (post_frame(link, &h, NULL, 0, NULL) == 0)
        link->owed = 0;
}

static int post_recv(gr_link *link, buf *b)
{
    rail_st *rail = link->rail;
    ctx *c = rail_ctx(rail, link, CTX_RECV);
    if (!c) {
        rail_buf_put(rail, b);
        return -ENOMEM;
    }
    c->buf = b;
    int rc = rail->dev->ops->recv(rail->dev, link->ep, b->data, rail_msg_size(rail), b->desc, &c->base);
    if (rc != 0) {
        rail_ctx_done(rail, c);
        rail_buf_put(rail, b);
    }
    return rc;
}

void msg_pump(gr_link *link)
{
    if (link->state != LINK_UP)
        return;
    while (link->recv_debt && link->state == LINK_UP) {
        buf *b = rail_buf(link->rail);
        int rc = b ? post_recv(link, b) : -EAGAIN;
        if (rc == -EAGAIN)
            break;
        link->recv_debt--;
        if (rc != 0)
            link_error(link, -rc, 0);
    }
    send_credits(link);
    size_t room = rail_msg_size(link->rail) - HDR;
    while (link->state == LINK_UP && link->cur && link->credits) {
        msg *m = link->cur;
        if (!m->numbered) {
            m->seq = atomic_fetch_add(&link->sess->tx_seq, 1);
            m->numbered = 1;
        }
        size_t n = m->len - m->off < room ? m->len - m->off : room;
        header h = {.magic = MAGIC, .version = VERSION, .kind = KIND_NOTIF, .parts = 1, .seq = m->seq,
                    .total = (uint32_t)m->len, .offset = (uint32_t)m->off};
        if (m->skip) {
            n = m->len - m->off; /* counted off, not sent */
            h.kind = KIND_SKIP;
            h.total = 0;
        }
        int rc = post_frame(link, &h, m->skip ? NULL : m->body + m->off, m->skip ? 0 : n, m);
        if (rc != 0) {
            m->blamed |= rc != -EAGAIN;
            return;
        }
        link->credits--;
        m->inflight++;
        m->off += n;
        if (m->off == m->len) {
            m->posted = 1;
            link->cur = m->next;
        }
    }
}

void msg_sent(ctx *c, int err)
{
    gr_link *link = c->link;
    msg *m = c->msg;
    link->inflight_ops--;
    rail_buf_put(link->rail, c->buf);
    if (!m)
        return;
    m->inflight--;
    if (err) {
        m->failed = 1;
        m->blamed |= c->first;
        if (m->x)
            atomic_store(&m->x->pub.wire_err, err);
    } else if (m->x)
        atomic_store_explicit(&m->x->pub.last_ns, link->rail->now, memory_order_relaxed);
    if (m->inflight == 0 && m->posted && !m->failed)
        msg_end(m, 0);
}

int msg_post_recvs(gr_link *link)
{
    int n = link->role & GR_LINK_RX ? RX_BUFS : CREDIT_BUFS;
    for (int i = 0; i < n; i++) {
        buf *b = rail_buf(link->rail);
        int rc = b ? post_recv(link, b) : -ENOMEM;
        if (rc == -EAGAIN)
            link->recv_debt++;
        else if (rc != 0)
            return rc;
    }
    return 0;
}

static gr_notif *notif_new(gr_sess *sess, const void *body, size_t len)
{
    gr_notif *n = malloc(sizeof *n + sess->name_len + len);
    if (!n)
        return NULL;
    char *p = (char *)(n + 1);
    memcpy(p, sess->name, sess->name_len);
    if (len)
        memcpy(p + sess->name_len, body, len);
    *n = (gr_notif){NULL, p, p + sess->name_len, sess->name_len, len, sess};
    atomic_fetch_add(&sess->refs, 1);
    atomic_fetch_add(&sess->ready_bytes, len + OVERHEAD);
    return n;
}

int gr_sess_deliver(gr_sess *sess, const void *body, size_t len)
{
    gr_notif *n = notif_new(sess, body, len);
    if (!n)
        return -ENOMEM;
    core_ready(sess, n);
    return 0;
}

/* In order and whole: straight to the application. Anything else is Go's to put in order, and so is all that follows
 * until Go says that it has caught up. */
static int take_notif(gr_sess *sess, const header *h, const char *body, size_t len)
{
    int rc = 0;
    pthread_mutex_lock(&sess->rx_mu);
    if (!sess->slow && h->seq < sess->rx_next) {
        COUNT(sess->core, GR_C_NOTIF_DUP, 1);
    } else if (!sess->slow && h->seq == sess->rx_next && h->kind == KIND_SKIP) {
        sess->rx_next++;
    } else if (!sess->slow && h->seq == sess->rx_next && h->offset == 0 && h->total == len && h->parts == 1) {
        rc = gr_sess_deliver(sess, body, len);
        if (rc == 0)
            sess->rx_next++;
    } else {
        void *copy = malloc(len ? len : 1);
        if (copy) {
            memcpy(copy, body, len);
            gr_event ev = {.kind = GR_EV_MSG, .id = sess->id, .seq = h->seq,
                           .parts = h->kind == KIND_SKIP ? 0 : h->parts, .total = h->total,
                           .offset = h->offset, .len = (uint32_t)len, .data = copy};
            sess->slow = 1;
            sess->handed++;
            core_event(sess->core, &ev, sess);
        } else {
            rc = -ENOMEM;
        }
    }
    pthread_mutex_unlock(&sess->rx_mu);
    return rc;
}

void msg_received(ctx *c, int err, uint64_t len)
{
    gr_link *link = c->link;
    rail_st *rail = link->rail;
    header h;
    if (err) {
        rail_buf_put(rail, c->buf);
        return;
    }
    int rc = 0;
    if (len >= HDR)
        memcpy(&h, c->buf->data, HDR);
    if (len < HDR || len > rail_msg_size(rail) || h.magic != MAGIC || h.version != VERSION) {
        COUNT(rail->core, GR_C_BAD_MSG, 1);
        rc = -EBADMSG;
    } else if ((h.kind == KIND_NOTIF || h.kind == KIND_SKIP) && link->role & GR_LINK_RX) {
        link->rx_msgs++;
        link->owed++;
        rc = take_notif(link->sess, &h, c->buf->data + HDR, len - HDR);
    } else if (h.kind == KIND_CREDIT && link->role & GR_LINK_TX && h.count <= RX_BUFS - link->credits) {
        link->credits += h.count;
    } else {
        COUNT(rail->core, GR_C_BAD_MSG, 1);
        rc = -EBADMSG;
    }
    if (link->state != LINK_UP) {
        rail_buf_put(rail, c->buf);
        return;
    }
    if (rc == 0)
        rc = post_recv(link, c->buf);
    else
        rail_buf_put(rail, c->buf);
    if (rc == -EAGAIN) {
        link->recv_debt++;
        rail->starved = 1;
    } else if (rc != 0) {
        link_error(link, -rc, 0);
    }
}

void msg_credit_cmd(rail_st *rail, cmd *self)
{
    (void)rail;
    gr_link *link = (gr_link *)(void *)((char *)self - offsetof(gr_link, credit_cmd));
    atomic_store(&link->credit_queued, 0);
    msg_pump(link);
}

static void start_msg(rail_st *rail, cmd *self)
{
    (void)rail;
    msg *m = (msg *)(void *)((char *)self - offsetof(msg, start));
    gr_link *link = m->link;
    msg_queue(link, m);
    msg_pump(link);
}

int gr_notify(gr_link *link, const void *body, size_t len)
{
    gr_sess *sess = link->sess;
    uint64_t size = len + OVERHEAD, before = atomic_fetch_add(&sess->tx_queued, size);
    msg *m = NULL;
    if (before && before + size > sess->core->cfg.notif_limit) {
        atomic_fetch_sub(&sess->tx_queued, size);
        return -EAGAIN;
    }
    if (!(m = calloc(1, sizeof *m + len))) {
        atomic_fetch_sub(&sess->tx_queued, size);
        return -ENOMEM;
    }
    m->body = (char *)(m + 1);
    if (len)
        memcpy(m->body, body, len);
    m->len = len;
    m->link = link;
    m->start.run = start_msg;
    rail_st *rail = link->rail;
    rail_push(rail, &m->start);
    rail_run(rail);
    rail_unstarve(rail);
    return 0;
}
