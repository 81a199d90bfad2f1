/* Outgoing notifications: their list on a link, their numbers, their end. */
#include "message.h"

#include <errno.h>
#include <stdlib.h>

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
        m->ended(m, err);
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
    m->ended(m, err);
    return 0;
}
