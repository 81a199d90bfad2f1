/* The data path alone, for sanitizers.
 *   feed     standard input has conversations of peers: receives (1 byte), cut (2), length (4), bytes. Each goes to a rail over a
 *            connection of its own. Nothing outside the regions changes, nothing stays allocated.
 *   vectors  prints encoded headers and segments, which package tcpmodel compares with its own.
 *   keys     prints keys of records under the secret that the argument has in hexadecimal digits.
 *   exit     the process ends while threads make connections.
 *   failing  each call of libcrypto fails once: no connection goes on, none has a key that libcrypto did not derive.
 *   retired  memory of GPUs is deregistered while a GPU copies.
 *   stuck    a GPU does not copy for a while.
 *   threads  one thread polls, one registers and deregisters, one opens and closes, while peers write.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../record.h"

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #x, errno), abort()))

enum { REGION = 4096, REGIONS = 3, STEP = 2 * REGION, MEM = REGIONS * STEP };
static const uint8_t salt[16] = {1, 2, 3};
static uint8_t secret[32]; /* of records */
static const uint8_t rights[REGIONS] = {TCP_PEERS_READ | TCP_PEERS_WRITE, TCP_PEERS_READ, TCP_PEERS_WRITE};

static int listener(struct sockaddr_in *at)
{
    int l = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t len = sizeof(*at);
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(l >= 0 && bind(l, (void *)at, len) == 0 && listen(l, 16) == 0 && getsockname(l, (void *)at, &len) == 0);
    return l;
}

