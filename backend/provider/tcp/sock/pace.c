/* Whether packing is faster: the initiator of a transfer measures how many bytes of the application move in a window, packed and in clear, for
 * WRITEs and for READs. It packs its WRITEs, and asks for packed answers. The connections of a session between two addresses are measured
 * together: one that packed beside three in clear lost its share of the wire to them (25 Gbit/s, 16 processors: auto stayed in clear).
 *
 * A window has frames of one way. It ends with WINDOW bytes and WINDOW_NS in which operations were under way; pauses do not count. It then
 * has the pace of the wire, of the peer's processor, or of this one. After a change of the way it begins SETTLE_NS later: until then the wire's
 * queue has bytes of the other way. A trial has windows of both ways in turn, so that what changes meanwhile changes both. Packing stays while it is KEEP faster in a trial. If it loses, there is no trial for a pause that doubles. */
#include <stdlib.h>

#include "gr_failpoint.h"
#include "sock.h"

enum {
    WINDOW = 4 << 20,            /* bytes; of 1 MiB the socket's buffer of 512 KiB hides the pace */
    /* A shaper lets through bursts of some ms, and four connections share a wire unequally: at 25 Gbit/s single windows of 4 MiB differed by
     * half, and packing that was 1.43 and 1.57 times as fast lost (16 processors). */
    WINDOW_NS = 20 * 1000000,
    /* Without it, trials found packing 1.00 to 1.28 times as fast where it was 1.43 times as fast, and one of three lost (25 Gbit/s, a queue of
     * 20 ms, 16 processors, 4 connections). */
    SETTLE_NS = 20 * 1000000,
    TRIAL = 8,                   /* windows: in clear, packed, in clear ... */
    EACH = 256,                  /* packed windows between two trials, 5 s at least: a trial has 160 ms in clear */
    FIRST_PAUSE_NS = 2000000000, /* a trial has 160 ms packed, at 0.7 of the pace or more, or 40 ms at less: 2.4 % of 2 s */
    MOST_DOUBLED = 5,            /* pauses: a minute */
};
static const double KEEP = 1.03, HOPELESS = 0.7; /* of the pace in clear, after one window of each way */

static double rate(const tcp_pace *p, int way) { return (double)p->sum[way].text / (double)(p->sum[way].ns + 1); }

/* tcp_pace_packs reads it without the lock. */
static void way(tcp_pace *p, int packing)
{
    p->settles |= packing != p->packing;
    __atomic_store_n(&p->packing, (uint8_t)packing, __ATOMIC_RELAXED);
}

static void lose(tcp_pace *p, uint64_t now)
{
    way(p, 0);
    p->step = 0;
    p->next = now + ((uint64_t)FIRST_PAUSE_NS << p->lost);
    p->lost += p->lost < MOST_DOUBLED;
}

static void win(tcp_pace *p)
{
    way(p, 1);
    p->step = 0;
    p->left = EACH;
    p->lost = 0;
}

/* A window of a trial has ended. */
static void tried(tcp_pace *p, uint64_t ns, uint64_t now)
{
    p->sum[p->packing].text += p->text;
    p->sum[p->packing].ns += ns;
    double gain = rate(p, 1) / rate(p, 0);
    if (p->step == 2 && gain < HOPELESS) {
        lose(p, now);
    } else if (p->step < TRIAL) {
        p->step++;
        way(p, !p->packing);
    } else if (gain >= KEEP) {
        win(p);
    } else {
        lose(p, now);
    }
}

static void trial_begins(tcp_pace *p)
{
    p->sum[0] = p->sum[1] = (struct tcp_pace_sum){0};
    p->step = 1;
    way(p, 0);
}

static void window_ends(tcp_pace *p, uint64_t ns, uint64_t now)
{
    if (p->step) {
        tried(p, ns, now);
    } else if (p->packing) {
        if (--p->left == 0)
            trial_begins(p); /* with the next window */
    } else if (now >= p->next) {
        trial_begins(p); /* with this one */
        tried(p, ns, now);
    }
}

tcp_paces *tcp_paces_new(void)
{
    tcp_paces *p = GR_ALLOC(tcp_paces, calloc(1, sizeof(*p)));
    if (p)
        pthread_mutex_init(&p->mu, NULL);
    return p;
}

void tcp_paces_free(tcp_paces *p)
{
    if (!p)
        return;
    pthread_mutex_destroy(&p->mu);
    free(p);
}

static int measures(const tcp_conn *conn) { return conn->packs && conn->paces && conn->rail->pack->mode == TCP_PACK_AUTO; }

int tcp_pace_packs(const tcp_conn *conn, int read)
{
    return conn->packs && (conn->rail->pack->mode == TCP_PACK_ON || (conn->paces && __atomic_load_n(&conn->paces->way[read].packing, __ATOMIC_RELAXED)));
}

static void window_begins(tcp_pace *p, uint64_t since)
{
    p->open = since != 0;
    p->since = since;
    p->ns = p->text = 0;
}

static void moved(tcp_pace *p, int packing, uint32_t text)
{
    if (packing != p->packing) { /* asked for, or planned, before the window */
        window_begins(p, 0);
        return;
    }
    uint64_t now = tcp_copy_clock();
    if (!p->open) { /* the window begins behind this frame */
        window_begins(p, now);
        return;
    }
    uint64_t ns = p->ns + (p->since ? now - p->since : 0);
    if (p->settles) {
        if (ns >= SETTLE_NS) {
            p->settles = 0;
            window_begins(p, now);
        }
        return;
    }
    p->text += text;
    if (p->text < WINDOW || ns < WINDOW_NS)
        return;
    window_ends(p, ns, now);
    window_begins(p, packing == p->packing ? now : 0);
}

void tcp_pace_moved(tcp_conn *conn, int read, int packing, uint32_t text)
{
    if (!measures(conn) || text < TCP_PACK_LEAST)
        return;
    pthread_mutex_lock(&conn->paces->mu);
    moved(&conn->paces->way[read], packing, text);
    pthread_mutex_unlock(&conn->paces->mu);
}

/* READs count for READs alone: connections that never stop writing have pauses between them, too. */
static void under_way(tcp_conn *conn, int read, int begins)
{
    pthread_mutex_lock(&conn->paces->mu);
    tcp_pace *p = &conn->paces->way[read];
    if (begins && p->busy++ == 0 && p->open)
        p->since = tcp_copy_clock();
    if (!begins && --p->busy == 0) {
        p->ns += p->open && p->since ? tcp_copy_clock() - p->since : 0;
        p->since = 0;
    }
    pthread_mutex_unlock(&conn->paces->mu);
}

void tcp_pace_begins(tcp_conn *conn, const tcp_op *op)
{
    if (measures(conn) && (op->kind == TCP_WRITE || op->kind == TCP_READ) && conn->under[op->kind == TCP_READ]++ == 0)
        under_way(conn, op->kind == TCP_READ, 1);
}

void tcp_pace_ends(tcp_conn *conn, const tcp_op *op)
{
    if (measures(conn) && (op->kind == TCP_WRITE || op->kind == TCP_READ) && --conn->under[op->kind == TCP_READ] == 0)
        under_way(conn, op->kind == TCP_READ, 0);
}

void tcp_pace_leave(tcp_conn *conn)
{
    for (int read = 0; read < 2; read++)
        if (conn->under[read])
            under_way(conn, read, 0);
    conn->under[0] = conn->under[1] = 0;
}
