/* Places where a test stops a thread so that other threads pass. In the plugin they are empty. */
#ifndef GORAIL_PAUSE_H
#define GORAIL_PAUSE_H

enum { GR_PAUSE_JOIN, GR_PAUSE_JOINED };

#ifdef GR_TEST_PAUSE
extern void (*gr_pause)(int where); /* set by the test */
#define GR_PAUSE(where) (gr_pause ? gr_pause(where) : (void)0)
#else
#define GR_PAUSE(where) ((void)0)
#endif

#endif