/* A connection of the rail. Returns the peer's end. */
static int pair(int l, const struct sockaddr_in *at, tcp_conn *conn, int sealed, int packed)
{
    int peer = socket(AF_INET, SOCK_STREAM, 0);
    struct linger now = {1, 0};
    CHECK(peer >= 0 && connect(peer, (const void *)at, sizeof(*at)) == 0);
    CHECK(setsockopt(peer, SOL_SOCKET, SO_LINGER, &now, sizeof(now)) == 0);
    int in = accept4(l, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    CHECK(in >= 0);
    tcp_conn_begin(conn, salt);
    if (sealed)
        CHECK(tcp_conn_encrypt(conn, secret, 0) == 0);
    if (packed)
        tcp_conn_pack(conn, NULL);
    CHECK(tcp_conn_attach(conn, in) == 0);
    return peer;
}

static int poll_once(tcp_rail *rail)
{
    gr_comp c[32];
    gr_rail_lock(&rail->base);
    int n = rail->base.ops->poll(&rail->base, c, 32);
    gr_rail_unlock(&rail->base);
    return n;
}

static void drain(tcp_rail *rail, int peer)
{
    static uint8_t sink[64 << 10];
    for (int quiet = 0; quiet < 3; quiet++) {
        if (poll_once(rail) > 0)
            quiet = 0;
        if (recv(peer, sink, sizeof(sink), MSG_DONTWAIT) > 0)
            quiet = 0;
    }
}

static void feed_one(tcp_rail *rail, int l, const struct sockaddr_in *at, int sealed, int packed, int receives, size_t cut, const uint8_t *text, size_t len)
{
    static gr_ctx ctx[8];
    uint8_t *bufs[4];
    uint8_t own[64] = {0};
    gr_seg seg = {.laddr = (uintptr_t)own, .len = sizeof(own)};
    tcp_conn *conn = tcp_conn_new(rail);
    CHECK(conn);
    int peer = pair(l, at, conn, sealed, packed);
    gr_rail_lock(&rail->base);
    for (int i = 0; i < 4; i++) {
        CHECK((bufs[i] = malloc(1024)));
        CHECK(i >= receives || rail->base.ops->recv(&rail->base, conn, bufs[i], 1024, NULL, &ctx[i]) == 0);
    }
    CHECK(rail->base.ops->rma(&rail->base, conn, GR_READ, 1, &seg, &ctx[4]) == 0);
    CHECK(rail->base.ops->rma(&rail->base, conn, GR_WRITE, 1, &seg, &ctx[5]) == 0);
    gr_rail_unlock(&rail->base);
    drain(rail, peer);
    for (size_t n; len; text += n, len -= n) {
        n = cut < len ? cut : len;
        if (send(peer, text, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            break;
        drain(rail, peer);
    }
    close(peer);
    tcp_conn_close(conn);
    for (int i = 0; i < 4; i++)
        free(bufs[i]); /* nothing touches them after Close */
    while (poll_once(rail) > 0)
        ;
}

static void feed(void)
{
    struct sockaddr_in at;
    int l = listener(&at), err;
    uint32_t number;
    uint8_t *mem[REGIONS], head[7];
    char why[256];
    tcp_rail *rail = tcp_rail_new(0, &err);
    CHECK(rail && tcp_rail_encrypt(rail, "", why, sizeof(why)) == 0);
    tcp_rail_tune(rail, 1 << 22, UINT64_C(64) << 30, TCP_RECORD_BODY);
    CHECK(tcp_rail_pack(rail, TCP_PACK_ON) == 0);
    tcp_rail_tune_packing(rail, 1, 1);
    for (int i = 0; i < REGIONS; i++) { /* exactly as large as the region: the sanitizer guards the rest */
        CHECK((mem[i] = calloc(1, REGION)));
        CHECK(tcp_register(rail, (uintptr_t)mem[i], REGION, 100 + (uint64_t)i, rights[i], NULL, &number) == 0 && number == (uint32_t)i);
    }
    long n = 0;
    for (; fread(head, 1, sizeof(head), stdin) == sizeof(head); n++) {
        size_t len = tcp_get32(head + 3);
        uint8_t *text = malloc(len + 1);
        CHECK(text && fread(text, 1, len, stdin) == len);
        feed_one(rail, l, &at, head[0] & 0x80, head[0] & 0x40, head[0] % 4, tcp_get16(head + 1) ? tcp_get16(head + 1) : 1, text, len);
        free(text);
    }
    for (int i = 0; i < REGIONS; i++) {
        tcp_deregister(rail, (uint32_t)i);
        free(mem[i]);
    }
    CHECK(tcp_rail_free(rail) == 0);
    close(l);
    printf("%ld\n", n);
}

static void vectors(void)
{
    uint8_t b[TCP_HEADER + TCP_SEGMENT];
    for (uint64_t i = 1; i <= 7; i++) {
        tcp_header h = {.op = (uint8_t)i,
                        .flags = (uint8_t)(i * 3),
                        .segments = (uint16_t)(i * 1111),
                        .len = (uint32_t)(i * 100000007),
                        .id = (uint32_t)(i * 200000011),
                        .status = (uint32_t)(i * 300000007),
                        .seq = i * UINT64_C(1000000000000003),
                        .ack = i * UINT64_C(2000000000000011)};
        tcp_segment s = {i * UINT64_C(1234567890123), tcp_get64((const uint8_t *)"regions") * i, (uint32_t)(i * 400000003)};
        tcp_put_header(b, &h);
        tcp_put_segment(b + TCP_HEADER, &s);
        for (size_t k = 0; k < sizeof(b); k++)
            printf("%02x", b[k]);
        printf(" %016llx\n", (unsigned long long)tcp_session_key(salt, i, (uint32_t)i));
    }
}

static void keys(void)
{
    uint8_t key[TCP_KEY + TCP_IV];
    char why[256];
    int err;
    tcp_rail *rail = tcp_rail_new(0, &err);
    CHECK(rail && tcp_rail_encrypt(rail, "", why, sizeof(why)) == 0);
    for (uint32_t i = 0; i < 8; i++) {
        CHECK(tcp_record_key(&rail->records->crypto, secret, i % 2, i / 2 * 0x1234567, key, key + TCP_KEY));
        for (size_t k = 0; k < sizeof(key); k++)
            printf("%02x", key[k]);
        printf("\n");
    }
    CHECK(tcp_rail_free(rail) == 0);
}

void ends(void);
void failing(void);
void threads(void);
void gpus(int lives);
void stuck_gpus(const char *what, int with_packed);
void retired_run(void);
void packs(long blocks);

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "gpus")) {
        gpus(argc > 2 ? atoi(argv[2]) : 1);
        return 0;
    }
    if (!strcmp(what, "retired")) {
        retired_run();
        return 0;
    }
    if (!strcmp(what, "pack")) {
        packs(argc > 2 ? atol(argv[2]) : 1);
        return 0;
    }
    if (!strcmp(what, "stuck")) {
        stuck_gpus(argc > 2 ? argv[2] : "", argc > 3);
        return 0;
    }
    for (int i = 0; argc > 2 && i < 32; i++)
        CHECK(sscanf(argv[2] + 2 * i, "%2hhx", &secret[i]) == 1);
    if (!strcmp(what, "keys"))
        keys();
    else if (!strcmp(what, "feed"))
        feed();
    else if (!strcmp(what, "vectors"))
        vectors();
    else if (!strcmp(what, "exit"))
        ends();
    else if (!strcmp(what, "failing"))
        failing();
    else if (!strcmp(what, "threads"))
        threads();
    else
        return 2;
    return 0;
}
