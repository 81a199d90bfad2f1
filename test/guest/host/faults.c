#define _GNU_SOURCE
#include "host.h"

#include <errno.h>
#include <link.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static sigjmp_buf back;
static volatile int jumps;
static volatile int one = 1, none;
static volatile char *volatile nowhere = (volatile char *)16;

static void on_fault(int sig)
{
    siglongjmp(back, sig);
}

void catch_faults(int sig, int on_stack)
{
    struct sigaction a = {.sa_handler = on_fault, .sa_flags = on_stack ? SA_ONSTACK : 0};
    jumps = 1;
    if (sigaction(sig, &a, NULL))
        fail("sigaction of %d: %s", sig, strerror(errno));
}

static sigjmp_buf own;
static volatile int of_own;
static struct sigaction earlier;

static void on_own(int sig, siginfo_t *info, void *context)
{
    if (of_own)
        siglongjmp(own, 1);
    earlier.sa_sigaction(sig, info, context);
}

void catch_own(int sig)
{
    struct sigaction a = {.sa_sigaction = on_own, .sa_flags = SA_SIGINFO};
    if (sigaction(sig, &a, &earlier) || !(earlier.sa_flags & SA_SIGINFO))
        fail("the plugin has no handler of %d", sig);
}

void fault_of_own(int sig)
{
    of_own = 1;
    jumps = 0;
    if (!sigsetjmp(own, 1))
        fault(sig);
    jumps = 1;
    of_own = 0;
}

/* Memory of a file that has no bytes. */
static volatile char *beyond(void)
{
    int fd = memfd_create("empty", MFD_CLOEXEC);
    void *at = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (fd < 0 || at == MAP_FAILED)
        fail("mmap: %s", strerror(errno));
    close(fd);
    return at;
}

void fault(int sig)
{
    if (jumps && sigsetjmp(back, 1))
        return;
    if (sig == SIGBUS)
        one = *beyond();
    else if (sig == SIGSEGV)
        *nowhere = 1;
#ifdef __x86_64__
    else if (sig == SIGFPE)
        one /= none;
#else
    else if (sig == SIGFPE)
        raise(SIGFPE); /* the CPU has no such fault */
#endif
}

struct library {
    const char *name;
    unsigned long base;
};

static int find(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct library *l = arg;
    (void)size;
    if (strstr(info->dlpi_name, l->name))
        l->base = info->dlpi_addr;
    return 0;
}

int store_to_nothing(const char *plugin, unsigned long offset)
{
    struct library l = {plugin, 0};
    dl_iterate_phdr(find, &l);
    if (!l.base)
        fail("%s is not loaded", plugin);
    int (*call)(void *) = (int (*)(void *))(l.base + offset);
    return call(NULL);
}
