/* Loops over elements, in vectors of 32 bytes. The compiler makes two of 16 where the machine has no larger ones. */
#include <string.h>

#include "pack_rows.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

/* The plugin is compiled with -O2, which leaves most loops as they are. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are read as they are");

#define EACH static inline __attribute__((always_inline)) void
enum { VEC = 32, ROWS = 8, MASK = 64 };
typedef uint8_t vec __attribute__((vector_size(VEC)));
typedef uint16_t u16 __attribute__((aligned(1), may_alias));
typedef uint32_t u32 __attribute__((aligned(1), may_alias));

/* ---- elements ---- */

EACH split(uint8_t *restrict top, uint8_t *restrict rest, const uint8_t *restrict from, uint32_t elements, int width)
{
    if (width == 1)
        for (uint32_t i = 0; i < elements; i++)
            top[i] = (uint8_t)(from[i] << 1 | from[i] >> 7);
    if (width == 2)
        for (uint32_t i = 0; i < elements; i++) {
            uint16_t x = ((const u16 *)from)[i];
            x = (uint16_t)(x << 1 | x >> 15);
            top[i] = (uint8_t)(x >> 8);
            rest[i] = (uint8_t)x;
        }
    if (width == 4)
        for (uint32_t i = 0; i < elements; i++) {
            uint32_t x = ((const u32 *)from)[i];
            x = x << 1 | x >> 31;
            top[i] = (uint8_t)(x >> 24);
            rest[2 * elements + i] = (uint8_t)(x >> 16);
            ((u16 *)rest)[i] = (uint16_t)x;
        }
}

EACH merge(uint8_t *restrict to, const uint8_t *restrict top, const uint8_t *restrict rest, uint32_t elements, int width)
{
    if (width == 1)
        for (uint32_t i = 0; i < elements; i++)
            to[i] = (uint8_t)(top[i] >> 1 | top[i] << 7);
    if (width == 2)
        for (uint32_t i = 0; i < elements; i++) {
            uint16_t x = (uint16_t)(top[i] << 8 | rest[i]);
            ((u16 *)to)[i] = (uint16_t)(x >> 1 | x << 15);
        }
    if (width == 4)
        for (uint32_t i = 0; i < elements; i++) {
            uint32_t x = (uint32_t)top[i] << 24 | (uint32_t)rest[2 * elements + i] << 16 | ((const u16 *)rest)[i];
            ((u32 *)to)[i] = x >> 1 | x << 31;
        }
}

/* ---- rows: code q of a column has the bits from q * bits on of the column's bytes ---- */

EACH column_out(uint8_t *restrict to, const uint8_t *restrict top, uint32_t row, uint8_t base, const int bits)
{
    const uint8_t most = (uint8_t)((1 << bits) - 1);
    vec code[ROWS];
#pragma GCC unroll 8
    for (int q = 0; q < ROWS; q++) {
        vec d;
        memcpy(&d, top + (size_t)q * row, VEC); /* ours */
        d -= base;
        vec fits = (vec)(d < most);
        code[q] = (d & fits) | (most & ~fits);
    }
#pragma GCC unroll 8
    for (int i = 0; i < bits; i++) {
        vec out = {0};
#pragma GCC unroll 8
        for (int q = 0; q < ROWS; q++) {
            int at = q * bits - 8 * i; /* where the code begins in this byte */
            if (at > -bits && at < 8)
                out |= at >= 0 ? code[q] << (at & 7) : code[q] >> (-at & 7);
        }
        memcpy(to + (size_t)i * row, &out, VEC); /* ours */
    }
}

EACH column_in(uint8_t *restrict top, const uint8_t *restrict from, uint32_t row, uint8_t base, const int bits)
{
    const uint8_t most = (uint8_t)((1 << bits) - 1);
    vec in[ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < bits; i++)
        memcpy(&in[i], from + (size_t)i * row, VEC); /* ours */
#pragma GCC unroll 8
    for (int q = 0; q < ROWS; q++) {
        int i = q * bits / 8, at = q * bits % 8;
        vec code = in[i] >> at;
        if (at + bits > 8)
            code |= in[i + 1] << (8 - at);
        code = (code & most) + base;
        memcpy(top + (size_t)q * row, &code, VEC); /* ours */
    }
}

/* The last column begins where a whole one fits: what it does twice gives the same bytes. */
#define COLUMNS(column, to, from, row, base, bits)                                                                                                     \
    do {                                                                                                                                               \
        for (uint32_t j = 0; j + VEC < (row); j += VEC)                                                                                                \
            column((to) + j, (from) + j, row, base, bits);                                                                                             \
        column((to) + (row) - VEC, (from) + (row) - VEC, row, base, bits);                                                                             \
    } while (0)

