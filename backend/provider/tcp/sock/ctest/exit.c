/* A process ends while threads of its rail make connections. Before that rail the application has used libcrypto, whose handler of
 * exit frees its tables. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../record.h"

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #x, errno), abort()))

static _Atomic long made, failed;

static void *connects(void *arg)
{
    static const uint8_t secret[32] = {8};
    for (;;) {
        tcp_conn *conn = tcp_conn_new(arg);
        CHECK(conn);
        int err = tcp_conn_encrypt(conn, secret, 1);
        uint8_t head[TCP_RECORD_HEAD] = {0}, tag[TCP_TAG];
        for (int i = 0; i < 9 && !err; i++)
            CHECK(tcp_record_begin(conn->records, &conn->records->out, head) && tcp_crypto_tag(conn->records->crypto, conn->records->out.ctx, tag));
        tcp_conn_close(conn);
        err ? failed++ : made++;
    }
    return NULL;
}

/* Called last: libcrypto has ended. */
static void last(void)
{
    for (long n = made + failed; made + failed < n + 1000;)
        usleep(100);
    CHECK(failed > 900);
    printf("ended\n");
    fflush(stdout);
    _exit(0); /* the threads go on */
}

void ends(void)
{
    char why[256];
    int err;
    pthread_t t;
    CHECK(atexit(last) == 0);
    void *dl = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);
    int (*init)(uint64_t, const void *) = NULL;
    void *at = dl ? dlsym(dl, "OPENSSL_init_crypto") : NULL;
    memcpy(&init, &at, sizeof(at));
    CHECK(!init || init(0, NULL) == 1);
    tcp_rail *rail = tcp_rail_new(0, &err);
    CHECK(rail && tcp_rail_encrypt(rail, "", why, sizeof(why)) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&t, NULL, connects, rail) == 0);
    while (made < 100)
        usleep(100);
    exit(0);
}
