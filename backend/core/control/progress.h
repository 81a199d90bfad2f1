/* Progress: whoever polls takes completions in, posts what has room, and runs the inbox. */
#ifndef GORAIL_PROGRESS_H
#define GORAIL_PROGRESS_H

#include "transfer.h"

enum { POLL_BATCH = 32, POLL_MAX = 4 * POLL_BATCH };

/* progress.c */
/* Runs the inbox unless somebody else has the rail, who will do it when unlocking. 1: it has, and nothing is left, neither under way
 * nor undone. */
int rail_run(rail_st *rail);
/* One bounded step. Returns completions taken in, or 1 for a copy; POLL_MAX or more when there is more to do at once; -1 when another
 * thread is at it. *helped: this one copied. */
int rail_progress(rail_st *rail, int *helped);
int rail_poll(rail_st *rail, int max);
void rail_kick(gr_rail *dev);

/* thread.c */
void *core_thread(void *arg);
void core_progress(gr_core *core);
void core_posted(gr_core *core); /* the application has, and that left nothing under way on its rails */

#endif
