/* The codec with the sanitizers: texts of all kinds, and blocks that are changed. It prints a sum of all blocks, which is the same for all
 * machines. Memory of each call is as large as it must be, so that the sanitizer guards the rest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../pack.h"

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))

static uint64_t state = 1, sum = 14695981039346656037u;

static uint32_t any(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % below);
}

static void add(const uint8_t *bytes, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        sum = (sum ^ bytes[i]) * 1099511628211u;
}

/* Elements of that width whose top byte is in a range of that size, with others here and there. */
static void fill(uint8_t *to, uint32_t n, int width, uint32_t range, uint32_t others)
{
    uint32_t base = any(256);
    for (uint32_t i = 0; i < n; i++)
        to[i] = (uint8_t)any(256);
    for (uint32_t i = (uint32_t)width - 1; i < n; i += (uint32_t)width) {
        uint32_t top = others && any(others) == 0 ? any(256) : (base + any(range)) % 256;
        to[i] = (uint8_t)((top >> 1) | (width == 1 ? top << 7 : to[i] & 0x80));
        if (width > 1)
            to[i - 1] = (uint8_t)((to[i - 1] & 0x7f) | top << 7);
    }
}

static void decode(pack_scratch *s, const uint8_t *from, uint32_t len, uint32_t n)
{
    uint8_t *block = malloc(len), *text = malloc(n);
    CHECK(block && text);
    memcpy(block, from, len);
    int ok = pack_decode(s, text, n, block, len) == 0;
    CHECK(!ok || pack_length(block, n) == len);
    if (ok)
        add(text, n);
    free(block);
    free(text);
}

static void change(pack_scratch *s, uint8_t *block, uint32_t len, uint32_t n)
{
    uint8_t bad[PACK_ROOM + 1];
    uint32_t to = len;
    memcpy(bad, block, len);
    bad[len] = 1;
    switch (any(6)) {
    case 0: bad[any(PACK_HEAD)] ^= (uint8_t)(1u << any(8)); break;
    case 1: bad[any(PACK_HEAD)] = (uint8_t)any(9); break;
    case 2: bad[any(len)] = (uint8_t)any(256); break;
    case 3: to = 1 + any(len + 1); break;
    case 4: n = n % PACK_BLOCK + 1; break;
    case 5: n = n > 17 ? n - any(17) : n; break;
    }
    uint32_t is = to < PACK_HEAD ? 0 : pack_length(bad, n);
    decode(s, bad, is && is <= len ? is : to, n);
}

void packs(long blocks)
{
    static pack_scratch s;
    pack_hint hint = {0};
    for (long i = 0; i < blocks; i++) {
        uint32_t n = 1 + any(any(8) ? 3000 : PACK_BLOCK);
        uint8_t *from = malloc(n), *to = malloc(PACK_HEAD + n);
        CHECK(from && to);
        fill(from, n, 1 << any(3), 1 + any(any(2) ? 12 : 140), any(40));
        if (any(20) == 0)
            memset(from, 0, n);
        if (any(3) == 0)
            hint = (pack_hint){0};
        if (any(50) == 0)
            hint = (pack_hint){(uint8_t)any(6), (uint8_t)any(256), (uint8_t)any(9), (uint8_t)any(256), (uint8_t)any(256), (uint16_t)any(65536)};
        uint32_t len = pack_encode(&s, &hint, to, from, n);
        CHECK(len <= PACK_HEAD + n && pack_length(to, n) == len);
        add(to, len);
        uint8_t *back = malloc(n);
        CHECK(back && pack_decode(&s, back, n, to, len) == 0 && memcmp(back, from, n) == 0);
        free(back);
        for (int k = 0; k < 10; k++)
            change(&s, to, len, n);
        free(from);
        free(to);
    }
    printf("%016llx\n", (unsigned long long)sum);
}

#ifdef PACKS_MAIN
int main(int argc, char **argv)
{
    packs(argc > 2 ? atol(argv[2]) : 1);
    return 0;
}
#endif
