/* Modules, and launches of our kernel. C code here does the work of kernel/gather.cu. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ct.h"
#include "gr_gather.h"

struct CUfunc_st {
    int device, is_short;
};

struct CUmod_st {
    struct CUfunc_st f[2];
};

cu_result cuModuleLoadDataEx(cu_module *module, const void *image, unsigned n, int *options, void **values)
{
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
    if (!strstr(image, ".entry gr_gather(") || !strstr(image, ".entry gr_gather_short("))
        END(CU_INVALID_PTX);
    *module = calloc(1, sizeof(**module));
    (*module)->f[0] = (struct CUfunc_st){ct_current()->device, 0};
    (*module)->f[1] = (struct CUfunc_st){ct_current()->device, 1};
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
    int is_short = strcmp(name, "gr_gather_short") == 0;
    *function = &module->f[is_short];
    END(is_short || strcmp(name, "gr_gather") == 0 ? CU_OK : CU_NOT_FOUND);
}

cu_result cuLaunchKernel(cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                         cu_stream stream, void **params, void **extra)
{
    BEGIN(CALL_LaunchKernel, WITH_CTX);
    const gr_gather_args *a = params[0];
    if (!ct_is_stream(stream) || f->device != ct_current()->device)
        END(CU_INVALID_HANDLE);
    if (!gx || gy != 1 || gz != 1 || bx != GR_GATHER_THREADS || by != 1 || bz != 1 || shared || extra || gx > 65535)
        END(CU_INVALID_VALUE);
    /* The kernel assumes all of this without a check. */
    if (!a->nops || !a->split || !a->run || a->run > GR_GATHER_RUN || (uint64_t)a->nops * a->split >= 1ull << 31 || !a->seq ||
        (f->is_short && a->nops > GR_GATHER_FEW))
        ct_breach("launch: %u operations, split %u, run %u, seq %u", a->nops, a->split, a->run, a->seq);
    /* A launch copies its parameters. */
    ct_queue_kernel(stream, a, f->is_short ? sizeof(gr_gather_few) : sizeof(*a), f->is_short, gx);
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

int ct_kernel_uses(const void *args, int is_short, int device, uint64_t addr, uint64_t size)
{
    const gr_gather_args *a = args;
    run r = {.device = device, .a = a};
    for (uint32_t i = 0; i < a->nops; i++) {
        gr_gather_piece p;
        if (!piece_of(&r, i, is_short ? args : NULL, &p) || (p.to < addr + size && addr < p.to + p.len) || (p.from < addr + size && addr < p.from + p.len))
            return 1;
    }
    return 0;
}

int ct_run(const void *args, int is_short, int device, unsigned blocks, int *done)
{
    const gr_gather_args *a = args;
    run r = {.device = device, .a = a};
    int err = 0, stop = 0;
    (void)blocks;
    for (uint32_t i = 0; i < a->nops && !err && !stop; i++) {
        pthread_mutex_lock(&ct_mu);
        r.mark = at(&r, a->mark, sizeof(*r.mark));
        gr_gather_piece p;
        err = !r.mark || !piece_of(&r, i, is_short ? args : NULL, &p) ? CU_ILLEGAL_ADDRESS : copy_piece(&r, p);
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
