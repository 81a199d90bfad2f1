#include "pack.h"

/* Trailing zeros are dropped. */
uint32_t pack_encode(pack_scratch *s, pack_hint *h, uint8_t *to, const uint8_t *from, uint32_t n)
{
    (void)s, (void)h;
    uint32_t m = n;
    while (m && !from[m - 1])
        m--;
    memset(to, 0, PACK_HEAD);
    memcpy(to, &m, 4);
    memcpy(to + PACK_HEAD, from, m);
    return PACK_HEAD + m;
}

uint32_t pack_length(const uint8_t head[PACK_HEAD], uint32_t n)
{
    uint32_t m;
    memcpy(&m, head, 4);
    return m > n || head[4] ? 0 : PACK_HEAD + m;
}

int pack_decode(pack_scratch *s, uint8_t *to, uint32_t n, const uint8_t *from, uint32_t len)
{
    (void)s;
    if (len < PACK_HEAD || pack_length(from, n) != len)
        return -1;
    memcpy(to, from + PACK_HEAD, len - PACK_HEAD);
    memset(to + len - PACK_HEAD, 0, n - (len - PACK_HEAD));
    return 0;
}
