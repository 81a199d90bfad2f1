/* Scenarios that random runs seldom reach, step by step. */
#include <string.h>

#include "scenario.h"

world w;
_Atomic int32_t *failing;

static void ended(world *unused, uint64_t handle, int code)
{
    (void)unused;
    CHECK(!code || failing, "transfer %lu ended with %d", (unsigned long)handle, code);
    if (code)
        atomic_store(failing, code);
}

static void link_up(gr_link *link) { (void)link; }
static void change(void) {}

void scene(int ordered, int rails, uint64_t seed)
{
    world_open(&w, ordered, rails, 0, seed);
    w.callbacks.ended = ended;
    w.callbacks.link_up = link_up;
    w.callbacks.change = change;
}

void progress(void)
{
    world_progress(&w);
    world_events(&w);
}

/* Makes a WRITE of one operation, in its own slot of memory. */
gr_xfer *write_of(uint64_t handle, uint64_t len)
{
    uint64_t at = handle % SLOTS * SLOT_SIZE;
    gr_xfer *x = gr_xfer_new(w.a.core, handle, GR_WRITE, 1, -1);
    CHECK(x, "out of memory");
    x->ops[0] = (gr_op){.local = (uintptr_t)w.a.mem + at, .remote = (uintptr_t)w.b.mem + at, .len = len, .lregion = LOCAL, .rregion = REMOTE};
    x->bytes = len;
    return x;
}

void post(gr_xfer *x, gr_link *const *links, uint32_t n, uint64_t *note)
{
    uint64_t rng = x->handle;
    uint32_t len;
    char *body = note_new(w.session, 0, &rng, &len, note);
    atomic_store(&x->state, GR_XFER_RUNNING);
    gr_xfer_post(w.a.core, x, links, n, 0, 1, body, len);
    free(body);
}

int running(const gr_xfer *x) { return (atomic_load(&x->state) & 0xff) == GR_XFER_RUNNING; }

int scenario(const char *name)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {
        {"late_join", late_join},
        {"join_twice", join_twice},
        {"lost_sends", lost_sends},
        {"probe_without_credit", probe_without_credit},
        {"too_many", too_many},
        {"held_back", held_back},
        {"held_back_large", held_back_large},
        {"gathered", gathered},
        {"down_and_up", down_and_up},
        {"probed_with_work", probed_with_work},
        {"refused_receives", refused_receives},
        {"yields", yields},
        {"yields_back", yields_back},
        {"yields_stuck", yields_stuck},
        {"yields_refused", yields_refused},
        {"yields_midway", yields_midway},
        {"seldom_polls", seldom_polls},
        {"crowded", crowded},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!strcmp(all[i].name, name)) {
            all[i].run();
            return 0;
        }
    CHECK(0, "no scenario %s", name);
}
