/* Loops over elements, which the compiler puts into vectors. */
#include <string.h>

#include "pack_rows.h"

/* A test compiles what other machines have: -DGR_PACK_OTHER. */
#if defined(__x86_64__) && !defined(GR_PACK_OTHER)
#define X86
#include <emmintrin.h>
#endif

/* The plugin is compiled with -O2, which leaves most loops as they are. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are read as they are");

#define EACH static inline __attribute__((always_inline)) void
enum { ROWS = 8, MASK = 64, FEW = 2 };
#define LAST (UINT64_C(1) << (MASK - 1))
typedef uint16_t u16 __attribute__((aligned(1), may_alias));
typedef uint32_t u32 __attribute__((aligned(1), may_alias));

/* ---- elements ---- */

EACH split4(uint8_t *restrict top, uint8_t *restrict high, u16 *restrict low, const u32 *restrict from, uint32_t elements)
{
    for (uint32_t i = 0; i < elements; i++) {
        uint32_t x = from[i] << 1 | from[i] >> 31;
        top[i] = (uint8_t)(x >> 24);
        high[i] = (uint8_t)(x >> 16);
        low[i] = (uint16_t)x;
    }
}

EACH merge4(u32 *restrict to, const uint8_t *restrict top, const uint8_t *restrict high, const u16 *restrict low, uint32_t elements)
{
    for (uint32_t i = 0; i < elements; i++) {
        uint32_t x = (uint32_t)top[i] << 24 | (uint32_t)high[i] << 16 | low[i];
        to[i] = x >> 1 | x << 31;
    }
}

/* The rest of 4 bytes: the two lower bytes of all elements, and then the third. */
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
        split4(top, rest + (size_t)2 * elements, (u16 *)rest, (const u32 *)from, elements);
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
        merge4((u32 *)to, top, rest + (size_t)2 * elements, (const u16 *)rest, elements);
}

/* ---- rows, for vectors of both sizes: the compiler takes large ones apart byte by byte where the machine has none ---- */

#define VEC 16
#define NAME(name) name##_16
#include "pack_column.h"
#undef VEC
#undef NAME
#define VEC 32
#define NAME(name) name##_32
#include "pack_column.h"

/* ---- exceptions ---- */

/* A bit for each of 64 top bytes that has no code. */
static inline __attribute__((always_inline)) uint64_t without_code(const uint8_t *top, uint8_t base, uint8_t most)
{
    uint64_t out = 0;
#ifdef X86
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

/* Most masks have few exceptions: FEW are moved without a branch that no processor foresees, also where there are fewer. GB/s of 1 MiB of
 * bf16 (encode, decode) with FEW 1, 2, 3, 4: 7.0 9.0, 9.2 12.6, 8.4 11.5, 8.4 10.9. */
#define COUNT static inline __attribute__((always_inline)) uint32_t
COUNT take(uint8_t *restrict to, uint8_t *restrict top, uint32_t elements, uint8_t base, int bits, uint32_t most)
{
    uint32_t n = 0;
    memset(top + elements, base, MASK);
    for (uint32_t i = 0; i < elements; i += MASK) {
        uint64_t mask = without_code(top + i, base, (uint8_t)((1 << bits) - 1));
        const uint8_t *at = top + i;
        if (most - n >= FEW) {
#pragma GCC unroll 8
            for (int k = 0; k < FEW; k++) {
                to[n] = at[__builtin_ctzll(mask | LAST)];
                n += mask != 0;
                mask &= mask - 1;
            }
        }
        for (; mask; mask &= mask - 1) {
            if (n == most)
                return most + 1;
            to[n++] = at[__builtin_ctzll(mask)];
        }
    }
    return n;
}

COUNT put(uint8_t *restrict top, const uint8_t *restrict from, uint32_t elements, uint8_t base, int bits, uint32_t most)
{
    uint32_t n = 0;
    memset(top + elements, base, MASK);
    for (uint32_t i = 0; i < elements; i += MASK) {
        uint64_t mask = without_code(top + i, base, (uint8_t)((1 << bits) - 1));
        uint8_t *at = top + i;
        if (most - n >= FEW) {
            uint8_t nowhere;
#pragma GCC unroll 8
            for (int k = 0; k < FEW; k++) {
                *(mask ? at + __builtin_ctzll(mask | LAST) : &nowhere) = from[n];
                n += mask != 0;
                mask &= mask - 1;
            }
        }
        for (; mask; mask &= mask - 1) {
            if (n == most)
                return most + 1;
            at[__builtin_ctzll(mask)] = from[n++];
        }
    }
    return n;
}

/* ---- the same for the machine that runs us: AVX2 is not in what the plugin may assume ---- */

#ifdef X86
#define AVX2 __attribute__((target("avx2,bmi"))) static
AVX2 void split_avx2(uint8_t *top, uint8_t *rest, const uint8_t *from, uint32_t elements, int width) { split(top, rest, from, elements, width); }
AVX2 void merge_avx2(uint8_t *to, const uint8_t *top, const uint8_t *rest, uint32_t elements, int width) { merge(to, top, rest, elements, width); }
AVX2 void rows_avx2(uint8_t *to, const uint8_t *top, uint32_t row, uint8_t base, int bits) { rows_32(to, top, row, base, bits); }
AVX2 void tops_avx2(uint8_t *top, const uint8_t *from, uint32_t row, uint8_t base, int bits) { tops_32(top, from, row, base, bits); }
AVX2 uint32_t take_avx2(uint8_t *to, uint8_t *top, uint32_t elements, uint8_t base, int bits, uint32_t most)
{
    return take(to, top, elements, base, bits, most);
}
AVX2 uint32_t put_avx2(uint8_t *top, const uint8_t *from, uint32_t elements, uint8_t base, int bits, uint32_t most)
{
    return put(top, from, elements, base, bits, most);
}
#define WIDE(call)                                                                                                                                     \
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi"))                                                                               \
        return call;
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
    rows_16(to, top, elements / ROWS, base, bits);
}

void pack_tops(uint8_t *top, const uint8_t *from, uint32_t elements, uint8_t base, int bits)
{
    WIDE(tops_avx2(top, from, elements / ROWS, base, bits))
    tops_16(top, from, elements / ROWS, base, bits);
}

uint32_t pack_take(uint8_t *to, uint8_t *top, uint32_t elements, uint8_t base, int bits, uint32_t most)
{
    WIDE(take_avx2(to, top, elements, base, bits, most))
    return take(to, top, elements, base, bits, most);
}

uint32_t pack_put(uint8_t *top, const uint8_t *from, uint32_t elements, uint8_t base, int bits, uint32_t most)
{
    WIDE(put_avx2(top, from, elements, base, bits, most))
    return put(top, from, elements, base, bits, most);
}
