/* OpenSSL's libcrypto (1.1.1 to 3.x), found at run time. Its headers are not needed: the few functions are declared here. */
#ifndef GORAIL_TCP_LIBCRYPTO_H
#define GORAIL_TCP_LIBCRYPTO_H

#include <stddef.h>
#include <stdint.h>

typedef struct evp_cipher_ctx evp_cipher_ctx; /* EVP_CIPHER_CTX, and so on */
typedef struct evp_cipher evp_cipher;
typedef struct evp_md evp_md;

/* Functions of libcrypto, with their names there. Those that return int return 1 for success. */
typedef struct tcp_crypto {
    int (*OPENSSL_init_crypto)(uint64_t opts, const void *settings);
    const char *(*OpenSSL_version)(int what);
    const evp_cipher *(*EVP_aes_256_gcm)(void);
    evp_cipher_ctx *(*EVP_CIPHER_CTX_new)(void);
    void (*EVP_CIPHER_CTX_free)(evp_cipher_ctx *ctx);
    int (*EVP_CIPHER_CTX_ctrl)(evp_cipher_ctx *ctx, int what, int n, void *p);
    int (*EVP_CipherInit_ex)(evp_cipher_ctx *ctx, const evp_cipher *cipher, void *engine, const uint8_t *key, const uint8_t *iv, int encrypt);
    int (*EVP_CipherUpdate)(evp_cipher_ctx *ctx, uint8_t *out, int *outlen, const uint8_t *in, int len);
    int (*EVP_CipherFinal_ex)(evp_cipher_ctx *ctx, uint8_t *out, int *outlen);
    int (*ERR_set_mark)(void);
    int (*ERR_pop_to_mark)(void);
    const evp_md *(*EVP_sha256)(void);
    uint8_t *(*HMAC)(const evp_md *md, const void *key, int keylen, const uint8_t *data, size_t len, uint8_t *out, unsigned *outlen);
} tcp_crypto;

enum { TCP_KEY = 32, TCP_IV = 12, TCP_TAG = 16 };

/* Loads the library and tries AES-256-GCM. An empty path: libcrypto.so.3, libcrypto.so.1.1, libcrypto.so. Returns 0, or -1 with a
 * text. The library stays loaded. Implements dlopen and dlsym. */
int tcp_crypto_load(tcp_crypto *c, const char *path, char *why, size_t size);

/* Around what makes keys. 0: the process ends, and libcrypto with it. Then there is nothing to end. */
int tcp_crypto_begin_keys(void);
void tcp_crypto_end_keys(void);

/* Steps of one record. They return 1, or 0 if libcrypto failed. */
int tcp_crypto_key(const tcp_crypto *c, evp_cipher_ctx *ctx, const uint8_t key[TCP_KEY], int encrypt);
int tcp_crypto_begin(const tcp_crypto *c, evp_cipher_ctx *ctx, const uint8_t nonce[TCP_IV], const void *aad, int len);
int tcp_crypto_update(const tcp_crypto *c, evp_cipher_ctx *ctx, void *to, const void *from, size_t len);
int tcp_crypto_tag(const tcp_crypto *c, evp_cipher_ctx *ctx, uint8_t tag[TCP_TAG]);         /* of what was encrypted */
int tcp_crypto_verify(const tcp_crypto *c, evp_cipher_ctx *ctx, const uint8_t tag[TCP_TAG]); /* 0 also if the tag is another */

#endif
