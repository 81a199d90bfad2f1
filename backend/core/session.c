/* Sessions: the state that all links of a session share, numbers of notifications, queues to Go and to the application. */
#include "base.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* ---- Sequence numbers of notifications. One notification may be stuck on its rail while later ones arrive. The peer keeps the
 * later ones, within limits (notify.Limits). Beyond these limits the peer ends the session.
 * So a notification gets its number only while few numbers are open since the oldest unacknowledged one. The other
 * notifications wait in their queues, and numbered notifications pass them. */

enum {
    BLOCK_NUMBERS = 2048,      /* TX_BLOCKS blocks fit the answer to a fence (wire.MaxHave), and are a quarter of the peer's limit */
    BLOCK_BYTES = 4 << 20,
    MAX_BYTES = 48 << 20,      /* the peer's limit is 64 MiB; a longer notification goes alone */
    MSG_OVERHEAD = 512,        /* at least what the peer counts for a notification besides its body */
};

/* Reserves room in a block for one notification of so many bytes. 0: no room. Caller holds tx.mu. */
static int reserve(gr_sess *s, uint64_t bytes, uint8_t *block)
{
    tx_block *b = &s->tx.blocks[s->tx.newest % TX_BLOCKS];
    if (s->tx.resent || (s->tx.bytes && s->tx.bytes + bytes > MAX_BYTES))
        return 0;
    if (b->numbers == BLOCK_NUMBERS || b->bytes >= BLOCK_BYTES) {
        if (s->tx.newest + 1 - s->tx.oldest == TX_BLOCKS)
            return 0;
        b = &s->tx.blocks[++s->tx.newest % TX_BLOCKS];
        *b = (tx_block){0};
    }
    b->numbers++;
    b->left++;
    b->bytes += bytes;
    s->tx.bytes += bytes;
    *block = (uint8_t)(s->tx.newest % TX_BLOCKS);
    return 1;
}

/* Gives the next number and its block. 0: no room yet; sess_acked wakes the thread when there is room. */
int sess_number(gr_sess *s, size_t len, uint8_t *block, uint64_t *seq)
{
    pthread_mutex_lock(&s->tx.mu);
    int placed = reserve(s, len + MSG_OVERHEAD, block);
    if (placed)
        *seq = atomic_fetch_add_explicit(&s->tx.seq, 1, memory_order_relaxed);
    else
        s->tx.held = 1;
    pthread_mutex_unlock(&s->tx.mu);
    return placed;
}

/* Registers a notification that keeps its number of an earlier session. While such a notification is out, no new number is
 * given: the peer may hold as many notifications behind it as its limits allow. */
uint8_t sess_resent(gr_sess *s)
{
    pthread_mutex_lock(&s->tx.mu);
    s->tx.resent++;
    pthread_mutex_unlock(&s->tx.mu);
    return TX_RESENT;
}

/* Counts one acknowledged notification of the block. Returns 1 if it was the block's last. Caller holds tx.mu. */
static int block_acked(gr_sess *s, uint8_t block)
{
    if (block == TX_RESENT)
        return --s->tx.resent == 0;
    tx_block *b = &s->tx.blocks[block];
    int last = --b->left == 0;
    for (; last && s->tx.oldest < s->tx.newest && !(b = &s->tx.blocks[s->tx.oldest % TX_BLOCKS])->left; s->tx.oldest++)
        s->tx.bytes -= b->bytes;
    b = &s->tx.blocks[s->tx.oldest % TX_BLOCKS];
    if (last && !b->left) { /* the peer has every numbered notification */
        *b = (tx_block){0};
        s->tx.bytes = 0;
    }
    return last;
}

/* The peer has received a message of the block, or will receive a SKIP instead. */
void sess_acked(gr_sess *s, uint8_t block)
{
    pthread_mutex_lock(&s->tx.mu);
    int wake = block_acked(s, block) && s->tx.held;
    if (wake)
        s->tx.held = 0;
    pthread_mutex_unlock(&s->tx.mu);
    if (wake) /* links of any rail may wait for a number */
        core_wake(s->core);
}

/* ---- Queues to the layers above: events for Go, notifications for the application. */

/* Adds bytes to one of the session's two queues of incoming notifications: ready_bytes or handed_bytes. */
static void sess_fill(gr_sess *sess, _Atomic uint64_t *queue, uint64_t size)
{
    atomic_fetch_add(&sess->core->notif_bytes, size);
    atomic_fetch_add(queue, size);
}

int core_event_nodes(gr_core *core, uint32_t n)
{
    struct event_node *list = NULL;
    for (; n; n--) {
        struct event_node *e = GR_ALLOC(core_event_nodes, calloc(1, sizeof *e));
        if (!e)
            break;
        e->next = list;
        list = e;
    }
    pthread_mutex_lock(&core->events.mu);
    for (struct event_node *e = list, *next; e; e = next) {
        next = e->next;
        e->next = core->events.spare;
        core->events.spare = e;
    }
    pthread_mutex_unlock(&core->events.mu);
    return n ? -ENOMEM : 0;
}

static void wake(gr_core *core)
{
    uint64_t one = 1;
    ssize_t w = write(core->events.fd, &one, sizeof one);
    (void)w;
}

static void put(gr_core *core, struct event_node *n)
{
    pthread_mutex_lock(&core->events.mu);
    int first = !core->events.first;
    n->next = NULL;
    if (first)
        core->events.first = n;
    else
        core->events.last->next = n;
    core->events.last = n;
    pthread_mutex_unlock(&core->events.mu);
    if (first)
        wake(core);
}

