/* Packs a chunk of floats, and unpacks it: gr_pack.h has the chunk, provider/tcp/sock/pack.h a block. make.sh makes pack.ptx from this file.
 *
 * A block of 64 KiB has 8 rows of 8 KiB, whatever the width of its elements: element q * row + j is in row q, and code q of column j. A thread
 * works on 8 bytes of each row, which are 8, 4 or 2 columns, with bytes of a word side by side. The text is a copy that nobody changes. */
#define __device__ __attribute__((device))
#define INLINE static __attribute__((device, always_inline))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(n) __attribute__((launch_bounds(n)))
#define _Static_assert static_assert
#include "gr_gather.h"
#include "gr_pack.h"

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef u32 v2 __attribute__((ext_vector_type(2)));
typedef u32 v4 __attribute__((ext_vector_type(4)));

enum {
    THREADS = GR_PACK_THREADS,
    WARPS = THREADS / 32,
    ROWS = 8,
    ROW_BYTES = GR_PACK_TEXT / ROWS,
    TURNS = ROW_BYTES / 8 / THREADS, /* of a thread, for a block */
    HEAD = 8,
    PLAIN = 0, ZEROS = 1, CODES = 2,
    WORDS = 256, STEP = GR_PACK_TEXT / 4 / WORDS - 1, /* of the search: an odd number of words, as pack.c */
    WHOLE = 1024, WINS = 993,
    MOST = GR_PACK_TEXT / WHOLE * WINS, /* bytes of a block of codes */
};
static_assert(TURNS >= 1 && TURNS * WARPS == 32 && THREADS >= 256, "counters have 8 rows of 32");

struct memory {
    u32 count[3][WORDS]; /* of top bytes of width 1, 2, 4; then how many are below */
    u32 of[ROWS][32];    /* exceptions of a row, a turn and a warp; then how many are before */
    u32 row[ROWS];
    u32 best, seen;
    u64 sum[2]; /* of lengths: before the block, and of all */
};

INLINE u32 thread() { return __nvvm_read_ptx_sreg_tid_x(); }
INLINE u32 lane() { return thread() & 31; }
INLINE u32 warp() { return thread() >> 5; }
INLINE u32 ballot(u32 bit) { return __nvvm_vote_ballot_sync(0xffffffffu, bit != 0); }
INLINE u32 from_below(u32 v, u32 by) { return __nvvm_shfl_sync_up_i32(0xffffffffu, v, by, 0); }
INLINE u32 from_other(u32 v, u32 by) { return __nvvm_shfl_sync_bfly_i32(0xffffffffu, v, by, 31); }
INLINE u32 bytes_of(u32 a, u32 b, u32 which) { return __nvvm_prmt(a, b, which); }

/* Sum of the lanes up to this one. */
INLINE u32 running(u32 v)
{
    for (u32 by = 1; by < 32; by *= 2) {
        u32 below = from_below(v, by);
        v += lane() >= by ? below : 0;
    }
    return v;
}

/* ---- four bytes of a word at once ---- */

INLINE u32 each(u32 b) { return (b & 0xff) * 0x01010101u; }
INLINE u32 sub4(u32 a, u32 b) { return ((a | 0x80808080u) - (b & 0x7f7f7f7fu)) ^ ((a ^ ~b) & 0x80808080u); }
INLINE u32 add4(u32 a, u32 b) { return ((a & 0x7f7f7f7fu) + (b & 0x7f7f7f7fu)) ^ ((a ^ b) & 0x80808080u); }
INLINE u32 shl4(u32 a, u32 n) { return (a << n) & each(0xffu << n); }
INLINE u32 shr4(u32 a, u32 n) { return (a >> n) & each(0xffu >> n); }
/* The highest bit of each byte that is most or more; most is below 128. */
INLINE u32 not_below4(u32 a, u32 most) { return ((a & 0x7f7f7f7fu) + each(0x80 - most) | a) & 0x80808080u; }
/* A bit for each byte with the highest bit. */
INLINE u32 bits4(u32 high) { return (high >> 7 & 1) | (high >> 14 & 2) | (high >> 21 & 4) | (high >> 28 & 8); }

/* ---- elements ---- */

