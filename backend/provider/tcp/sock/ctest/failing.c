/* libcrypto whose calls fail, one after another. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../record.h"

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #x, errno), abort()))

enum { SIZE = 64 << 10, COUNT = 6 };

static tcp_crypto real;
static int calls, bad; /* the call of that number fails; 0: none */
static const uint8_t salt[16] = {9}, secret[32] = {8};

static int fails(void) { return ++calls == bad; }

static evp_cipher_ctx *new_ctx(void) { return fails() ? NULL : real.EVP_CIPHER_CTX_new(); }
static int ctrl(evp_cipher_ctx *ctx, int what, int n, void *p) { return fails() ? 0 : real.EVP_CIPHER_CTX_ctrl(ctx, what, n, p); }
static int init(evp_cipher_ctx *ctx, const evp_cipher *cipher, void *engine, const uint8_t *key, const uint8_t *iv, int encrypt)
{
    return fails() ? 0 : real.EVP_CipherInit_ex(ctx, cipher, engine, key, iv, encrypt);
}
static int update(evp_cipher_ctx *ctx, uint8_t *out, int *outlen, const uint8_t *in, int len)
{
    return fails() ? 0 : real.EVP_CipherUpdate(ctx, out, outlen, in, len);
}
static int final(evp_cipher_ctx *ctx, uint8_t *out, int *outlen) { return fails() ? 0 : real.EVP_CipherFinal_ex(ctx, out, outlen); }
static uint8_t *hmac(const evp_md *md, const void *key, int keylen, const uint8_t *data, size_t len, uint8_t *out, unsigned *outlen)
{
    return fails() ? NULL : real.HMAC(md, key, keylen, data, len, out, outlen);
}

/* Two ends of one rail write. Returns how many frames arrived: none goes on after a failure. */
static int run(tcp_rail *rail, uint8_t *mem)
{
    static gr_ctx ctx[COUNT];
    gr_comp done[COUNT];
    tcp_conn *c[2];
    int fd[2], ok = 0, ended = 0, keys = 0;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) == 0);
    calls = 0;
    for (int k = 0; k < 2; k++) {
        CHECK((c[k] = tcp_conn_new(rail)));
        tcp_conn_begin(c[k], salt);
        keys += tcp_conn_encrypt(c[k], secret, k) == 0;
    }
    CHECK(keys == 2 || bad);
    CHECK(keys < 2 || !bad || bad > calls);
    for (int k = 0; k < 2; k++) {
        if (keys == 2)
            CHECK(tcp_conn_attach(c[k], fd[k]) == 0);
        else
            close(fd[k]);
    }
    gr_rail_lock(&rail->base);
    for (int i = 0; i < COUNT && keys == 2; i++) {
        gr_seg s = {.laddr = (uintptr_t)mem + SIZE, .raddr = 0, .len = SIZE, .rkey = tcp_session_key(salt, 5, 0)};
        CHECK(rail->base.ops->rma(&rail->base, c[i % 2], i % 3 == 2 ? GR_READ : GR_WRITE, 1, &s, &ctx[i]) == 0);
    }
    for (int polls = 0; polls < 10000 && ended < COUNT && keys == 2; polls++) {
        int n = rail->base.ops->poll(&rail->base, done, COUNT);
        for (int i = 0; i < n; i++)
            ended++, ok += done[i].err == 0;
    }
    gr_rail_unlock(&rail->base);
    CHECK(keys < 2 || ended == COUNT);
    for (int k = 0; k < 2; k++)
        tcp_conn_close(c[k]);
    return ok;
}

void failing(void)
{
    char why[256];
    int err;
    uint32_t number;
    uint8_t *mem = calloc(2, SIZE);
    tcp_rail *rail = tcp_rail_new(0, &err);
    CHECK(mem && rail && tcp_rail_encrypt(rail, "", why, sizeof(why)) == 0);
    CHECK(tcp_register(rail, (uintptr_t)mem, SIZE, 5, TCP_PEERS_READ | TCP_PEERS_WRITE, NULL, &number) == 0 && number == 0);
    tcp_rail_tune(rail, 3, UINT64_C(1) << 40, TCP_RECORD_BODY); /* keys change, too */
    tcp_crypto *c = &rail->records->crypto;
    real = *c;
    c->EVP_CIPHER_CTX_new = new_ctx;
    c->EVP_CIPHER_CTX_ctrl = ctrl;
    c->EVP_CipherInit_ex = init;
    c->EVP_CipherUpdate = update;
    c->EVP_CipherFinal_ex = final;
    c->HMAC = hmac;
    CHECK(run(rail, mem) == COUNT);
    int all = calls;
    for (bad = 1; bad <= all - 20; bad++) /* the last calls seal goodbyes */
        CHECK(run(rail, mem) < COUNT);
    tcp_deregister(rail, number);
    CHECK(tcp_rail_free(rail) == 0);
    free(mem);
    printf("%d calls\n", all);
}
