/* Sessions: the state that all links of a session share. */
#include "session.h"

#include <stdlib.h>
#include <string.h>

gr_sess *gr_sess_new(gr_core *core, uint64_t id, const char *name, size_t name_len)
{
    gr_sess *s = GR_ALLOC(core_session, calloc(1, sizeof *s + name_len));
    if (!s)
        return NULL;
    s->core = core;
    s->id = id;
    s->name_len = name_len;
    memcpy(s->name, name, name_len); /* ours */
    pthread_mutex_init(&s->rx.mu, NULL);
    pthread_mutex_init(&s->tx.mu, NULL);
    atomic_init(&s->refs, 1);
    return s;
}

void sess_unref(gr_sess *sess)
{
    if (atomic_fetch_sub(&sess->refs, 1) != 1)
        return;
    atomic_fetch_sub(&sess->core->notif_bytes, atomic_load(&sess->handed_bytes)); /* messages that Go took and dropped */
    pthread_mutex_destroy(&sess->rx.mu);
    pthread_mutex_destroy(&sess->tx.mu);
    free(sess);
}

void gr_sess_free(gr_sess *sess) { sess_unref(sess); }

void gr_sess_resume(gr_sess *sess, uint64_t next_seq, uint64_t handled)
{
    pthread_mutex_lock(&sess->rx.mu);
    if (sess->rx.slow && handled == sess->rx.handed) {
        sess->rx.slow = 0;
        sess->rx.next = next_seq;
    }
    pthread_mutex_unlock(&sess->rx.mu);
}

uint64_t gr_sess_next_seq(gr_sess *sess, uint64_t *handed)
{
    pthread_mutex_lock(&sess->rx.mu);
    uint64_t n = sess->rx.next;
    *handed = sess->rx.handed;
    pthread_mutex_unlock(&sess->rx.mu);
    return n;
}

void gr_sess_continue(gr_sess *sess, uint64_t next, int held)
{
    sess->tx.seq = sess->rx.next = next;
    sess->rx.slow = held;
}

void gr_sess_end(gr_sess *sess)
{
    pthread_mutex_lock(&sess->rx.mu);
    sess->rx.ended = 1;
    pthread_mutex_unlock(&sess->rx.mu);
}

uint64_t gr_sess_queued(gr_sess *sess) { return atomic_load(&sess->tx_queued); }

uint64_t gr_sess_sent(gr_sess *sess) { return atomic_load(&sess->tx.seq); }