/* Eight bytes of a row: top bytes, and what else there is. */
template <int W> struct part {
    enum { COLUMNS = 8 / W, TOPS = W == 1 ? 2 : 1 };
    u32 top[TOPS], low, high;

    __device__ void take(v2 x)
    {
        if (W == 1) {
            top[0] = (x.x << 1 & 0xfefefefeu) | (x.x >> 7 & 0x01010101u);
            top[TOPS - 1] = (x.y << 1 & 0xfefefefeu) | (x.y >> 7 & 0x01010101u);
        } else if (W == 2) {
            u32 a = (x.x << 1 & 0xfffefffeu) | (x.x >> 15 & 0x00010001u), b = (x.y << 1 & 0xfffefffeu) | (x.y >> 15 & 0x00010001u);
            top[0] = bytes_of(a, b, 0x7531);
            low = bytes_of(a, b, 0x6420);
        } else {
            u32 a = x.x << 1 | x.x >> 31, b = x.y << 1 | x.y >> 31;
            top[0] = bytes_of(a, b, 0x0073) & 0xffff;
            high = bytes_of(a, b, 0x0062);
            low = bytes_of(a, b, 0x5410);
        }
    }

    __device__ v2 whole() const
    {
        if (W == 1) {
            u32 a = top[0], b = top[TOPS - 1];
            return v2{(a >> 1 & 0x7f7f7f7fu) | (a << 7 & 0x80808080u), (b >> 1 & 0x7f7f7f7fu) | (b << 7 & 0x80808080u)};
        }
        if (W == 2) {
            u32 a = bytes_of(low, top[0], 0x5140), b = bytes_of(low, top[0], 0x7362);
            return v2{(a >> 1 & 0x7fff7fffu) | (a << 15 & 0x80008000u), (b >> 1 & 0x7fff7fffu) | (b << 15 & 0x80008000u)};
        }
        u32 upper = bytes_of(high, top[0], 0x5140), a = bytes_of(low, upper, 0x5410), b = bytes_of(low, upper, 0x7632);
        return v2{a >> 1 | a << 31, b >> 1 | b << 31};
    }

    /* at: the rest of the block; c: columns group of the row, as of the thread and turn. */
    __device__ void put_rest(char *at, u32 q, u32 c) const
    {
        if (W == 2)
            *(u32 *)(at + q * (ROW_BYTES / 2) + 4 * c) = low;
        if (W == 4) {
            *(u32 *)(at + q * (ROW_BYTES / 2) + 4 * c) = low;
            *(u16 *)(at + GR_PACK_TEXT / 2 + q * (ROW_BYTES / 4) + 2 * c) = (u16)high;
        }
    }

    __device__ void get_rest(const char *at, u32 q, u32 c)
    {
        if (W == 2)
            low = *(const u32 *)(at + q * (ROW_BYTES / 2) + 4 * c);
        if (W == 4) {
            low = *(const u32 *)(at + q * (ROW_BYTES / 2) + 4 * c);
            high = *(const u16 *)(at + GR_PACK_TEXT / 2 + q * (ROW_BYTES / 4) + 2 * c);
        }
    }
};

/* Bytes of codes that a thread has in a row of them. */
template <int W> struct code_bytes;
template <> struct code_bytes<1> { typedef u32 type; };
template <> struct code_bytes<2> { typedef u32 type; };
template <> struct code_bytes<4> { typedef u16 type; };

template <int W, typename C> INLINE C *codes_at(C *rows, u32 i, u32 c, int k)
{
    return rows + i * (ROW_BYTES / W) + c * part<W>::COLUMNS + 4 * k;
}

/* ---- exceptions ---- */

/* Bits of the elements of a thread's turn that are exceptions: COLUMNS for each row. */
template <int W> INLINE u32 row_of(u64 bits, u32 q) { return (u32)(bits >> (q * part<W>::COLUMNS)) & ((1u << part<W>::COLUMNS) - 1); }

/* Counts those of all rows and turns. Returns all; m.of then has how many are before each. */
template <int W> INLINE u32 count(memory &m, const u64 bits[TURNS])
{
#pragma unroll
    for (int t = 0; t < TURNS; t++)
#pragma unroll 1
        for (u32 q = 0; q < ROWS; q++) {
            u32 row = row_of<W>(bits[t], q), n = 0;
            for (int k = 0; k < part<W>::COLUMNS; k++)
                n += __builtin_popcount(ballot(row >> k & 1));
            if (lane() == 0)
                m.of[q][t * WARPS + warp()] = n;
        }
    __syncthreads();
    u32 own = 0, upto = 0;
    if (warp() < ROWS) {
        own = m.of[warp()][lane()];
        upto = running(own);
        if (lane() == 31)
            m.row[warp()] = upto;
    }
    __syncthreads();
    u32 all = 0, before = 0;
    for (u32 q = 0; q < ROWS; q++) {
        before += q < warp() ? m.row[q] : 0;
        all += m.row[q];
    }
    if (warp() < ROWS)
        m.of[warp()][lane()] = before + upto - own;
    __syncthreads();
    return all;
}

