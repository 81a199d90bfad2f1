/* Keeps the host process as it was while libfabric and what it drags in are loaded.
 *
 * Debian's libfabric needs libinfinipath, whose constructor replaces the handlers of SEGV, BUS, ABRT, INT and TERM
 * (without SA_ONSTACK, which kills a Go or Java program at its next fault) unless IPATH_NO_BACKTRACE is set; libpsm2 and
 * psm3 do alike with HFI_NO_BACKTRACE. The variables are set only while loading, and what changed all the same is put
 * back. The raw system call is used so that the kernel's own record, restorer included, is what is compared and restored.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ofi.h"

static const char *const quiet[2] = { "IPATH_NO_BACKTRACE", "HFI_NO_BACKTRACE" };
static pthread_mutex_t env_lock = PTHREAD_MUTEX_INITIALIZER;

enum { KERNEL_SIGSET = 8, SIGNALS = 64 };

static int get_action(int sig, void *act)
{
    return (int)syscall(SYS_rt_sigaction, sig, NULL, act, KERNEL_SIGSET);
}

void ofi_guard_begin(ofi_guard *guard)
{
    memset(guard, 0, sizeof(*guard));
    pthread_mutex_lock(&env_lock);
    for (int i = 0; i < 2; i++)
        if (!getenv(quiet[i]))
            guard->set_env[i] = setenv(quiet[i], "1", 1) == 0;
    for (int sig = 1; sig <= SIGNALS; sig++)
        guard->act[sig].ok = get_action(sig, guard->act[sig].raw) == 0;
}

void ofi_guard_end(ofi_guard *guard)
{
    for (int sig = 1; sig <= SIGNALS; sig++) {
        unsigned char now[sizeof(guard->act[sig].raw)] = { 0 };
        if (guard->act[sig].ok && get_action(sig, now) == 0 && memcmp(now, guard->act[sig].raw, sizeof(now)) != 0)
            (void)syscall(SYS_rt_sigaction, sig, guard->act[sig].raw, NULL, KERNEL_SIGSET);
    }
    for (int i = 0; i < 2; i++)
        if (guard->set_env[i])
            unsetenv(quiet[i]);
    pthread_mutex_unlock(&env_lock);
}
