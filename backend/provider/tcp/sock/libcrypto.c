/* libcrypto by dlopen. Python images have it without its headers, and no version of ours is to be preferred to the host's. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcrypto.h"

/* Values of openssl/evp.h and openssl/crypto.h, the same from 1.1.1 on. */
enum { AEAD_GET_TAG = 0x10, AEAD_SET_TAG = 0x11, INIT_NO_ATEXIT = 0x80000, VERSION_TEXT = 0 };

/* At exit libcrypto frees its tables, if the application began to use it before us. Our threads still run. A new key would then look
 * into these tables; contexts that have a key need none of them. */
static struct {
    pthread_mutex_t mu;
    pthread_once_t once;
    pid_t pid;
    int over;
} keys = {.mu = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

static void no_more_keys(void)
{
    if (getpid() != keys.pid) /* a child of fork: a thread of the parent's may hold the lock there */
        return;
    pthread_mutex_lock(&keys.mu);
    keys.over = 1;
    pthread_mutex_unlock(&keys.mu);
}

static void at_exit(void)
{
    keys.pid = getpid();
    (void)atexit(no_more_keys); /* fails without memory: then the process ends as it did without this */
}

int tcp_crypto_begin_keys(void)
{
    pthread_mutex_lock(&keys.mu);
    if (!keys.over)
        return 1;
    pthread_mutex_unlock(&keys.mu);
    return 0;
}

void tcp_crypto_end_keys(void) { pthread_mutex_unlock(&keys.mu); }

int tcp_crypto_key(const tcp_crypto *c, evp_cipher_ctx *ctx, const uint8_t key[TCP_KEY], int encrypt)
{
    return c->EVP_CipherInit_ex(ctx, c->EVP_aes_256_gcm(), NULL, key, NULL, encrypt) == 1;
}

int tcp_crypto_begin(const tcp_crypto *c, evp_cipher_ctx *ctx, const uint8_t nonce[TCP_IV], const void *aad, int len)
{
    int n;
    return c->EVP_CipherInit_ex(ctx, NULL, NULL, NULL, nonce, -1) == 1 && (!len || c->EVP_CipherUpdate(ctx, NULL, &n, aad, len) == 1);
}

int tcp_crypto_update(const tcp_crypto *c, evp_cipher_ctx *ctx, void *to, const void *from, size_t len)
{
    int n;
    return c->EVP_CipherUpdate(ctx, to, &n, from, (int)len) == 1 && n == (int)len;
}

int tcp_crypto_tag(const tcp_crypto *c, evp_cipher_ctx *ctx, uint8_t tag[TCP_TAG])
{
    uint8_t none[TCP_TAG];
    int n;
    return c->EVP_CipherFinal_ex(ctx, none, &n) == 1 && c->EVP_CIPHER_CTX_ctrl(ctx, AEAD_GET_TAG, TCP_TAG, tag) == 1;
}

int tcp_crypto_verify(const tcp_crypto *c, evp_cipher_ctx *ctx, const uint8_t tag[TCP_TAG])
{
    uint8_t none[TCP_TAG], copy[TCP_TAG];
    int n;
    memcpy(copy, tag, TCP_TAG); /* ours */
    c->ERR_set_mark(); /* the thread may be the application's, which has errors of its own in libcrypto's queue */
    int ok = c->EVP_CIPHER_CTX_ctrl(ctx, AEAD_SET_TAG, TCP_TAG, copy) == 1 && c->EVP_CipherFinal_ex(ctx, none, &n) == 1;
    c->ERR_pop_to_mark();
    return ok;
}

/* HMAC with SHA-256 of 16 zeros, under a key of 32. */
static int derives(const tcp_crypto *c)
{
    static const uint8_t zero[32];
    static const uint8_t want[32] = {0x85, 0x3c, 0x74, 0x03, 0x93, 0x7d, 0x8b, 0x62, 0x39, 0x56, 0x9b, 0x18, 0x4e, 0xb7, 0x99, 0x3f,
                                     0xc5, 0xf7, 0x51, 0xae, 0xfc, 0xea, 0x28, 0xf2, 0xc8, 0x63, 0x85, 0x8e, 0x2d, 0x29, 0xc5, 0x0b};
    uint8_t out[32];
    return c->HMAC(c->EVP_sha256(), zero, sizeof(zero), zero, 16, out, NULL) && !memcmp(out, want, sizeof(out));
}

/* Test case 14 of the specification of GCM: key, nonce and one block are zero. Then a changed tag must fail. */
static int works(const tcp_crypto *c)
{
    static const uint8_t zero[TCP_KEY];
    static const uint8_t text[16] = {0xce, 0xa7, 0x40, 0x3d, 0x4d, 0x60, 0x6b, 0x6e, 0x07, 0x4e, 0xc5, 0xd3, 0xba, 0xf3, 0x9d, 0x18};
    static const uint8_t want[TCP_TAG] = {0xd0, 0xd1, 0xc8, 0xa7, 0x99, 0x99, 0x6b, 0xf0, 0x26, 0x5b, 0x98, 0xb5, 0xd4, 0x8a, 0xb9, 0x19};
    uint8_t out[16], tag[TCP_TAG];
    evp_cipher_ctx *ctx = c->EVP_CIPHER_CTX_new();
    if (!ctx)
        return 0;
    int ok = tcp_crypto_key(c, ctx, zero, 1) && tcp_crypto_begin(c, ctx, zero, zero, 0) && tcp_crypto_update(c, ctx, out, zero, 16) && /* ours */
             tcp_crypto_tag(c, ctx, tag) && !memcmp(out, text, 16) && !memcmp(tag, want, TCP_TAG);
    for (int bit = 0; bit < 2 && ok; bit++) {
        tag[3] ^= (uint8_t)bit;
        ok = tcp_crypto_key(c, ctx, zero, 0) && tcp_crypto_begin(c, ctx, zero, zero, 0) && tcp_crypto_update(c, ctx, out, text, 16) && /* ours */
             tcp_crypto_verify(c, ctx, tag) == !bit;
    }
    c->EVP_CIPHER_CTX_free(ctx);
    return ok;
}

static void *libcrypto_find(const char *path, char *why, size_t size)
{
    static const char *const names[] = {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so"};
    const char *one[] = {path};
    const char *const *list = *path ? one : names;
    void *dl = NULL;
    for (int i = 0; i < (*path ? 1 : 3) && !dl; i++) {
        dl = dlopen(list[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (!dl && i == 0) /* the name that is to be installed */
            snprintf(why, size, "%s", dlerror());
    }
    return dl;
}

int tcp_crypto_load(tcp_crypto *c, const char *path, char *why, size_t size)
{
    const struct {
        const char *name;
        void *to;
    } symbols[] = {
#define SYMBOL(name) {#name, &c->name}
        SYMBOL(OPENSSL_init_crypto),
        SYMBOL(OpenSSL_version),
        SYMBOL(EVP_aes_256_gcm),
        SYMBOL(EVP_CIPHER_CTX_new),
        SYMBOL(EVP_CIPHER_CTX_free),
        SYMBOL(EVP_CIPHER_CTX_ctrl),
        SYMBOL(EVP_CipherInit_ex),
        SYMBOL(EVP_CipherUpdate),
        SYMBOL(EVP_CipherFinal_ex),
        SYMBOL(EVP_sha256),
        SYMBOL(HMAC),
        SYMBOL(ERR_set_mark),
        SYMBOL(ERR_pop_to_mark),
    };
    void *dl = libcrypto_find(path, why, size);
    if (!dl)
        return -1;
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *at = dlsym(dl, symbols[i].name);
        if (!at) {
            snprintf(why, size, "the library has no %s (not libcrypto, or older than 1.1.1)", symbols[i].name);
            return -1;
        }
        memcpy(symbols[i].to, &at, sizeof(at)); /* ours */
    }
    c->OPENSSL_init_crypto(INIT_NO_ATEXIT, NULL); /* our threads use it until the process ends */
    pthread_once(&keys.once, at_exit);            /* behind libcrypto's handler, if there is one: so it is called before */
    if (works(c) && derives(c))
        return 0;
    snprintf(why, size, "AES-256-GCM or HMAC-SHA256 does not work in %s: forbidden by its configuration?", c->OpenSSL_version(VERSION_TEXT));
    return -1;
}