/* Where the exceptions of a thread's row and turn are. */
template <int W> INLINE u32 place(const memory &m, u32 row, u32 q, int t)
{
    u32 at = m.of[q][t * WARPS + warp()], below = (1u << lane()) - 1;
    for (int k = 0; k < part<W>::COLUMNS; k++)
        at += __builtin_popcount(ballot(row >> k & 1) & below);
    return at;
}

/* ---- the form of a block ---- */

INLINE u32 cost(u32 width, u32 bits, u32 out, u32 of) { return (WHOLE * (8 * (width - 1) + bits) + WHOLE * 8 * out / of) / (8 * width); }

/* Returns cost << 13 | number of the width << 11 | bits << 8 | base. */
INLINE u32 search(memory &m, const char *text)
{
    const u32 t = thread();
    for (u32 i = t; i < 3 * WORDS; i += THREADS)
        m.count[0][i] = 0;
    if (t == 0)
        m.best = 0xffffffffu, m.seen = 0;
    __syncthreads();
    if (t < WORDS) {
        u32 x = ((const u32 *)text)[t * STEP], one = (x << 1 & 0xfefefefeu) | (x >> 7 & 0x01010101u);
        u32 two = (x << 1 & 0xfffefffeu) | (x >> 15 & 0x00010001u);
        for (int i = 0; i < 4; i++)
            __nvvm_atom_add_gen_i((int *)&m.count[0][one >> (8 * i) & 0xff], 1);
        __nvvm_atom_add_gen_i((int *)&m.count[1][two >> 8 & 0xff], 1);
        __nvvm_atom_add_gen_i((int *)&m.count[1][two >> 24], 1);
        __nvvm_atom_add_gen_i((int *)&m.count[2][(x << 1 | x >> 31) >> 24], 1);
        if (x)
            m.seen = 1;
    }
    __syncthreads();
    if (warp() < 3) { /* how many are below each value */
        u32 *at = &m.count[warp()][8 * lane()], sum = 0, v[8];
        for (int i = 0; i < 8; i++) {
            v[i] = sum;
            sum += at[i];
        }
        u32 before = running(sum) - sum;
        for (int i = 0; i < 8; i++)
            at[i] = before + v[i];
    }
    __syncthreads();
    u32 best = 0xffffffffu;
#pragma unroll 1
    for (u32 i = t; i < 3 * 7 * 256; i += THREADS) {
        u32 number = i / (7 * 256), bits = i / 256 % 7 + 1, base = i & 255, width = 1u << number, of = 4 * WORDS >> number, end = base + (1u << bits) - 1;
        u32 upto = (end & 256 ? of : 0) + m.count[number][end & 255], out = of - (upto - m.count[number][base]);
        u32 is = cost(width, bits, out, of) << 13 | number << 11 | bits << 8 | base;
        best = is < best ? is : best;
    }
    for (u32 by = 1; by < 32; by *= 2) {
        u32 other = from_other(best, by);
        best = other < best ? other : best;
    }
    if (lane() == 0)
        __nvvm_atom_min_gen_ui(&m.best, best);
    __syncthreads();
    return m.best;
}

/* ---- packing ---- */

INLINE void put_head(char *to, u32 kind, u32 width, u32 base, u32 bits, u32 out)
{
    *(v2 *)to = v2{kind | width << 8 | base << 16 | bits << 24, out};
}

/* Bytes of n, to an address that is a multiple of 8. */
INLINE void copy8(char *to, const char *from, u32 n)
{
#pragma unroll 4
    for (u32 i = thread(); i < n / 8; i += THREADS)
        ((v2 *)to)[i] = ((const v2 *)from)[i];
    if (thread() < n % 8)
        to[n / 8 * 8 + thread()] = from[n / 8 * 8 + thread()];
}

INLINE u32 plain(char *to, const char *text, u32 n)
{
    if (thread() == 0)
        put_head(to, PLAIN, 0, 0, 0, 0);
    copy8(to + HEAD, text, n);
    return HEAD + n;
}

