/* Copies of memory that is there, not there, or may not be accessed, both ways that the kernel makes them. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gr_guard.h"

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s, by pipe %d\n", __FILE__, __LINE__, #x, way), exit(1)))
enum { PAGE = 4096, PAGES = 64, BYTES = PAGES * PAGE };
static int way;

static uint8_t *pages(int prot)
{
    uint8_t *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    for (int i = 0; i < BYTES; i++)
        at[i] = (uint8_t)(i * 7 + i / PAGE);
    CHECK(mprotect(at, BYTES, prot) == 0);
    return at;
}

/* A page in the middle is of the kind: unmapped, without access, read-only, behind the end of a file. */
static uint8_t *holed(int kind)
{
    uint8_t *at = pages(PROT_READ | PROT_WRITE), *hole = at + BYTES / 2;
    if (kind == 3) {
        int fd = memfd_create("guard", MFD_CLOEXEC);
        CHECK(fd >= 0 && mmap(hole, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == hole && close(fd) == 0);
    } else {
        CHECK(kind ? mprotect(hole, PAGE, kind == 1 ? PROT_NONE : PROT_READ) == 0 : munmap(hole, PAGE) == 0);
    }
    return at;
}

static void whole(void)
{
    uint8_t *a = pages(PROT_READ), *b = pages(PROT_READ | PROT_WRITE), *mem = malloc(BYTES);
    struct iovec v[] = {{b + 5, 1}, {b + 100, 0}, {b + 200, 3 * PAGE}, {b + BYTES - 9, 9}};
    CHECK(mem);
    CHECK(gr_guard_load(mem, &(struct iovec){a, BYTES}, 1) == 1 && !memcmp(mem, a, BYTES) && gr_guard_readable(a, BYTES));
    memset(b, 0, BYTES);
    CHECK(gr_guard_store(v, 4, mem) == 4 && b[5] == mem[0] && !memcmp(b + 200, mem + 1, 3 * PAGE) && !memcmp(b + BYTES - 9, mem + 1 + 3 * PAGE, 9));
    CHECK(b[4] == 0 && b[6] == 0 && b[199] == 0 && b[200 + 3 * PAGE] == 0 && b[BYTES - 10] == 0);
    gr_span s[] = {{b, a, 3}, {b + PAGE, a + 9, 2 * PAGE}, {b + 5 * PAGE, a, 0}};
    CHECK(gr_guard_move(3, s) == 0 && !memcmp(b, a, 3) && !memcmp(b + PAGE, a + 9, 2 * PAGE));
    for (int by = -5000; by <= 5000; by += 2500) { /* as memmove */
        memcpy(b, a, BYTES);
        memcpy(mem, a, BYTES);
        memmove(mem + 10000 + by, mem + 10000, 100000);
        CHECK(gr_guard_move(1, &(gr_span){b + 10000 + by, b + 10000, 100000}) == 0 && !memcmp(b, mem, BYTES));
    }
    free(mem);
    CHECK(munmap(a, BYTES) == 0 && munmap(b, BYTES) == 0);
}

static void missing(int kind)
{
    uint8_t *at = holed(kind), *good = pages(PROT_READ | PROT_WRITE), *mem = calloc(1, BYTES), *hole = at + BYTES / 2;
    int reads = kind == 2;
    CHECK(mem);
    struct iovec v[] = {{at, PAGE}, {hole - 10, 20}, {at + BYTES - PAGE, PAGE}};
    CHECK(gr_guard_load(mem, v, 3) == (reads ? 3 : 1) && gr_guard_store(v, 3, mem) == 1);
    CHECK(gr_guard_load(mem, &(struct iovec){at, BYTES}, 1) == reads && gr_guard_store(&(struct iovec){at, BYTES}, 1, mem) == 0);
    CHECK(gr_guard_readable(at, BYTES) == reads && gr_guard_readable(at, BYTES / 2) && gr_guard_readable(hole + PAGE - 1, 2) == reads);
    CHECK(gr_guard_move(1, &(gr_span){good, at, BYTES}) == (reads ? 0 : EFAULT) && gr_guard_move(1, &(gr_span){at, good, BYTES}) == EFAULT);
    CHECK(gr_guard_move(2, (gr_span[]){{good, at, 64}, {good + 64, hole, 64}}) == (reads ? 0 : EFAULT));
    memset(mem, 3, PAGE); /* what has failed leaves nothing behind for the next copy */
    CHECK(gr_guard_store(&(struct iovec){good, PAGE}, 1, mem) == 1 && !memcmp(good, mem, PAGE));
    free(mem);
    CHECK((kind ? munmap(at, BYTES) : munmap(at, BYTES / 2) | munmap(hole + PAGE, BYTES / 2 - PAGE)) == 0 && munmap(good, BYTES) == 0);
}

static void *copies(void *seed)
{
    uint8_t from[20000], to[20000];
    for (int i = 0; i < 300; i++) {
        memset(from, (int)(intptr_t)seed + i, sizeof(from));
        CHECK(gr_guard_store(&(struct iovec){to, sizeof(to)}, 1, from) == 1 && !memcmp(to, from, sizeof(to)));
    }
    return NULL;
}

/* The host closes descriptors that are not its own, and others get their numbers. */
static void closed(void)
{
    uint8_t a[64] = {1}, b[64] = {0};
    for (int fd = 3; fd < 64; fd++)
        close(fd);
    int other[2];
    CHECK(pipe(other) == 0);
    CHECK(gr_guard_store(&(struct iovec){b, sizeof(b)}, 1, a) == 1 && !memcmp(a, b, sizeof(a)));
    CHECK(fcntl(other[0], F_SETFL, O_NONBLOCK) == 0 && read(other[0], a, 1) < 0 && close(other[0]) == 0 && close(other[1]) == 0);
}

int main(void)
{
    pthread_t t[4];
    for (way = 0; way < 2; way++) {
        gr_guard_by_pipe(way);
        whole();
        for (int kind = 0; kind < 4; kind++)
            missing(kind);
        for (intptr_t i = 0; i < 4; i++)
            CHECK(pthread_create(&t[i], NULL, copies, (void *)i) == 0);
        for (int i = 0; i < 4; i++)
            CHECK(pthread_join(t[i], NULL) == 0);
        closed();
    }
    return 0;
}
