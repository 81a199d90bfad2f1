/* A notification is stuck on one rail, and others pass it. assembler.c ends the program if too many pass. */
#include <string.h>

#include "scenario.h"

/* Sends notifications of len bytes behind one that is stuck. Returns how many went out before the rest was held back. The
 * waiting ones then move to another link, and must still arrive before later ones. */
static uint64_t pass(uint32_t len, uint64_t count)
{
    enum { QUIET = 200 };
    gr_xfer *x;
    uint64_t note, id, sent = 0, passed = 0;
    scene(1, 3, 0);
    x = write_of(0, 4096);
    gr_link *notif_link = w.a.link[0];
    fake_rail_stall(w.b.rail[1], 1);
    post(x, &w.a.link[1], 1, &note);
    note_require(note, w.session);
    UNTIL(gr_xfer_message(x, &(void *){NULL}, &(uint64_t){0}) == -1); /* it has a number */
    for (uint64_t quiet = 0, last = 0; sent < count; sent++) {
        char *body = note_of(w.session, 1, len, &id);
        while (gr_notify(notif_link, body, len) != 0) {
            gr_tally now;
            progress();
            gr_link_tally(notif_link, &now);
            quiet = now.count[GR_N_MSGS_SENT] == last ? quiet + 1 : 0;
            last = now.count[GR_N_MSGS_SENT];
            if (quiet == QUIET && !passed) { /* no more may pass */
                passed = last;
                notif_link = w.a.link[w.notif_rail = 2];
                gr_sess_set_notif_link(w.a.sess, notif_link);
                fake_rail_stall(w.b.rail[1], 0);
            }
            CHECK(quiet < 100 * QUIET, "%lu notifications were accepted, and none goes out", (unsigned long)sent);
        }
        note_require(id, w.session);
        free(body);
    }
    UNTIL(!running(x) && notes_all() && gr_sess_queued(w.a.sess) == 0);
    gr_xfer_free(w.a.core, x);
    world_close(&w);
    return passed;
}

void held_back(void)
{
    uint64_t n = pass(8, 100000);
    CHECK(n > 10000 && n <= 1 << 14, "%lu notifications have passed", (unsigned long)n);
}

void held_back_large(void)
{
    uint64_t n = pass(2000, 60000);
    CHECK(n > 10000 && n < 30000, "%lu notifications have passed", (unsigned long)n);
}
