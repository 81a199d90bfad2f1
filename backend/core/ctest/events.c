/* Handles the events that the cores pass to Go. */
#include "world.h"

static void link_event(world *w, const gr_event *ev, int from_a)
{
    int rail = (int)(ev->id % WORLD_RAILS);
    if (ev->id / WORLD_RAILS != w->session)
        return;
    if (ev->code) {
        w->broken[rail] = 1;
    } else if (from_a && !w->up[rail]) { /* its probe was answered */
        gr_link_stats st;
        gr_link_stats_get(w->a.link[rail], &st);
        if (st.state != GR_LINK_STATE_PROBING)
            return; /* broken again meanwhile */
        w->up[rail] = 1;
        w->callbacks.change();
        gr_link_up(w->a.link[rail]);
        w->callbacks.link_up(w->a.link[rail]);
    }
}

static void handle(world *w, side *s, gr_event *ev)
{
    const uint64_t all[] = {s == &w->a, (uint64_t)ev->kind, ev->id, (uint64_t)ev->code, ev->seq, ev->len, ev->offset};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        trace(all[i]);
    switch (ev->kind) {
    case GR_EV_XFER:
        w->xfer_events++;
        w->callbacks.ended(w, ev->id, ev->code);
        break;
    case GR_EV_LINK: link_event(w, ev, s == &w->a); break;
    case GR_EV_MSG:
        if (ev->id == w->session)
            assembler_add(&w->order, s->sess, ev);
        else if (w->other_sess)
            gr_sess_handled(w->other_sess, ev->len);
        break;
    }
    free(ev->data);
}

void world_events(world *w)
{
    side *sides[2] = {&w->a, &w->b};
    gr_event ev[16];
    for (int i = 0; i < 2; i++)
        for (int n; (n = gr_events_take(sides[i]->core, ev, 16)) > 0;)
            for (int k = 0; k < n; k++)
                handle(w, sides[i], &ev[k]);
}
