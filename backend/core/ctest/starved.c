/* A core without memory for events: nothing but a few nodes, which go round. */
#include "world.h"

static int starved, nodes; /* nodes: how many the queue may still get */
static _Atomic uint64_t refused;
static _Thread_local int inside;

struct owed;
int __real_core_event_nodes(gr_core *core, uint32_t n);
void __real_core_event(gr_core *core, const gr_event *ev, struct owed *owed, const _Atomic uint64_t *now);
void *__real_malloc(size_t n);

int __wrap_core_event_nodes(gr_core *core, uint32_t n) { return starved ? 0 : __real_core_event_nodes(core, n); }

void __wrap_core_event(gr_core *core, const gr_event *ev, struct owed *owed, const _Atomic uint64_t *now)
{
    inside = starved;
    __real_core_event(core, ev, owed, now);
    inside = 0;
}

void *__wrap_malloc(size_t n)
{
    static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
    if (inside) {
        pthread_mutex_lock(&mu);
        int none = nodes-- <= 0;
        pthread_mutex_unlock(&mu);
        if (none) {
            atomic_fetch_add(&refused, 1);
            return NULL;
        }
    }
    return __real_malloc(n);
}

void starve(int most)
{
    starved = 1;
    nodes = most;
}

uint64_t starved_events(void) { return refused; }
