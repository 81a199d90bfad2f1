/* Whether packing makes a connection faster: the initiator of a transfer measures how many bytes of the application move in a window of
 * time, packed and in clear, for WRITEs and for READs. It packs its WRITEs, and asks for packed answers.
 *
 * A window has frames of one way, and ends with WINDOW bytes. It counts if operations were always under way, but for short pauses: then it has
 * the pace of the wire, of the peer's processor, or of this one. Packing is tried when the codec's pace and the gain promise TRY more than
 * was measured in clear. It stays while it is KEEP faster. If it loses, it is tried again after a pause that doubles. */
#include "sock.h"

enum {
    WINDOW = 4 << 20,             /* bytes; of 1 MiB the socket's buffer of 512 KiB hides the pace */
    SHORT_PAUSE_NS = 1000000,     /* between two transfers of a loop; longer ones are no pace of the wire */
    CLEAR_EVERY = 64,             /* windows after which a connection that packs measures one in clear: 0.7 % of the gain */
    FIRST_PAUSE_NS = 1000000000,  /* a window that packs at half the pace costs 4 MiB of time: less than 1 % in a second of 500 MB/s */
    MOST_DOUBLED = 6,             /* pauses: a minute */
};
static const double TRY = 1.1, KEEP = 1.03, WEIGHT = 0.25;

static double mean(double old, double is) { return old > 0 ? old + WEIGHT * (is - old) : is; }

/* Bytes a nanosecond that packing promises: as fast as the codec works, or as the wire takes what it makes. */
static double promised(const tcp_pace *p)
{
    double wire = p->rate[0] * p->gain;
    return wire < p->codec ? wire : p->codec;
}

/* The way of the next window. */
static uint8_t choose(tcp_pace *p, uint64_t now)
{
    if (p->packing) {
        if (p->rate[1] >= KEEP * p->rate[0]) {
            p->lost = 0;
            return ++p->windows % CLEAR_EVERY != 0;
        }
        p->next = now + ((uint64_t)FIRST_PAUSE_NS << p->lost);
        p->lost += p->lost < MOST_DOUBLED;
        return 0;
    }
    if (now < p->next)
        return 0;
    if (p->codec == 0 || p->rate[1] > KEEP * p->rate[0]) /* one window tells; it has just measured one in clear */
        return 1;
    return promised(p) > TRY * p->rate[0];
}

static int measures(const tcp_conn *conn) { return conn->packs && conn->rail->pack->mode == TCP_PACK_AUTO; }

int tcp_pace_packs(const tcp_conn *conn, int read)
{
    return conn->packs && (conn->rail->pack->mode == TCP_PACK_ON || conn->pace[read].packing);
}

void tcp_pace_codec(tcp_conn *conn, int read, uint32_t text, uint64_t ns)
{
    if (ns)
        conn->pace[read].codec = mean(conn->pace[read].codec, (double)text / (double)ns);
}

void tcp_pace_moved(tcp_conn *conn, int read, uint32_t text, uint32_t bytes)
{
    tcp_pace *p = &conn->pace[read];
    if (!measures(conn) || text < TCP_PACK_LEAST)
        return;
    uint64_t now = tcp_copy_clock();
    if (p->packing)
        p->gain = mean(p->gain, (double)text / (double)bytes);
    if (!p->since) { /* the window begins behind this frame */
        p->since = now;
        p->text = 0;
        return;
    }
    p->text += text;
    if (p->text < WINDOW || now <= p->since)
        return;
    double *rate = &p->rate[p->packing];
    *rate = mean(*rate, (double)p->text / (double)(now - p->since));
    p->packing = choose(p, now);
    p->since = now;
    p->text = 0;
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
