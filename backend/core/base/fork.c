/* Fork. No engine works in a child of fork. The child closes our descriptors, so that the child does not keep the peers'
 * connections open. */
#include "base.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static _Atomic int in_child;

static pthread_mutex_t held_mu = PTHREAD_MUTEX_INITIALIZER;
static int *held; /* descriptors that a child of fork closes */
static size_t nheld, held_cap;

static void before_fork(void) { pthread_mutex_lock(&held_mu); }

static void after_fork_parent(void) { pthread_mutex_unlock(&held_mu); }

static void after_fork_child(void)
{
    atomic_store(&in_child, 1);
    for (size_t i = 0; i < nheld; i++)
        close(held[i]);
    nheld = 0;
    pthread_mutex_unlock(&held_mu);
}

/* Runs when the library is loaded, not with the first engine: Go's runtime exists from then on, and a child has none of its
 * threads. */
__attribute__((constructor)) static void fork_setup(void) { pthread_atfork(before_fork, after_fork_parent, after_fork_child); }

int gr_forked(void) { return atomic_load_explicit(&in_child, memory_order_relaxed); }

int gr_fd_hold(int fd)
{
    int rc = 0;
    pthread_mutex_lock(&held_mu);
    if (nheld == held_cap) {
        size_t cap = held_cap ? 2 * held_cap : 64;
        int *more = GR_ALLOC(core_held_fd, realloc(held, cap * sizeof *more));
        if (more) {
            held = more;
            held_cap = cap;
        } else {
            rc = -ENOMEM;
        }
    }
    if (!rc)
        held[nheld++] = fd;
    pthread_mutex_unlock(&held_mu);
    return rc;
}

void gr_fd_release(int fd)
{
    pthread_mutex_lock(&held_mu);
    for (size_t i = 0; i < nheld; i++)
        if (held[i] == fd) {
            held[i] = held[--nheld];
            break;
        }
    pthread_mutex_unlock(&held_mu);
}
