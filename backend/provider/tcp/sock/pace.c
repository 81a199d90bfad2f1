/* Whether packing makes a connection faster: by how many bytes of the application leave in a window of time, packed and in clear.
 *
 * A window has frames of one way, and ends with WINDOW bytes. It counts if there was always something to send: then it has the socket's
 * pace, which is that of the wire, of the peer's processor, or of this one. Packing is tried when the codec's pace and gain promise
 * TRY more than was measured in clear. It stays while it is KEEP faster. If it loses, it is tried again after a pause that doubles. */
#include "sock.h"

enum {
    WINDOW = 4 << 20,             /* bytes; 1 MiB: the socket's buffer of 512 KiB hides the pace */
    CLEAR_EVERY = 64,             /* windows after which a connection that packs measures one in clear: 0.7 % of the gain */
    FIRST_PAUSE_NS = 1000000000,  /* a window that packs at half the pace costs 4 MiB of time: less than 1 % in a second of 500 MB/s */
    MOST_DOUBLED = 6,             /* pauses: a minute */
};
static const double TRY = 1.1, KEEP = 1.03, WEIGHT = 0.25;

static double mean(double old, double is) { return old > 0 ? old + WEIGHT * (is - old) : is; }

/* Bytes a nanosecond that packing promises: as fast as the codec packs, or as the socket takes what it makes. */
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
        p->next = now + (FIRST_PAUSE_NS << p->lost);
        p->lost += p->lost < MOST_DOUBLED;
        return 0;
    }
    if (p->codec == 0) /* not known: one window tells */
        return 1;
    if (p->rate[1] > KEEP * p->rate[0]) /* it has just measured one in clear */
        return 1;
    return now >= p->next && promised(p) > TRY * p->rate[0];
}

int tcp_pace_packs(tcp_conn *conn) { return conn->rail->pack->mode == TCP_PACK_ON || conn->pace.packing; }

void tcp_pace_packed(tcp_conn *conn, uint32_t text, uint32_t packed, uint64_t ns)
{
    tcp_pace *p = &conn->pace;
    if (ns)
        p->codec = mean(p->codec, (double)text / (double)ns);
    p->gain = mean(p->gain, packed ? (double)text / (double)packed : 1);
}

void tcp_pace_sent(tcp_conn *conn, uint32_t text)
{
    tcp_pace *p = &conn->pace;
    if (!conn->packs || conn->rail->pack->mode != TCP_PACK_AUTO || text < TCP_PACK_LEAST)
        return;
    uint64_t now = tcp_copy_clock();
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

void tcp_pace_idle(tcp_conn *conn) { conn->pace.since = 0; }
