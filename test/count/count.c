/* Preloaded (LD_PRELOAD), counts the process's allocations in C, of all libraries and threads. The count stands in the file that
 * GORAIL_TEST_COUNT names, so that a test can read it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* The C library's own, by the names that it gives to programs with a malloc of their own. */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static _Atomic uint64_t early;
static _Atomic uint64_t *count = &early;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("GORAIL_TEST_COUNT");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *file = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*count), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (file == MAP_FAILED)
        abort();
    close(fd);
    count = file;
}

static void add(void) { atomic_fetch_add_explicit(count, 1, memory_order_relaxed); }

void *malloc(size_t n)
{
    add();
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t each)
{
    add();
    return __libc_calloc(n, each);
}

void *realloc(void *p, size_t n)
{
    add();
    return __libc_realloc(p, n);
}

void *memalign(size_t align, size_t n)
{
    add();
    return __libc_memalign(align, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    add();
    return __libc_memalign(align, n);
}

int posix_memalign(void **p, size_t align, size_t n)
{
    if (align % sizeof(void *) != 0 || align == 0 || (align & (align - 1)) != 0)
        return EINVAL;
    add();
    void *got = __libc_memalign(align, n);
    if (!got)
        return ENOMEM;
    *p = got;
    return 0;
}
