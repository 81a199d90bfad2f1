/* Copies many pieces in one launch. make.sh makes gather.ptx from this file, with clang only: no toolkit header.
 *
 * Each operation is cut into `split` slices. A warp takes a run of consecutive slices. Its lanes read one descriptor each, one
 * run ahead, because the descriptors lie in host memory and a read takes a microsecond. */
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define _Static_assert static_assert
#include "gr_gather.h"

typedef uint32_t u32;
typedef uint64_t u64;
typedef u32 v4 __attribute__((ext_vector_type(4)));
typedef u32 v2 __attribute__((ext_vector_type(2)));

typedef gr_gather_piece piece;

static __device__ u32 pick(u32 v, u32 lane) { return __nvvm_shfl_sync_idx_i32(0xffffffffu, v, lane, 31); }
static __device__ u64 pick(u64 v, u32 lane) { return (u64)pick((u32)(v >> 32), lane) << 32 | pick((u32)v, lane); }

static __device__ piece slice(piece whole, u32 number, u32 split)
{
    u64 each = ((whole.len + split - 1) / split + 127) & ~127ull, at = number * each;
    if (at >= whole.len)
        return piece{ 0, 0, 0 };
    return piece{ whole.from + at, whole.to + at, whole.len - at < each ? whole.len - at : each };
}

/* Sources of the slices of a launch: operations in pinned memory, or pieces in the kernel parameter. */
struct pinned {
    u64 ops, table, delta;
    bool write;
    __device__ piece at(u32 i) const
    {
        const v4 *op = (const v4 *)(ops + (u64)i * sizeof(gr_op));
        v4 lo = op[0], hi = op[1];
        u64 local = (u64)lo.y << 32 | lo.x, remote = (u64)lo.w << 32 | lo.z, len = (u64)hi.y << 32 | hi.x;
        remote += delta;
        if (table)
            remote += ((const u64 *)table)[hi.w];
        return write ? piece{ local, remote, len } : piece{ remote, local, len };
    }
};

struct given {
    const piece *list;
    __device__ piece at(u32 i) const { return piece{ list[i].from, list[i].to, list[i].len }; }
};

/* Copies bytes with four words per lane in flight. */
template <typename T> static __device__ void words(u64 to, u64 from, u64 n, u32 lane)
{
    u64 head = (0 - to) & (sizeof(T) - 1);
    if (head > n)
        head = n;
    if (lane < head)
        ((char *)to)[lane] = ((const char *)from)[lane];
    to += head, from += head, n -= head;
    T *d = (T *)to;
    const T *s = (const T *)from;
    u64 k = n / sizeof(T);
    u64 j = lane;
    for (; j + 96 < k; j += 128) {
        T v0 = s[j], v1 = s[j + 32], v2 = s[j + 64], v3 = s[j + 96];
        d[j] = v0, d[j + 32] = v1, d[j + 64] = v2, d[j + 96] = v3;
    }
    if (j < k) {
        bool b = j + 32 < k, c = j + 64 < k;
        T v0 = s[j], v1, v2;
        if (b)
            v1 = s[j + 32];
        if (c)
            v2 = s[j + 64];
        d[j] = v0;
        if (b)
            d[j + 32] = v1;
        if (c)
            d[j + 64] = v2;
    }
    u64 tail = n & (sizeof(T) - 1);
    if (lane < tail)
        ((char *)to)[n - tail + lane] = ((const char *)from)[n - tail + lane];
}

static __device__ void copy(u64 to, u64 from, u64 n, u32 lane)
{
    u64 apart = to ^ from;
    if ((apart & 15) == 0)
        words<v4>(to, from, n, lane);
    else if ((apart & 7) == 0)
        words<v2>(to, from, n, lane);
    else if ((apart & 3) == 0)
        words<u32>(to, from, n, lane);
    else
        words<unsigned char>(to, from, n, lane);
}

template <typename S> static __device__ void gather(S source, u64 word_at, u64 mark_at, u32 nops, u32 split, u32 most, u32 seq)
{
    const u32 thread = __nvvm_read_ptx_sreg_tid_x(), lane = thread & 31;
    const u32 block = __nvvm_read_ptx_sreg_ctaid_x(), blocks = __nvvm_read_ptx_sreg_nctaid_x();
    volatile gr_gather_word *word = (volatile gr_gather_word *)word_at;
    volatile gr_gather_mark *mark = (volatile gr_gather_mark *)mark_at;
    /* Neighbouring runs go to different blocks, so that a few runs use many SMs. */
    const u32 items = nops * split, step = blocks * (GR_GATHER_THREADS / 32) * most; /* items + 2 * step < 1 << 32 */
    u32 first = ((thread >> 5) * blocks + block) * most;
    bool stop = false;
    piece now, next = { 0, 0, 0 };
    if (lane < most && first + lane < items)
        next = slice(source.at((first + lane) / split), (first + lane) % split, split);
    for (; first < items && !stop; first += step) {
        now = next;
        u32 mine = first + step + lane;
        next = piece{ 0, 0, 0 };
        if (lane < most && mine < items)
            next = slice(source.at(mine / split), mine % split, split);
        for (u32 i = 0; i < most && !stop; i++) {
            u64 to = pick(now.to, i), from = pick(now.from, i), len = pick(now.len, i);
            for (u64 at = 0; at < len && !stop; at += GR_GATHER_LOOK) {
                u32 cancel = mark->cancel; /* read before the copy, checked after it, to hide the latency */
                copy(to + at, from + at, len - at < GR_GATHER_LOOK ? len - at : GR_GATHER_LOOK, lane);
                stop = pick(cancel, 0) == seq;
            }
        }
    }
    if (stop && lane == 0)
        word->stopped = seq;
    __syncthreads();
    if (thread == 0) {
        __nvvm_membar_sys(); /* with the barrier: the block's stores are visible before its count */
        if (__nvvm_atom_add_gen_i((int *)&mark->ended, 1) == (int)blocks - 1) {
            mark->ended = 0;
            __nvvm_membar_sys();
            word->done = seq;
        }
    }
}

extern "C" __global__ void gr_gather(gr_gather_args a)
{
    gather(pinned{ a.ops, a.table, a.delta, a.write != 0 }, a.word, a.mark, a.nops, a.split, a.run, a.seq);
}

extern "C" __global__ void gr_gather_short(gr_gather_few a)
{
    gather(given{ a.piece }, a.args.word, a.args.mark, a.args.nops, a.args.split, a.args.run, a.args.seq);
}
