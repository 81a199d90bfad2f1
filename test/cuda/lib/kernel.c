/* Modules, and launches of our kernels. C code here does the work of kernel/gather.cu; the codec of the processors that of kernel/pack.cu. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ct.h"
#include "gr_gather.h"
#include "gr_pack.h"
#include "pack.h"

struct CUfunc_st {
    int device, kind;
};

struct CUmod_st {
    const char *const *names;
    struct CUfunc_st f[3];
};

/* The kernels of our two modules. */
static const char *const copies[] = {"gr_gather", "gr_gather_short", NULL}, *const packs[] = {"gr_pack", "gr_pack_out", "gr_unpack", NULL};

static int has(const char *image, const char *const *names)
{
    char entry[64];
    for (; *names; names++) {
        snprintf(entry, sizeof(entry), ".entry %s(", *names);
        if (!strstr(image, entry))
            return 0;
    }
    return 1;
}

cu_result cuModuleLoadDataEx(cu_module *module, const void *image, unsigned n, int *options, void **values)
{
    while (ct_switch[SW_compiling])
        usleep(100);
    BEGIN(CALL_ModuleLoadDataEx, WITH_CTX);
    (void)options, (void)values;
    const char *v = strstr(image, ".version "), *target = strstr(image, ".target sm_");
    int major, minor;
    if (ct_switch[SW_jit])
        END((int)ct_switch[SW_jit]);
    if (n || !v || !target || sscanf(v, ".version %d.%d", &major, &minor) != 2)
        END(CU_INVALID_PTX);
    if (major * 10 + minor > ct_switch[SW_ptx])
        END(CU_PTX_VERSION);
    const char *const *names = has(image, copies) ? copies : packs;
    if (!has(image, names))
        END(CU_INVALID_PTX);
    *module = calloc(1, sizeof(**module));
    (*module)->names = names;
    for (int i = 0; names[i]; i++)
        (*module)->f[i] = (struct CUfunc_st){ct_current()->device, (names == copies ? CT_GATHER : CT_PACK) + i};
    ct_count[CT_modules]++;
    END(CU_OK);
}

cu_result cuModuleUnload(cu_module module)
{
    BEGIN(-1, WITH_CTX);
    free(module);
    ct_count[CT_modules]--;
    END(CU_OK);
}

cu_result cuModuleGetFunction(cu_function *function, cu_module module, const char *name)
{
    BEGIN(CALL_ModuleGetFunction, WITH_CTX);
    int i = 0;
    while (module->names[i] && strcmp(name, module->names[i]))
        i++;
    *function = &module->f[i];
    END(module->names[i] ? CU_OK : CU_NOT_FOUND);
}

/* The kernels assume all of this without a check. */

static void check_gather(const gr_gather_args *a, int kind)
{
    if (!a->nops || !a->split || !a->run || a->run > GR_GATHER_RUN || (uint64_t)a->nops * a->split >= 1ull << 31 || !a->seq ||
        (kind == CT_GATHER_SHORT && a->nops > GR_GATHER_FEW))
        ct_breach("launch: %u operations, split %u, run %u, seq %u", a->nops, a->split, a->run, a->seq);
}

static void check_pack(const gr_pack_args *a, int kind, unsigned blocks)
{
    uint64_t odd = (a->text | a->blocks | (kind == CT_PACK_OUT ? a->slot : 0)) & (GR_PACK_ALIGN - 1);
    if (!a->text || !a->blocks || odd || !a->bytes || !a->seq || !a->word || !a->mark || blocks > gr_pack_blocks(a->bytes) ||
        (kind != CT_UNPACK && (!a->lens || a->lens & 3)) || (kind != CT_PACK && !a->packed))
        ct_breach("launch of kernel %d with %u blocks: text %llx, blocks %llx, lens %llx, slot %llx, %u bytes, %u packed, seq %u", kind, blocks,
                  (unsigned long long)a->text, (unsigned long long)a->blocks, (unsigned long long)a->lens, (unsigned long long)a->slot, a->bytes, a->packed, a->seq);
}

