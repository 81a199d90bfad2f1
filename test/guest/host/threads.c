#define _GNU_SOURCE
#include "host.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { AT_ONCE = 8 };
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static void *once(void *pair)
{
    pthread_mutex_lock(&turn);
    pair_turn(pair);
    pthread_mutex_unlock(&turn);
    return NULL;
}

/* Addresses in use, in MiB. */
static long addresses(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f || fscanf(f, "%ld", &pages) != 1)
        fail("no /proc/self/statm");
    fclose(f);
    return pages * sysconf(_SC_PAGESIZE) >> 20;
}

static void run(struct pair *p, size_t stack)
{
    pthread_attr_t attr;
    pthread_t threads[AT_ONCE];
    pthread_attr_init(&attr);
    int err = pthread_attr_setstacksize(&attr, stack);
    for (int i = 0; i < AT_ONCE && !err; i++)
        err = pthread_create(&threads[i], &attr, once, p);
    if (err)
        fail("pthread_create: %s", strerror(err));
    for (int i = 0; i < AT_ONCE; i++)
        pthread_join(threads[i], NULL);
    pthread_attr_destroy(&attr);
}

void short_threads(struct pair *p, int count, size_t stack)
{
    for (int i = 0; i < 8; i++) /* what is kept, such as stacks of the C library, is there after some */
        run(p, stack);
    const long before = addresses();
    for (int i = 0; i < count; i += AT_ONCE)
        run(p, stack);
    printf("threads: %d, addresses grew by %ld MiB\n", count, addresses() - before);
}