INLINE u32 zeros(char *to)
{
    if (thread() == 0)
        put_head(to, ZEROS, 0, 0, 0, 0);
    return HEAD;
}

INLINE bool all_zero(const char *text)
{
    v2 any = {0, 0};
    for (u32 i = thread(); i < GR_PACK_TEXT / 8; i += THREADS)
        any |= ((const v2 *)text)[i];
    return !__nvvm_bar0_or(any.x | any.y);
}

/* The top bytes of a thread's exceptions, one row after the other: f(bits of the row, where its first one is, 8 bytes of the row). */
template <int W, typename F> INLINE void each_exception(const memory &m, const u64 except[TURNS], const F &f)
{
    for (int t = 0; t < TURNS; t++)
#pragma unroll 1
        for (u32 q = 0; q < ROWS; q++) {
            u32 row = row_of<W>(except[t], q);
            if (!ballot(row))
                continue;
            u32 at = place<W>(m, row, q, t);
            if (row)
                f(row, at, q * ROW_BYTES + 8 * (t * THREADS + thread()));
        }
}

/* 0: it wins too little. */
template <int W> INLINE u32 codes(memory &m, char *to, const char *text, u32 base, u32 bits)
{
    typedef part<W> P;
    typedef typename code_bytes<W>::type some;
    const u32 most = (1u << bits) - 1, elements = GR_PACK_TEXT / W, fixed = HEAD + elements / 8 * bits + GR_PACK_TEXT - elements;
    char *rows = to + HEAD, *rest = rows + elements / 8 * bits;
    u64 except[TURNS];
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
        const u32 c = t * THREADS + thread();
        u32 begun[P::TOPS] = {0}, have = 0, i = 0; /* bits of the next byte of codes */
        v2 in[ROWS];
        except[t] = 0;
#pragma unroll
        for (u32 q = 0; q < ROWS; q++)
            in[q] = *(const v2 *)(text + q * ROW_BYTES + 8 * c);
#pragma unroll
        for (u32 q = 0; q < ROWS; q++) {
            P x;
            x.take(in[q]);
            x.put_rest(rest, q, c);
            const bool full = have + bits >= 8;
#pragma unroll
            for (int k = 0; k < P::TOPS; k++) {
                u32 is = sub4(x.top[k], each(base)), high = not_below4(is, most) & (W == 4 ? 0x8080u : 0x80808080u), all = (high >> 7) * 0xff;
                u32 code = (is & ~all) | (each(most) & all), out = begun[k] | shl4(code, have);
                except[t] |= (u64)bits4(high) << (q * P::COLUMNS + 4 * k);
                if (full)
                    *(some *)codes_at<W>(rows, i, c, k) = (some)out;
                begun[k] = full ? shr4(code, 8 - have) : out;
            }
            i += full;
            have = (have + bits) & 7;
        }
    }
    u32 out = count<W>(m, except);
    if (fixed + out > MOST)
        return 0;
    each_exception<W>(m, except, [=](u32 row, u32 at, u32 where) {
        P x;
        x.take(*(const v2 *)(text + where));
#pragma unroll
        for (int k = 0; k < P::COLUMNS; k++)
            if (row >> k & 1)
                to[fixed + at++] = (char)(x.top[k / 4] >> (k % 4 * 8));
    });
    if (thread() == 0)
        put_head(to, CODES, W, base, bits, out);
    return fixed + out;
}

INLINE u32 pack(memory &m, char *to, const char *text, u32 n)
{
    if (n < GR_PACK_TEXT)
        return plain(to, text, n);
    u32 best = search(m, text), number = best >> 11 & 3, bits = best >> 8 & 7, base = best & 255, len = 0;
    if (!m.seen && all_zero(text))
        return zeros(to);
    if (best >> 13 <= WINS)
        len = number == 1 ? codes<2>(m, to, text, base, bits) : number == 2 ? codes<4>(m, to, text, base, bits) : codes<1>(m, to, text, base, bits);
    __syncthreads(); /* what codes has written for nothing */
    return len ? len : plain(to, text, n);
}

extern "C" __global__ void __launch_bounds__(THREADS) gr_pack(gr_pack_args a)
{
    __shared__ memory m;
    const u32 blocks = gr_pack_blocks(a.bytes), step = __nvvm_read_ptx_sreg_nctaid_x();
    for (u32 b = __nvvm_read_ptx_sreg_ctaid_x(); b < blocks; b += step) {
        char *to = (char *)a.blocks + (u64)b * GR_PACK_STRIDE;
        u32 left = a.bytes - b * GR_PACK_TEXT, len = pack(m, to, (const char *)a.text + (u64)b * GR_PACK_TEXT, left < GR_PACK_TEXT ? left : GR_PACK_TEXT);
        if (thread() < gr_pack_aligned(len) - len)
            to[len + thread()] = 0;
        if (thread() == 0)
            ((u32 *)a.lens)[b] = len;
        __syncthreads();
    }
}

