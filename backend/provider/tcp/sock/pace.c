/* Whether packing makes a connection faster: the initiator of a transfer measures how many bytes of the application move in a window of
 * time, packed and in clear, for WRITEs and for READs. It packs its WRITEs, and asks for packed answers.
 *
 * A window has frames of one way, and ends with WINDOW bytes. It counts if operations were always under way, but for short pauses: then it has
 * the pace of the wire, of the peer's processor, or of this one. Packing stays while it is KEEP faster than what was measured in clear. If it
 * loses, it is tried again after a pause that doubles, whatever was measured before: wires, processors and bytes change. */
#include "sock.h"

enum {
    WINDOW = 4 << 20,             /* bytes; of 1 MiB the socket's buffer of 512 KiB hides the pace */
    SHORT_PAUSE_NS = 1000000,     /* between two transfers of a loop; longer ones are no pace of the wire */
    CLEAR_FIRST = 4,              /* windows after which a connection that packs measures one in clear: TCP may have begun slowly */
    CLEAR_EVERY = 64,             /* ... and then again: 3 % of the gain, for two windows */
    FIRST_PAUSE_NS = 1000000000,  /* a window that packs at half the pace costs 4 MiB of time: less than 1 % in a second of 500 MB/s */
    MOST_DOUBLED = 6,             /* pauses: a minute */
};
static const double KEEP = 1.03, WEIGHT = 0.25;

static double mean(double old, double is) { return old > 0 ? old + WEIGHT * (is - old) : is; }

/* A connection that packs measures in clear now. */
static int samples(const tcp_pace *p) { return !p->packing && p->rate[1] > 0 && !p->next; }

static uint8_t lose(tcp_pace *p, uint64_t now)
{
    p->next = now + ((uint64_t)FIRST_PAUSE_NS << p->lost);
    p->lost += p->lost < MOST_DOUBLED;
    return 0;
}

/* The way of the next window. */
static uint8_t choose(tcp_pace *p, uint64_t now)
{
    int wins = p->rate[1] >= KEEP * p->rate[0];
    if (p->packing && wins) {
        p->lost = 0;
        p->next = 0;
        p->windows++;
        return p->windows != CLEAR_FIRST && p->windows % CLEAR_EVERY != 0;
    }
    if (p->packing)
        return lose(p, now);
    if (samples(p))
        return wins ? 1 : lose(p, now);
    if (now < p->next)
        return 0;
    p->rate[1] = 0;
    p->windows = 0;
    return 1;
}

static int measures(const tcp_conn *conn) { return conn->packs && conn->rail->pack->mode == TCP_PACK_AUTO; }

int tcp_pace_packs(const tcp_conn *conn, int read)
{
    return conn->packs && (conn->rail->pack->mode == TCP_PACK_ON || conn->pace[read].packing);
}

void tcp_pace_moved(tcp_conn *conn, int read, int packing, uint32_t text)
{
    tcp_pace *p = &conn->pace[read];
    if (!measures(conn) || text < TCP_PACK_LEAST)
        return;
    if (packing != p->packing) { /* asked for, or planned, before the window */
        p->since = 0;
        return;
    }
    uint64_t now = tcp_copy_clock();
    if (!p->since) { /* the window begins behind this frame */
        p->since = now;
        p->text = 0;
        return;
    }
    p->text += text;
    if (p->text < WINDOW || now <= p->since)
        return;
    double *rate = &p->rate[p->packing], is = (double)p->text / (double)(now - p->since), first = p->sample;
    p->since = now;
    p->text = 0;
    if (samples(p)) { /* of two windows the slower one counts, since empty buffers make one faster; at once, since it comes seldom */
        p->sample = first > 0 ? 0 : is;
        if (first <= 0)
            return;
        is = is < first ? is : first;
    }
    *rate = samples(p) && is > *rate ? is : mean(*rate, is);
    p->packing = choose(p, now);
}

void tcp_pace_idle(tcp_conn *conn)
{
    if (measures(conn))
        conn->idle_since = tcp_copy_clock();
}

void tcp_pace_begins(tcp_conn *conn)
{
    if (!measures(conn) || !conn->idle_since || tcp_copy_clock() - conn->idle_since < SHORT_PAUSE_NS)
        return;
    conn->pace[0].since = conn->pace[1].since = 0;
}
