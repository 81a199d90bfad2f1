/* Blocks of packed floats: which form is the shortest, heads, and their checks. pack_rows.c has the loops. */
#include <string.h>

#include "pack.h"
#include "pack_rows.h"

enum { PLAIN = 0, ZEROS = 1, CODES = 2 };
enum {
    WORDS = 256,          /* of 4 bytes that a search looks at */
    WHOLE = 1024,         /* the cost of plain bytes */
    WINS = 993,           /* at most that cost: 3 % are won */
    WORSE = 20,           /* 1024ths by which a block may cost more than the one before without a search: twice the error of the sample */
    LOOKS = 16, PAUSE = 3 /* a search at least every 16 blocks, or every 4 if the last one was plain */
};

typedef struct form {
    uint32_t cost; /* 1024ths of the bytes */
    uint8_t width, base, bits;
} form;

/* ---- lengths ---- */

/* Elements that have codes: groups of 8. 0: too few. */
static uint32_t coded(uint32_t n, uint32_t width)
{
    uint32_t elements = n / (8 * width) * 8;
    return elements < PACK_LEAST ? 0 : elements;
}

static uint32_t codes_len(uint32_t elements, uint32_t bits) { return elements / 8 * bits; }

/* Bytes of a block of codes without its exceptions. */
static uint32_t fixed_len(uint32_t n, uint32_t elements, uint32_t bits) { return PACK_HEAD + codes_len(elements, bits) + n - elements; }

/* Bytes that a block of codes has at most. */
static uint32_t most_len(uint32_t n) { return n * WINS / WHOLE; }

static uint32_t exceptions(const uint8_t *head) { return head[4] | head[5] << 8 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 24; }

static void put_head(uint8_t *to, int kind, form f, uint32_t n)
{
    uint8_t head[PACK_HEAD] = {(uint8_t)kind, f.width, f.base, f.bits, (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24)};
    memcpy(to, head, PACK_HEAD); /* ours */
}

uint32_t pack_length(const uint8_t head[PACK_HEAD], uint32_t n)
{
    static const uint8_t nothing[PACK_HEAD - 1];
    if (n == 0 || n > PACK_BLOCK)
        return 0;
    if (head[0] == PLAIN || head[0] == ZEROS)
        return memcmp(head + 1, nothing, sizeof(nothing)) ? 0 : head[0] == PLAIN ? PACK_HEAD + n : PACK_HEAD;
    uint32_t width = head[1], bits = head[3];
    if (head[0] != CODES || (width != 1 && width != 2 && width != 4) || bits < 1 || bits > 7)
        return 0;
    uint32_t elements = coded(n, width), fixed = fixed_len(n, elements, bits);
    if (elements == 0 || fixed > most_len(n) || exceptions(head) > most_len(n) - fixed)
        return 0;
    return fixed + exceptions(head);
}

/* ---- which form ---- */

static uint32_t word(const uint8_t *from)
{
    uint32_t x;
    memcpy(&x, from, 4); /* ours */
    return x;
}

static uint32_t rotated(uint32_t x, int bits) { return x << 1 | x >> (bits - 1); }

/* Bytes from one word of the sample to the next. An odd number of words, so that rows whose length is a power of two are seen everywhere. */
static uint32_t stride(uint32_t n) { return n < 8 * WORDS ? 4 : ((n / 4 / WORDS - 1) | 1) * 4; }

static uint32_t cost_of(uint32_t width, uint32_t bits, uint32_t out, uint32_t of)
{
    return (WHOLE * (8 * (width - 1) + bits) + WHOLE * 8 * out / of) / (8 * width);
}

/* The best form for top bytes with these counts. */
static form best_of(const uint16_t count[256], uint32_t of, uint8_t width)
{
    uint16_t before[512];
    form best = {.cost = UINT32_MAX, .width = width};
    uint16_t sum = 0;
    for (int i = 0; i < 512; i++) {
        before[i] = sum;
        sum = (uint16_t)(sum + count[i & 255]);
    }
    for (uint8_t bits = 1; bits < 8; bits++)
        for (int base = 0; base < 256; base++) {
            uint32_t out = of - (uint16_t)(before[base + (1 << bits) - 1] - before[base]), cost = cost_of(width, bits, out, of);
            if (cost < best.cost)
                best = (form){.cost = cost, .width = width, .base = (uint8_t)base, .bits = bits};
        }
    return best;
}

static form search(const uint8_t *from, uint32_t n)
{
    uint16_t one[256] = {0}, two[256] = {0}, four[256] = {0};
    uint32_t words = 0, step = stride(n);
    for (uint32_t at = 0; words < WORDS && at + 4 <= n; at += step, words++) {
        uint32_t x = word(from + at);
        for (int i = 0; i < 32; i += 8)
            one[(uint8_t)rotated(x >> i & 0xff, 8)]++;
        two[(uint16_t)rotated(x & 0xffff, 16) >> 8]++;
        two[(uint16_t)rotated(x >> 16, 16) >> 8]++;
        four[rotated(x, 32) >> 24]++;
    }
    form best = best_of(two, 2 * words, 2), other = best_of(four, words, 4);
    best = other.cost < best.cost ? other : best;
    other = best_of(one, 4 * words, 1);
    return other.cost < best.cost ? other : best;
}