cu_result cuLaunchKernel(cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                         cu_stream stream, void **params, void **extra)
{
    BEGIN(CALL_LaunchKernel, WITH_CTX);
    int copy = f->kind < CT_PACK;
    if (!ct_is_stream(stream) || f->device != ct_current()->device)
        END(CU_INVALID_HANDLE);
    if (!gx || gy != 1 || gz != 1 || bx != (unsigned)(copy ? GR_GATHER_THREADS : GR_PACK_THREADS) || by != 1 || bz != 1 || shared || extra || gx > 65535)
        END(CU_INVALID_VALUE);
    if (copy)
        check_gather(params[0], f->kind);
    else
        check_pack(params[0], f->kind, gx);
    /* A launch copies its parameters. */
    ct_queue_kernel(stream, params[0], f->kind == CT_GATHER ? sizeof(gr_gather_args) : f->kind == CT_GATHER_SHORT ? sizeof(gr_gather_few) : sizeof(gr_pack_args), f->kind, gx);
    END(CU_OK);
}

typedef struct run {
    int device, bad;
    const gr_gather_args *a;
    gr_gather_mark *mark;
} run;

static void *at(run *r, uint64_t addr, uint64_t len)
{
    uint64_t n = len;
    void *p = ct_touch(addr, &n, r->device, BY_KERNEL);
    return n == len ? p : NULL;
}

static int copy_piece(run *r, gr_gather_piece p)
{
    for (uint64_t done = 0, n; done < p.len; done += n) {
        n = p.len - done;
        char *to = ct_touch(p.to + done, &n, r->device, BY_KERNEL | TO_WRITE), *from = ct_touch(p.from + done, &n, r->device, BY_KERNEL);
        if (!to || !from)
            return CU_ILLEGAL_ADDRESS;
        memcpy(to, from, n);
    }
    return 0;
}

/* What the kernel copies in one operation. 0: it cannot read its operations. */
static int piece_of(run *r, uint32_t i, const gr_gather_few *few, gr_gather_piece *p)
{
    if (few) {
        *p = few->piece[i];
        return 1;
    }
    const gr_gather_args *a = r->a;
    const gr_op *o = at(r, a->ops + (uint64_t)i * sizeof(*o), sizeof(*o));
    const uint64_t *delta = o && a->table ? at(r, a->table + (uint64_t)o->rregion * 8, 8) : &a->delta;
    if (!o || !delta)
        return 0;
    uint64_t remote = o->remote + *delta;
    *p = a->write ? (gr_gather_piece){o->local, remote, o->len} : (gr_gather_piece){remote, o->local, o->len};
    return 1;
}

static int overlap(uint64_t at, uint64_t len, uint64_t addr, uint64_t size) { return at < addr + size && addr < at + len; }

static int pack_uses(const gr_pack_args *a, int kind, uint64_t addr, uint64_t size)
{
    uint64_t n = gr_pack_blocks(a->bytes);
    return overlap(a->text, a->bytes, addr, size) || overlap(a->blocks, kind == CT_UNPACK ? a->packed : n * GR_PACK_STRIDE, addr, size) ||
           (kind != CT_UNPACK && overlap(a->lens, 4 * n, addr, size)) || (kind == CT_PACK_OUT && overlap(a->slot, a->bytes, addr, size));
}

int ct_kernel_uses(const void *args, int kind, int device, uint64_t addr, uint64_t size)
{
    if (kind >= CT_PACK)
        return pack_uses(args, kind, addr, size);
    const gr_gather_args *a = args;
    run r = {.device = device, .a = a};
    for (uint32_t i = 0; i < a->nops; i++) {
        gr_gather_piece p;
        if (!piece_of(&r, i, kind == CT_GATHER_SHORT ? args : NULL, &p) || overlap(p.to, p.len, addr, size) || overlap(p.from, p.len, addr, size))
            return 1;
    }
    return 0;
}

