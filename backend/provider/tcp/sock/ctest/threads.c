/* Threads that use one rail at once: two poll, one registers and deregisters, one connects and closes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../sock.h"

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #x, errno), abort()))

enum { SIZE = 256 << 10, LIVES = 60, DEPTH = 8 };

static tcp_rail *rail;
static uint8_t *mem; /* the first half is registered for good, the second comes and goes */
static _Atomic int stop;
static const uint8_t salt[16] = {9}, secret[32] = {8};
static gr_ctx ctx[2 * DEPTH];

static void *polls(void *arg)
{
    gr_comp c[32];
    (void)arg;
    while (!atomic_load(&stop)) {
        gr_rail_lock(&rail->base);
        rail->base.ops->poll(&rail->base, c, 32);
        gr_rail_unlock(&rail->base);
    }
    return NULL;
}

static void *registers(void *arg)
{
    (void)arg;
    for (uint8_t v = 1; !atomic_load(&stop); v++) {
        uint32_t n;
        CHECK(tcp_register(rail, (uintptr_t)mem + SIZE, SIZE, 7, TCP_PEERS_READ | TCP_PEERS_WRITE, NULL, &n) == 0 && n == 1);
        usleep(50);
        tcp_deregister(rail, n);
        memset(mem + SIZE, v, SIZE); /* ours again: a race if a peer's bytes still land */
    }
    return NULL;
}

/* Each life: two ends of the same rail write and read over a socketpair. */
static void life(int i)
{
    int fd[2];
    tcp_conn *c[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) == 0);
    for (int k = 0; k < 2; k++) {
        CHECK((c[k] = tcp_conn_new(rail)));
        tcp_conn_begin(c[k], salt);
        CHECK(i % 3 == 0 || tcp_conn_encrypt(c[k], secret, k) == 0);
        CHECK(tcp_conn_attach(c[k], fd[k]) == 0);
    }
    uint32_t region = i % 2;
    for (int n = 0; n < DEPTH; n++) {
        gr_seg s = {.laddr = (uintptr_t)mem + 2 * SIZE,
                    .raddr = (uint64_t)region << TCP_OFFSET_BITS,
                    .len = SIZE,
                    .rkey = tcp_session_key(salt, region ? 7 : 6, region)};
        gr_rail_lock(&rail->base);
        rail->base.ops->rma(&rail->base, c[n % 2], n % 3 == 2 ? GR_READ : GR_WRITE, 1, &s, &ctx[n]); /* it may fail: the region is gone */
        gr_rail_unlock(&rail->base);
    }
    usleep(i % 7 * 100);
    tcp_conn_close(c[i % 2]);
    tcp_conn_close(c[1 - i % 2]);
}

void threads(void)
{
    int err;
    char why[256];
    uint32_t n;
    pthread_t t[3];
    CHECK((rail = tcp_rail_new(0, &err)) && tcp_rail_encrypt(rail, "", why, sizeof(why)) == 0 && (mem = calloc(3, SIZE)));
    CHECK(tcp_register(rail, (uintptr_t)mem, SIZE, 6, TCP_PEERS_READ | TCP_PEERS_WRITE, NULL, &n) == 0 && n == 0);
    CHECK(pthread_create(&t[0], NULL, polls, NULL) == 0 && pthread_create(&t[1], NULL, polls, NULL) == 0);
    CHECK(pthread_create(&t[2], NULL, registers, NULL) == 0);
    for (int i = 0; i < LIVES; i++)
        life(i);
    atomic_store(&stop, 1);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
    tcp_deregister(rail, 0);
    CHECK(tcp_rail_free(rail) == 0);
    free(mem);
}
