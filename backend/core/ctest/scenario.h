/* Functions that scenarios share. Each scenario has its own world, driven by one thread. */
#ifndef SCENARIO_H
#define SCENARIO_H

#include "world.h"

extern world w;

/* Receives the error of a transfer that fails; NULL: no transfer may fail. */
extern _Atomic int32_t *failing;

void scene(int ordered, int rails, uint64_t seed);
void progress(void);
gr_xfer *write_of(uint64_t handle, uint64_t len);
void post(gr_xfer *x, gr_link *const *links, uint32_t n, uint64_t *note);
int running(const gr_xfer *x);

/* Makes progress until the condition holds. */
#define UNTIL(cond)                                                                                                                                  \
    for (uint64_t end_ = gr_now_ns() + 60000000000u; !(cond); progress())                                                                            \
    CHECK(gr_now_ns() < end_, "a minute has passed")

void late_join(void);
void join_twice(void);
void lost_sends(void);
void probe_without_credit(void);
void too_many(void);
void held_back(void);
void held_back_large(void);
void gathered(void);
void down_and_up(void);
void probed_with_work(void);
void refused_receives(void);
void yields(void);
void yields_back(void);
void yields_stuck(void);
void yields_refused(void);
void yields_midway(void);
void seldom_polls(void);
void crowded(void);

#endif
