/* Progress: a polling thread takes in completions, posts work that has room, and runs the inbox. */
#ifndef GORAIL_CONTROL_H
#define GORAIL_CONTROL_H

#include "transfer.h"

enum { POLL_BATCH = 32, POLL_MAX = 4 * POLL_BATCH };

/* progress.c */
/* Runs the inbox, unless another thread holds the rail's lock; that thread then runs the inbox when it unlocks. 1: this
 * thread ran it, and nothing is left to do or in flight. */
int rail_run(rail_st *rail);
/* One bounded step. Returns the number of completions taken in, or 1 if this thread only assisted or served a peer. POLL_MAX or
 * more: more work is ready now. -1: another thread has the rail. *assisted: this thread made a copy. */
int rail_progress(rail_st *rail, int *assisted);
int rail_poll(rail_st *rail, int max);

/* thread.c: whether the first thread backs off */
/* What the application did since the first thread looked last. */
typedef struct back_off {
    uint64_t seen, since; /* polls of the application, and when they were counted */
    int sleeps, sleep_ms;
} back_off;
void back_off_watch(back_off *b, uint64_t polls, uint64_t now); /* starts to watch */
/* How long the thread sleeps, since the application polls, in milliseconds; 0: it does not sleep. */
int back_off_ms(back_off *b, uint64_t polls, uint64_t now);

/* thread.c: its start and end */
/* Starts the thread, if it is not up. 0, or a negative errno. */
int worker_start(gr_core *core, uint32_t index);
void workers_join(gr_core *core); /* core->stop is set */
void workers_free(gr_core *core);

/* thread.c */
void *core_thread(void *arg);
void core_progress(gr_core *core);
void core_posted(gr_core *core); /* the application has posted, and nothing is left in flight on its rails */

/* ---- Places where a test stops a thread so that other threads pass. In the plugin they are empty. */

enum { GR_PAUSE_JOIN, GR_PAUSE_JOINED };

#ifdef GR_TEST_PAUSE
extern void (*gr_pause)(int where); /* set by the test */
#define GR_PAUSE(where) (gr_pause ? gr_pause(where) : (void)0)
#else
#define GR_PAUSE(where) ((void)0)
#endif

#endif