/* Keeps an event that there is no memory for with its link or transfer, under events.mu. Those of an earlier endpoint or transfer say
 * nothing any more. */
static void owe(const gr_event *ev, struct owed *owed)
{
    if (owed->kind != ev->kind || owed->id != ev->id || owed->seq != ev->seq)
        *owed = (struct owed){.id = ev->id, .seq = ev->seq, .kind = ev->kind};
    owed->plain |= !ev->code && !owed->code;
    owed->code = ev->code ? ev->code : owed->code;
}

void core_event(gr_core *core, const gr_event *ev, struct owed *owed, const _Atomic uint64_t *now)
{
    struct event_node *n = NULL;
    pthread_mutex_lock(&core->events.mu);
    if (!owed->kind && (n = core->events.spare))
        core->events.spare = n->next;
    int later = owed->kind != 0; /* the order of an object's events stays */
    pthread_mutex_unlock(&core->events.mu);
    if (!n && !later)
        n = GR_ALLOC(core_event, malloc(sizeof *n));
    if (n) {
        *n = (struct event_node){.ev = *ev};
        put(core, n);
        return;
    }
    pthread_mutex_lock(&core->events.mu);
    int first = 0;
    if (!now || atomic_load(now) == ev->id) { /* else a later transfer has the slot: Go has freed this one, and asks no more */
        owe(ev, owed);
        first = !atomic_exchange(&core->events.owed, 1);
    }
    pthread_mutex_unlock(&core->events.mu);
    if (first)
        wake(core);
}

int core_event_msg(gr_sess *sess, const gr_event *ev)
{
    struct event_node *n = GR_ALLOC(core_event_msg, malloc(sizeof *n));
    if (!n)
        return -ENOMEM;
    *n = (struct event_node){.ev = *ev, .sess = sess};
    atomic_fetch_add(&sess->refs, 1);
    sess_fill(sess, &sess->handed_bytes, ev->len + OVERHEAD);
    put(sess->core, n);
    return 0;
}

int gr_event_fd(gr_core *core) { return core->events.fd; }

/* Whether the session's queues are full. The peer then gets no more credits for now. */
int sess_full(gr_sess *sess)
{
    const gr_core_cfg *cfg = &sess->core->cfg;
    uint64_t ready = atomic_load(&sess->ready_bytes), handed = atomic_load(&sess->handed_bytes);
    if (ready >= cfg->notif_limit || handed >= cfg->notif_limit) /* limit:session_notifications */
        return 1;
    /* limit:notifications */
    return cfg->notif_total && (ready >= FAIR || handed >= FAIR) && atomic_load(&sess->core->notif_bytes) >= cfg->notif_total;
}

int core_events_owed(gr_core *core, struct owed *owed, gr_event *out, int max)
{
    int n = 0;
    pthread_mutex_lock(&core->events.mu);
    if (owed->kind && owed->plain + (owed->code != 0) > max) {
        n = -1;
    } else if (owed->kind) {
        gr_event ev = {.kind = owed->kind, .id = owed->id, .seq = owed->seq};
        if (owed->plain)
            out[n++] = ev;
        ev.code = owed->code;
        if (ev.code)
            out[n++] = ev;
        owed->kind = 0;
    }
    pthread_mutex_unlock(&core->events.mu);
    return n;
}

int core_events_queued(gr_core *core, gr_event *out, int max)
{
    int n = 0;
    struct event_node *list, **end = &list;
    pthread_mutex_lock(&core->events.mu);
    while (n < max && core->events.first) {
        struct event_node *e = core->events.first;
        core->events.first = e->next;
        out[n++] = e->ev;
        *end = e;
        end = &e->next;
    }
    *end = NULL;
    for (end = &list; *end;) {
        struct event_node *e = *end;
        if (e->sess) {
            end = &e->next;
            continue;
        }
        *end = e->next;
        e->next = core->events.spare;
        core->events.spare = e;
    }
    pthread_mutex_unlock(&core->events.mu);
    for (struct event_node *e = list, *next; e; e = next) {
        next = e->next;
        sess_unref(e->sess);
        free(e);
    }
    return n;
}

void core_ready(gr_sess *sess, gr_notif *n)
{
    gr_core *core = sess->core;
    n->next = NULL;
    pthread_mutex_lock(&core->ready.mu);
    if (core->ready.first)
        core->ready.last->next = n;
    else
        core->ready.first = n;
    core->ready.last = n;
    atomic_fetch_add(&core->ready.n, 1);
    pthread_mutex_unlock(&core->ready.mu);
    COUNT(core, GR_C_NOTIF_RECEIVED, 1);
}

static gr_notif *notif_new(gr_sess *sess, const void *body, size_t len)
{
    gr_notif *n = GR_ALLOC(core_notif_in, malloc(sizeof *n + sess->name_len + len));
    if (!n)
        return NULL;
    char *p = (char *)(n + 1);
    memcpy(p, sess->name, sess->name_len); /* ours */
    if (len)
        memcpy(p + sess->name_len, body, len); /* ours */
    *n = (gr_notif){NULL, p, p + sess->name_len, sess->name_len, len, sess};
    atomic_fetch_add(&sess->refs, 1);
    sess_fill(sess, &sess->ready_bytes, len + sess->name_len + OVERHEAD);
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
