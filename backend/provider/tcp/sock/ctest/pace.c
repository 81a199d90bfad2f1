/* pace.c with a clock of its own: a connection moves bodies of 64 KiB, as many of them under way as a peer takes READs. Each scenario prints
 * the 1024ths of its bytes that were asked for packed.
 *   faster   packing makes the wire 1.4 times as fast
 *   slower   packing takes half of the pace
 *   begins   the same, and the first 4 MiB take ten times as long: TCP begins slowly
 *   changes  bytes do not gain for 100 s; then packing is 1.4 times as fast: the 200 s after that count
 *   bursts   packing is 1.4 times as fast, but bodies take up to twice their time, at random, and transfers are of 16 MiB: after a pause of 2 ms
 *            4 MiB come at once
 *   mixed    the same with pauses of up to 200 ms, in which the connection has a WRITE under way
 *   noise    bodies take up to twice their time, at random, and packing is 0.95 times as fast
 *   queue    packing is 1.4 times as fast, and 16 ms lie between a body that is written and the wire
 *   stopped  packing is 1.4 times as fast, but the process is stopped for 10 s in the first packed window: the 8 GiB after it count
 */
#ifdef PACE_MAIN
#include <stdio.h>
#include <string.h>

#include "../sock.h"

enum { BODY = 64 << 10, DEEP = 64 };
static const uint64_t MIB = 1 << 20, SECOND = 1000000000;
static uint64_t now = 1;

uint64_t tcp_copy_clock(void) { return now; }

static struct {
    tcp_rail rail;
    tcp_pack_rail pack;
    tcp_paces paces;
    tcp_conn conn;
    uint8_t ways[DEEP]; /* of those that are under way */
    uint64_t n;
} end = {.rail.pack = &end.pack, .pack.mode = TCP_PACK_AUTO, .conn.rail = &end.rail, .conn.packs = 1, .conn.paces = &end.paces, .paces.mu = PTHREAD_MUTEX_INITIALIZER};

/* The next body comes, after its time at 1 byte a nanosecond in clear, and another one is asked for. Returns whether it was packed. */
static int moves(double packed, uint64_t more)
{
    uint8_t *at = &end.ways[end.n++ % DEEP], way = *at;
    now += (uint64_t)(BODY / (way ? packed : 1)) + more;
    tcp_pace_moved(&end.conn, 1, way, BODY);
    *at = (uint8_t)tcp_pace_packs(&end.conn, 1);
    return way;
}

/* The next body is written, while one that was written 256 before leaves for the wire. Returns whether it is packed. */
static int writes(double packed)
{
    static uint8_t queue[256];
    uint8_t *at = &queue[end.n++ % 256], way = (uint8_t)tcp_pace_packs(&end.conn, 0);
    now += (uint64_t)(BODY / (*at ? packed : 1));
    tcp_pace_moved(&end.conn, 0, way, BODY);
    return *at = way;
}

/* A transfer of 16 MiB, and a pause: its first 4 MiB come at once. Returns its packed bytes. */
static uint64_t transfer(double packed, int bursts)
{
    static uint32_t random = 1;
    const tcp_op op = {.kind = TCP_READ};
    uint64_t sum = 0;
    if (bursts)
        tcp_pace_begins(&end.conn, &op);
    for (int i = 0; i < 256; i++) {
        random = random * 1664525 + 1013904223;
        uint64_t before = now;
        int way = moves(packed, (uint64_t)(random >> 8) * BODY >> 24);
        now = bursts && i < 64 ? before : now;
        sum += way ? BODY : 0;
    }
    if (bursts)
        tcp_pace_ends(&end.conn, &op);
    now += (bursts & 1) * 2000000;
    now += bursts == 2 ? (uint64_t)(random >> 8) * 200000000 >> 24 : 0;
    return sum;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    double packed = !strcmp(what, "noise") ? 0.95 : strcmp(what, "slower") && strcmp(what, "begins") ? 1.4 : 0.5;
    uint64_t sum = 0, all = 0;
    if (!strcmp(what, "mixed"))
        tcp_pace_begins(&end.conn, &(tcp_op){.kind = TCP_WRITE});
    if (!strcmp(what, "bursts") || !strcmp(what, "mixed") || !strcmp(what, "noise")) {
        for (; all < 65536 * MIB; all += 256 * BODY)
            sum += transfer(packed, !strcmp(what, "bursts") ? 1 : !strcmp(what, "mixed") ? 2 : 0);
        printf("%llu\n", (unsigned long long)(sum * 1024 / all));
        return 0;
    }
    for (int i = 0; i < 65 && !strcmp(what, "begins"); i++)
        (void)moves(1, BODY * 9);
    while (!strcmp(what, "changes") && now < 100 * SECOND)
        (void)moves(1, 0);
    while (!strcmp(what, "stopped") && !moves(packed, 0)) {
    }
    if (!strcmp(what, "stopped"))
        now += 10 * SECOND;
    uint64_t until = now + 200 * SECOND;
    for (; all < 32768 * MIB && !strcmp(what, "queue"); all += BODY)
        sum += writes(packed) ? BODY : 0;
    for (; all < 8192 * MIB || (!strcmp(what, "changes") && now < until); all += BODY)
        sum += moves(packed, 0) ? BODY : 0;
    printf("%llu\n", (unsigned long long)(sum * 1024 / all));
    return 0;
}
#endif