/* The form of the block before with the cost that it has in this one. */
static form again(const pack_hint *h, const uint8_t *from, uint32_t n)
{
    form f = {.width = h->width, .base = h->base, .bits = h->bits};
    uint32_t of = 0, out = 0, step = stride(n), most = (1u << f.bits) - 1;
    for (uint32_t at = 0, i = 0; i < WORDS && at + 4 <= n; at += step, i++) {
        uint32_t x = word(from + at) >> (f.width == 4 ? 0 : (i & 1) * 16);
        uint32_t top = f.width == 4 ? rotated(x, 32) >> 24 : f.width == 2 ? (uint16_t)rotated(x & 0xffff, 16) >> 8 : (uint8_t)rotated(x & 0xff, 8);
        out += (uint8_t)(top - f.base) >= most;
        of++;
    }
    f.cost = cost_of(f.width, f.bits, out, of);
    return f;
}

/* The form of a block. A cost above WINS: it is not worth the work. */
static form choose(pack_hint *h, const uint8_t *from, uint32_t n)
{
    int valid = (h->width == 1 || h->width == 2 || h->width == 4) && h->bits >= 1 && h->bits <= 7;
    if (valid && h->left > 0) {
        form f = again(h, from, n);
        h->left--;
        if (f.cost <= (uint32_t)h->cost + WORSE && f.cost <= WINS)
            return f;
    }
    h->left = LOOKS - 1;
    return search(from, n);
}

/* ---- blocks ---- */

static int all_zero(const uint8_t *from, uint32_t n) { return from[0] == 0 && memcmp(from, from + 1, n - 1) == 0; }

static uint32_t plain(uint8_t *to, const uint8_t *from, uint32_t n)
{
    put_head(to, PLAIN, (form){0}, 0);
    memcpy(to + PACK_HEAD, from, n); /* ours */
    return PACK_HEAD + n;
}

/* 0: it wins too little. */
static uint32_t codes(pack_scratch *s, uint8_t *to, const uint8_t *from, uint32_t n, form f)
{
    uint32_t elements = coded(n, f.width), len = fixed_len(n, elements, f.bits), limit = most_len(n);
    if (elements == 0 || len > limit)
        return 0;
    uint8_t *rows = to + PACK_HEAD, *rest = rows + codes_len(elements, f.bits);
    uint32_t done = elements * f.width;
    pack_split(s->top, rest, from, elements, f.width);
    uint32_t out = pack_take(to + len, s->top, elements, f.base, f.bits, limit - len);
    if (out > limit - len)
        return 0;
    pack_rows(rows, s->top, elements, f.base, f.bits);
    memcpy(rest + done - elements, from + done, n - done); /* ours */
    put_head(to, CODES, f, out);
    return len + out;
}

uint32_t pack_encode(pack_scratch *s, pack_hint *h, uint8_t *to, const uint8_t *from, uint32_t n)
{
    if (all_zero(from, n)) {
        put_head(to, ZEROS, (form){0}, 0);
        return PACK_HEAD;
    }
    if (n < PACK_LEAST)
        return plain(to, from, n);
    if (h->width == 0 && h->left > 0) {
        h->left--;
        return plain(to, from, n);
    }
    form f = choose(h, from, n);
    uint32_t len = f.cost <= WINS ? codes(s, to, from, n, f) : 0;
    if (len == 0) { /* the pauses double while blocks are plain */
        uint8_t pause = h->width != 0 ? 0 : h->pause > PAUSE / 2 ? PAUSE : (uint8_t)(2 * h->pause + 1);
        *h = (pack_hint){.left = pause, .pause = pause};
        return plain(to, from, n);
    }
    h->width = f.width, h->base = f.base, h->bits = f.bits, h->pause = 0;
    h->cost = (uint16_t)((uint64_t)len * WHOLE / n);
    return len;
}

int pack_decode(pack_scratch *s, uint8_t *to, uint32_t n, const uint8_t *from, uint32_t len)
{
    if (len < PACK_HEAD || pack_length(from, n) != len)
        return -1;
    if (from[0] == ZEROS)
        memset(to, 0, n);
    if (from[0] == PLAIN)
        memcpy(to, from + PACK_HEAD, n); /* ours */
    if (from[0] != CODES)
        return 0;
    int width = from[1], bits = from[3];
    uint32_t elements = coded(n, (uint32_t)width), done = elements * (uint32_t)width, out = exceptions(from);
    const uint8_t *rows = from + PACK_HEAD, *rest = rows + codes_len(elements, (uint32_t)bits);
    pack_tops(s->top, rows, elements, from[2], bits);
    if (pack_put(s->top, from + len - out, elements, from[2], bits, out) != out)
        return -1;
    pack_merge(to, s->top, rest, elements, width);
    memcpy(to + done, rest + done - elements, n - done); /* ours */
    return 0;
}
