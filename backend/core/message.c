/* Outgoing notifications: their list on a link, their numbers, their end. */
#include "message.h"

#include <errno.h>
#include <stdlib.h>

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

/* Its place among the session's. 0: not yet. */
int msg_number(msg *m)
{
    gr_link *link = m->link;
    if (m->numbered)
        return 1;
    m->numbered = sess_number(link->sess, m->len, &m->block, &m->seq) != 0;
    if (m->numbered && link->plain == m)
        link->plain = m->next;
    return m->numbered;
}

/* It goes out under its number of a session before. */
void msg_resend(msg *m, uint64_t seq)
{
    m->numbered = 1;
    m->seq = seq;
    m->block = sess_resent(m->link->sess);
}

/* The peer has it (err 0), or it will never be sent. */
void msg_end(msg *m, int err)
{
    gr_link *link = m->link;
    msg_unlist(m);
    if (m->numbered)
        sess_proved(link->sess, m->block);
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