#define EACH_BITS(column, to, from, row, base, bits)                                                                                                   \
    switch (bits) {                                                                                                                                    \
    case 1: COLUMNS(column, to, from, row, base, 1); break;                                                                                            \
    case 2: COLUMNS(column, to, from, row, base, 2); break;                                                                                            \
    case 3: COLUMNS(column, to, from, row, base, 3); break;                                                                                            \
    case 4: COLUMNS(column, to, from, row, base, 4); break;                                                                                            \
    case 5: COLUMNS(column, to, from, row, base, 5); break;                                                                                            \
    case 6: COLUMNS(column, to, from, row, base, 6); break;                                                                                            \
    case 7: COLUMNS(column, to, from, row, base, 7); break;                                                                                            \
    }

EACH rows(uint8_t *restrict to, const uint8_t *restrict top, uint32_t row, uint8_t base, int bits)
{
    EACH_BITS(column_out, to, top, row, base, bits)
}

EACH tops(uint8_t *restrict top, const uint8_t *restrict from, uint32_t row, uint8_t base, int bits)
{
    EACH_BITS(column_in, top, from, row, base, bits)
}

/* ---- the same for the machine that runs us: AVX2 is not in what the plugin may assume ---- */

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2"))) static void
AVX2 split_avx2(uint8_t *top, uint8_t *rest, const uint8_t *from, uint32_t elements, int width) { split(top, rest, from, elements, width); }
AVX2 merge_avx2(uint8_t *to, const uint8_t *top, const uint8_t *rest, uint32_t elements, int width) { merge(to, top, rest, elements, width); }
AVX2 rows_avx2(uint8_t *to, const uint8_t *top, uint32_t row, uint8_t base, int bits) { rows(to, top, row, base, bits); }
AVX2 tops_avx2(uint8_t *top, const uint8_t *from, uint32_t row, uint8_t base, int bits) { tops(top, from, row, base, bits); }
#define WIDE(call)                                                                                                                                     \
    if (__builtin_cpu_supports("avx2")) {                                                                                                              \
        call;                                                                                                                                          \
        return;                                                                                                                                        \
    }
#else
#define WIDE(call)
#endif

void pack_split(uint8_t *top, uint8_t *rest, const uint8_t *from, uint32_t elements, int width)
{
    WIDE(split_avx2(top, rest, from, elements, width))
    split(top, rest, from, elements, width);
}

void pack_merge(uint8_t *to, const uint8_t *top, const uint8_t *rest, uint32_t elements, int width)
{
    WIDE(merge_avx2(to, top, rest, elements, width))
    merge(to, top, rest, elements, width);
}

void pack_rows(uint8_t *to, const uint8_t *top, uint32_t elements, uint8_t base, int bits)
{
    WIDE(rows_avx2(to, top, elements / ROWS, base, bits))
    rows(to, top, elements / ROWS, base, bits);
}

void pack_tops(uint8_t *top, const uint8_t *from, uint32_t elements, uint8_t base, int bits)
{
    WIDE(tops_avx2(top, from, elements / ROWS, base, bits))
    tops(top, from, elements / ROWS, base, bits);
}

/* ---- exceptions ---- */

/* A bit for each of 64 top bytes that has no code. */
static inline uint64_t without_code(const uint8_t *top, uint8_t base, uint8_t most)
{
    uint64_t out = 0;
#if defined(__x86_64__)
    const __m128i b = _mm_set1_epi8((char)base), m = _mm_set1_epi8((char)most);
    for (int i = 0; i < MASK; i += 16) {
        __m128i d = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)(top + i)), b);
        out |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(d, m), d)) << i;
    }
#else
    uint8_t is[MASK];
    for (int i = 0; i < MASK; i++)
        is[i] = (uint8_t)(top[i] - base) >= most;
    for (int i = 0; i < MASK; i += 8) {
        uint64_t x;
        memcpy(&x, is + i, 8); /* ours */
        out |= (x * UINT64_C(0x0102040810204080) >> 56) << i;
    }
#endif
    return out;
}

uint32_t pack_take(uint8_t *to, uint8_t *top, uint32_t elements, uint8_t base, int bits, uint32_t most)
{
    uint32_t n = 0;
    memset(top + elements, base, MASK - 1);
    for (uint32_t i = 0; i < elements; i += MASK) {
        uint64_t mask = without_code(top + i, base, (uint8_t)((1 << bits) - 1));
        if (n + (uint32_t)__builtin_popcountll(mask) > most)
            return most + 1;
        for (; mask; mask &= mask - 1)
            to[n++] = top[i + (uint32_t)__builtin_ctzll(mask)];
    }
    return n;
}

uint32_t pack_put(uint8_t *top, const uint8_t *from, uint32_t elements, uint8_t base, int bits, uint32_t most)
{
    uint32_t n = 0;
    memset(top + elements, base, MASK - 1);
    for (uint32_t i = 0; i < elements; i += MASK) {
        uint64_t mask = without_code(top + i, base, (uint8_t)((1 << bits) - 1));
        if (n + (uint32_t)__builtin_popcountll(mask) > most)
            return most + 1;
        for (; mask; mask &= mask - 1)
            top[i + (uint32_t)__builtin_ctzll(mask)] = from[n++];
    }
    return n;
}