static int run_gather(const void *args, int kind, int device, int *done)
{
    const gr_gather_args *a = args;
    run r = {.device = device, .a = a};
    int err = 0, stop = 0;
    for (uint32_t i = 0; i < a->nops && !err && !stop; i++) {
        pthread_mutex_lock(&ct_mu);
        r.mark = at(&r, a->mark, sizeof(*r.mark));
        gr_gather_piece p;
        err = !r.mark || !piece_of(&r, i, kind == CT_GATHER_SHORT ? args : NULL, &p) ? CU_ILLEGAL_ADDRESS : copy_piece(&r, p);
        stop = !err && r.mark->cancel == a->seq && i + 1 < a->nops;
        long slow = ct_switch[SW_op];
        pthread_mutex_unlock(&ct_mu);
        if (slow)
            usleep((useconds_t)slow);
    }
    pthread_mutex_lock(&ct_mu);
    r.mark = err ? NULL : at(&r, a->mark, sizeof(*r.mark)); /* the lock was released: after a sticky error memory is freed meanwhile */
    gr_gather_word *word = err ? NULL : at(&r, a->word, sizeof(*word));
    if (!err && (!word || !r.mark))
        err = CU_ILLEGAL_ADDRESS;
    if (!err && r.mark->ended)
        ct_breach("two launches share a mark");
    if (!err && stop)
        __atomic_store_n(&word->stopped, a->seq, __ATOMIC_RELAXED);
    if (!err) {
        *done = 1; /* before the word: whoever sees the word may unmap memory at once, while the stream is not idle yet */
        __atomic_store_n(&word->done, a->seq, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&ct_mu);
    return err;
}

/* ---- packing ---- */

/* A packed chunk is checked as it is unpacked: the last block, where it is shorter, is plain or zeros. */
enum { CODES = 2 };

typedef struct packing {
    run r;
    const gr_pack_args *a;
    uint8_t *text, *blocks;
    uint32_t *lens;
    pack_scratch scratch;
    pack_hint hint;
} packing;

static uint32_t text_len(const gr_pack_args *a, uint32_t i) { return a->bytes - i * GR_PACK_TEXT < GR_PACK_TEXT ? a->bytes - i * GR_PACK_TEXT : GR_PACK_TEXT; }

static uint32_t encode(packing *p, uint32_t i)
{
    uint32_t n = text_len(p->a, i);
    uint8_t *to = p->blocks + (uint64_t)i * GR_PACK_STRIDE;
    const uint8_t *from = p->text + (uint64_t)i * GR_PACK_TEXT;
    uint32_t len = pack_encode(&p->scratch, &p->hint, to, from, n);
    if (n < GR_PACK_TEXT && to[0] == CODES) {
        memset(to, 0, PACK_HEAD);
        memcpy(to + PACK_HEAD, from, n);
        len = PACK_HEAD + n;
    }
    memset(to + len, 0, gr_pack_aligned(len) - len);
    return len;
}

static int pack_step(packing *p, uint32_t i)
{
    p->text = at(&p->r, p->a->text, p->a->bytes);
    p->blocks = at(&p->r, p->a->blocks, (uint64_t)gr_pack_blocks(p->a->bytes) * GR_PACK_STRIDE);
    p->lens = at(&p->r, p->a->lens, 4ull * gr_pack_blocks(p->a->bytes));
    if (!p->text || !p->blocks || !p->lens)
        return CU_ILLEGAL_ADDRESS;
    p->lens[i] = encode(p, i);
    return 0;
}

/* The table of a packed chunk, with its bytes. */
static uint64_t chunk_len(const uint32_t *lens, uint32_t n)
{
    uint64_t sum = gr_pack_aligned(4ull * n);
    for (uint32_t i = 0; i < n; i++)
        sum += gr_pack_aligned(lens[i]);
    return sum;
}

static int out(packing *p, int *done)
{
    const gr_pack_args *a = p->a;
    uint32_t n = gr_pack_blocks(a->bytes);
    gr_gather_word *word = at(&p->r, a->word, sizeof(*word));
    uint8_t *to = at(&p->r, a->slot, a->bytes), *text = at(&p->r, a->text, a->bytes), *blocks = at(&p->r, a->blocks, (uint64_t)n * GR_PACK_STRIDE);
    uint32_t *lens = at(&p->r, a->lens, 4ull * n);
    if (!word || !to || !text || !blocks || !lens)
        return CU_ILLEGAL_ADDRESS;
    uint64_t len = chunk_len(lens, n), table = gr_pack_aligned(4ull * n);
    int packed = len <= a->packed && len <= a->bytes - a->bytes / GR_PACK_GAIN;
    if (packed) {
        memset(to, 0, table);
        memcpy(to, lens, 4ull * n);
        to += table;
        for (uint32_t i = 0; i < n; to += gr_pack_aligned(lens[i++]))
            memcpy(to, blocks + (uint64_t)i * GR_PACK_STRIDE, gr_pack_aligned(lens[i]));
    } else
        memcpy(to, text, a->bytes);
    if (packed && ct_switch[SW_spoil] == 1)
        memset(at(&p->r, a->slot, 4), 0xff, 4);
    word->packed = packed ? (uint32_t)len : 0;
    *done = 1;
    __atomic_store_n(&word->done, a->seq, __ATOMIC_RELEASE);
    return 0;
}

/* Unpacks one block. *bad: the blocks are no packed chunk. */
static int unpack_step(packing *p, uint32_t i, int *bad)
{
    const gr_pack_args *a = p->a;
    uint32_t n = gr_pack_blocks(a->bytes), want = text_len(a, i);
    p->text = at(&p->r, a->text, a->bytes);
    p->blocks = at(&p->r, a->blocks, a->packed);
    if (!p->text || !p->blocks)
        return CU_ILLEGAL_ADDRESS;
    uint32_t *lens = (uint32_t *)p->blocks;
    uint64_t offset = gr_pack_aligned(4ull * n);
    *bad = a->packed < offset || chunk_len(lens, n) != a->packed;
    for (uint32_t k = 0; k < i && !*bad; k++)
        offset += gr_pack_aligned(lens[k]);
    const uint8_t *from = p->blocks + offset;
    if (!*bad)
        *bad = (want < GR_PACK_TEXT && lens[i] && from[0] == CODES) || pack_decode(&p->scratch, p->text + (uint64_t)i * GR_PACK_TEXT, want, from, lens[i]);
    return 0;
}

static int mark_bad(packing *p)
{
    gr_gather_word *word = at(&p->r, p->a->word, sizeof(*word));
    gr_gather_mark *mark = at(&p->r, p->a->mark, sizeof(*mark));
    if (!word || !mark)
        return CU_ILLEGAL_ADDRESS;
    word->bad = mark->cancel = p->a->seq;
    return 0;
}

/* Block by block, and others have the lock between them. */
static int run_pack(const gr_pack_args *a, int kind, int device, int *done)
{
    packing *p = calloc(1, sizeof(*p));
    *p = (packing){.r = {.device = device}, .a = a};
    int err = 0, bad = 0;
    for (uint32_t i = 0; i < gr_pack_blocks(a->bytes) && kind != CT_PACK_OUT && !err && !bad; i++) {
        pthread_mutex_lock(&ct_mu);
        err = kind == CT_PACK ? pack_step(p, i) : unpack_step(p, i, &bad);
        pthread_mutex_unlock(&ct_mu);
    }
    pthread_mutex_lock(&ct_mu);
    if (!err && bad)
        err = mark_bad(p);
    if (!err && kind == CT_PACK_OUT)
        err = out(p, done);
    *done = 1;
    pthread_mutex_unlock(&ct_mu);
    free(p);
    return err;
}

int ct_run(const void *args, int kind, int device, int *done)
{
    return kind < CT_PACK ? run_gather(args, kind, device, done) : run_pack(args, kind, device, done);
}
