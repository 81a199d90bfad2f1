// This program's malloc and pthread locks come before those of the C library: the dynamic linker binds the calls of all libraries of the
// process to these, plugins of NIXL among them. Each counts, and calls the C library's own.
#define _GNU_SOURCE
#include "count.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "callers.h"

// The C library's own, by the names that it gives to programs with a malloc of their own.
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void *__libc_valloc(size_t);
extern void *__libc_pvalloc(size_t);

enum { LINES = 256 };

// line has the counts of a thread, so that counting needs no locked instruction. Threads beyond LINES share the last one.
typedef struct {
    _Alignas(64) _Atomic uint64_t allocs, contended;
} line;

static line lines[LINES];
static atomic_uint threads;
static __thread line *own;

static void count(size_t at)
{
    line *l = own;
    if (!l) {
        unsigned i = atomic_fetch_add(&threads, 1);
        l = own = &lines[i < LINES ? i : LINES - 1];
    }
    _Atomic uint64_t *n = (_Atomic uint64_t *)((char *)l + at);
    if (l == &lines[LINES - 1])
        atomic_fetch_add_explicit(n, 1, memory_order_relaxed);
    else
        atomic_store_explicit(n, atomic_load_explicit(n, memory_order_relaxed) + 1, memory_order_relaxed);
}

static void allocation(void)
{
    count(offsetof(line, allocs));
    gr_callers_note();
}

void *malloc(size_t n)
{
    allocation();
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t each)
{
    allocation();
    return __libc_calloc(n, each);
}

void *realloc(void *p, size_t n)
{
    allocation();
    return __libc_realloc(p, n);
}

void *memalign(size_t align, size_t n)
{
    allocation();
    return __libc_memalign(align, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    allocation();
    return __libc_memalign(align, n);
}

void *valloc(size_t n)
{
    allocation();
    return __libc_valloc(n);
}

void *pvalloc(size_t n)
{
    allocation();
    return __libc_pvalloc(n);
}

int posix_memalign(void **p, size_t align, size_t n)
{
    if (align % sizeof(void *) != 0 || align == 0 || (align & (align - 1)) != 0)
        return EINVAL;
    allocation();
    void *got = __libc_memalign(align, n);
    if (!got)
        return ENOMEM;
    *p = got;
    return 0;
}

// LOCK is a lock of the C library that is counted if another thread holds it.
#define LOCK(name, try, type)                                                                                                                        \
    int name(type *l)                                                                                                                                \
    {                                                                                                                                                \
        static _Atomic(void *) real;                                                                                                                 \
        int rc = try(l);                                                                                                                             \
        if (rc != EBUSY)                                                                                                                             \
            return rc;                                                                                                                               \
        count(offsetof(line, contended));                                                                                                            \
        int (*f)(type *) = (int (*)(type *))atomic_load(&real);                                                                                      \
        if (!f) {                                                                                                                                    \
            f = (int (*)(type *))dlsym(RTLD_NEXT, #name);                                                                                            \
            atomic_store(&real, (void *)f);                                                                                                          \
        }                                                                                                                                            \
        return f(l);                                                                                                                                 \
    }

LOCK(pthread_mutex_lock, pthread_mutex_trylock, pthread_mutex_t)
LOCK(pthread_rwlock_rdlock, pthread_rwlock_tryrdlock, pthread_rwlock_t)
LOCK(pthread_rwlock_wrlock, pthread_rwlock_trywrlock, pthread_rwlock_t)
LOCK(pthread_spin_lock, pthread_spin_trylock, pthread_spinlock_t)

void gr_count_look(uint64_t out[GR_COUNTS])
{
    struct rusage u = {0};
    getrusage(RUSAGE_SELF, &u);
    out[GR_ALLOCS] = out[GR_CONTENDED] = 0;
    for (int i = 0; i < LINES; i++) {
        out[GR_ALLOCS] += atomic_load_explicit(&lines[i].allocs, memory_order_relaxed);
        out[GR_CONTENDED] += atomic_load_explicit(&lines[i].contended, memory_order_relaxed);
    }
    out[GR_SWITCHES] = (uint64_t)u.ru_nvcsw;
    out[GR_PREEMPTED] = (uint64_t)u.ru_nivcsw;
    out[GR_FAULTS] = (uint64_t)u.ru_minflt;
}