/* ---- chunks ---- */

/* Adds up lengths with what aligns them: m.sum is then what is before block b, and all. false: one is longer than any block. */
INLINE bool add_up(memory &m, const u32 *lens, u32 blocks, u32 b)
{
    u32 before = 0, all = 0; /* a thread adds at most 2^16 of 2^16 / THREADS */
    bool good = true;
    for (u32 i = thread(); i < blocks; i += THREADS) {
        u32 len = lens[i];
        good &= len <= HEAD + GR_PACK_TEXT;
        len = good ? (u32)gr_pack_aligned(len) : 0;
        all += len;
        before += i < b ? len : 0;
    }
    if (thread() == 0)
        m.sum[0] = m.sum[1] = 0;
    __syncthreads();
#pragma unroll 1
    for (u32 by = 1; by < 32; by *= 2) {
        before += from_other(before, by);
        all += from_other(all, by);
    }
    if (lane() == 0) {
        __nvvm_atom_add_gen_ll((long long *)&m.sum[0], before);
        __nvvm_atom_add_gen_ll((long long *)&m.sum[1], all);
    }
    return !__nvvm_bar0_or(!good);
}

INLINE void copy16(char *to, const char *from, u32 n, u32 first, u32 step)
{
    const v4 *s = (const v4 *)from;
    v4 *d = (v4 *)to;
    u32 i = first, k = n / 16;
    for (; i + 3 * step < k; i += 4 * step) {
        v4 a = s[i], b = s[i + step], c = s[i + 2 * step], e = s[i + 3 * step];
        d[i] = a, d[i + step] = b, d[i + 2 * step] = c, d[i + 3 * step] = e;
    }
    for (; i < k; i += step)
        d[i] = s[i];
    if (first < n % 16)
        to[k * 16 + first] = from[k * 16 + first];
}

extern "C" __global__ void __launch_bounds__(THREADS) gr_pack_out(gr_pack_args a)
{
    __shared__ memory m;
    const u32 blocks = gr_pack_blocks(a.bytes), step = __nvvm_read_ptx_sreg_nctaid_x(), cta = __nvvm_read_ptx_sreg_ctaid_x();
    const u32 *lens = (const u32 *)a.lens;
    const u64 table = gr_pack_aligned(4 * (u64)blocks);
    add_up(m, lens, blocks, 0);
    const u64 all = table + m.sum[1];
    const bool packed = all <= a.packed && all <= a.bytes - a.bytes / GR_PACK_GAIN;
    if (!packed)
        copy16((char *)a.slot, (const char *)a.text, a.bytes, cta * THREADS + thread(), step * THREADS);
    for (u32 i = thread(); packed && cta == 0 && i < table / 4; i += THREADS)
        ((u32 *)a.slot)[i] = i < blocks ? lens[i] : 0;
    for (u32 b = cta; packed && b < blocks; b += step) {
        __syncthreads();
        add_up(m, lens, blocks, b);
        copy16((char *)a.slot + table + m.sum[0], (const char *)a.blocks + (u64)b * GR_PACK_STRIDE, (u32)gr_pack_aligned(lens[b]), thread(), THREADS);
    }
    __syncthreads();
    if (thread() != 0)
        return;
    volatile gr_gather_word *word = (volatile gr_gather_word *)a.word;
    volatile gr_gather_mark *mark = (volatile gr_gather_mark *)a.mark;
    __nvvm_membar_sys(); /* with the barrier: the block's stores are visible before its count */
    if (__nvvm_atom_add_gen_i((int *)&mark->ended, 1) == (int)step - 1) {
        mark->ended = 0;
        word->packed = packed ? (u32)all : 0;
        __nvvm_membar_sys();
        word->done = a.seq;
    }
}

/* ---- unpacking ---- */

/* false: there are other exceptions than the head says. */
template <int W> INLINE bool decode(memory &m, char *text, const char *from, u32 base, u32 bits, u32 exceptions)
{
    typedef part<W> P;
    typedef typename code_bytes<W>::type some;
    const u32 most = (1u << bits) - 1, elements = GR_PACK_TEXT / W;
    const char *rows = from + HEAD, *rest = rows + elements / 8 * bits, *list = rest + GR_PACK_TEXT - elements;
    u64 except[TURNS];
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
        const u32 c = t * THREADS + thread();
        except[t] = 0;
#pragma unroll
        for (u32 q = 0; q < ROWS; q++) {
            const u32 i = q * bits / 8, at = q * bits % 8;
            P x;
            x.get_rest(rest, q, c);
#pragma unroll
            for (int k = 0; k < P::TOPS; k++) { /* of the second byte nothing is left if the first one has the whole code */
                u32 first = *(const some *)codes_at<W>(rows, i, c, k), second = *(const some *)codes_at<W>(rows, i + 1, c, k);
                u32 code = (shr4(first, at) | shl4(second, 8 - at)) & each(most);
                except[t] |= (u64)bits4(not_below4(code, most) & (W == 4 ? 0x8080u : 0x80808080u)) << (q * P::COLUMNS + 4 * k);
                x.top[k] = add4(code, each(base));
            }
            *(v2 *)(text + q * ROW_BYTES + 8 * c) = x.whole();
        }
    }
    if (count<W>(m, except) != exceptions)
        return false;
    each_exception<W>(m, except, [=](u32 row, u32 at, u32 where) {
        P x;
        x.take(*(const v2 *)(text + where));
#pragma unroll
        for (int k = 0; k < P::COLUMNS; k++)
            if (row >> k & 1) {
                u32 shift = k % 4 * 8;
                x.top[k / 4] = (x.top[k / 4] & ~(0xffu << shift)) | (u32)(u8)list[at++] << shift;
            }
        *(v2 *)(text + where) = x.whole();
    });
    return true;
}

/* false: it is no block of n bytes with this length. */
INLINE bool unpack(memory &m, char *text, u32 n, const char *from, u32 len)
{
    if (len < HEAD)
        return false;
    const v2 head = *(const v2 *)from;
    const u32 kind = head.x & 0xff, width = head.x >> 8 & 0xff, base = head.x >> 16 & 0xff, bits = head.x >> 24, out = head.y;
    if (head.x == PLAIN && out == 0) {
        if (len == HEAD + n)
            copy8(text, from + HEAD, n);
        return len == HEAD + n;
    }
    if (head.x == ZEROS && out == 0) {
        for (u32 i = thread(); i < n / 8; i += THREADS)
            ((v2 *)text)[i] = v2{0, 0};
        if (thread() < n % 8)
            text[n / 8 * 8 + thread()] = 0;
        return len == HEAD;
    }
    if (kind != CODES || n != GR_PACK_TEXT || (width != 1 && width != 2 && width != 4) || bits < 1 || bits > 7 || len > MOST)
        return false;
    const u32 elements = GR_PACK_TEXT / width, fixed = HEAD + elements / 8 * bits + GR_PACK_TEXT - elements;
    if (fixed > len || out != len - fixed)
        return false;
    return width == 2 ? decode<2>(m, text, from, base, bits, out) : width == 4 ? decode<4>(m, text, from, base, bits, out) : decode<1>(m, text, from, base, bits, out);
}

extern "C" __global__ void __launch_bounds__(THREADS) gr_unpack(gr_pack_args a)
{
    __shared__ memory m;
    const u32 blocks = gr_pack_blocks(a.bytes), step = __nvvm_read_ptx_sreg_nctaid_x();
    const u32 *lens = (const u32 *)a.blocks;
    const u64 table = gr_pack_aligned(4 * (u64)blocks);
    bool good = table <= a.packed; /* all threads of a block agree on it */
    for (u32 b = __nvvm_read_ptx_sreg_ctaid_x(); good && b < blocks; b += step) {
        if (!(good = add_up(m, lens, blocks, b)) || !(good = table + m.sum[1] == a.packed))
            break;
        u32 left = a.bytes - b * GR_PACK_TEXT;
        good = unpack(m, (char *)a.text + (u64)b * GR_PACK_TEXT, left < GR_PACK_TEXT ? left : GR_PACK_TEXT, (const char *)a.blocks + table + m.sum[0], lens[b]);
        __syncthreads();
    }
    if (good || thread() != 0)
        return;
    ((volatile gr_gather_word *)a.word)->bad = a.seq;
    ((volatile gr_gather_mark *)a.mark)->cancel = a.seq;
}
