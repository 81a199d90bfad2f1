/* Two cores over one fake fabric, and the parts of Go that they need: sessions, fences, the order of notifications. */
#ifndef WORLD_H
#define WORLD_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "fake.h"
#include "gr_policy.h"

#define CHECK(cond, ...)                                                                                                                             \
    do {                                                                                                                                             \
        if (!(cond)) {                                                                                                                               \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond);                                                                               \
            fprintf(stderr, __VA_ARGS__);                                                                                                            \
            fprintf(stderr, "\n");                                                                                                                   \
            abort();                                                                                                                                 \
        }                                                                                                                                            \
    } while (0)

enum {
    SLOTS = 24,
    REPOSTED = 4, /* more slots, for again.c */
    SLOT_SIZE = 24 << 10,
    MEM_SIZE = (SLOTS + REPOSTED) * SLOT_SIZE,
    LOCAL = 0,
    REMOTE = 1, /* region numbers */
    WORLD_RAILS = 3
};

/* One end: a core with rails, a registered buffer, and its side of the only session. */
typedef struct side {
    gr_core *core;
    fake_rail *rail[WORLD_RAILS];
    fake_mr *mr[WORLD_RAILS];
    uint64_t key[WORLD_RAILS];
    unsigned char *mem;
    gr_sess *sess;
    gr_link *link[WORLD_RAILS];
    fake_ep *ep[WORLD_RAILS];
    gr_tally freed_links[WORLD_RAILS]; /* counters of freed links */
} side;

/* The order of notifications, as notify.Assembler keeps it. */
typedef struct piece {
    struct piece *next;
    uint64_t seq;
    int skip;
    uint32_t total, have;
    uint64_t seen; /* fragments that have arrived: a bit each, by their offset in KiB */
    char *body;
} piece;

enum { PIECE_BUCKETS = 4096 };

typedef struct assembler {
    piece *pieces[PIECE_BUCKETS]; /* by number */
    uint64_t npieces, bytes; /* as notify.Assembler counts them */
    uint64_t next, handled;
} assembler;

typedef struct world {
    fake_fabric *fabric;
    side a, b; /* a sends to b */
    assembler order;
    uint64_t session; /* the session's number */
    uint64_t xfer_events, bulks, stops; /* bulks posted, and bulks asked to stop */
    int ordered, shared, threads, rails; /* shared: peers share endpoints, and no endpoint can be fenced */
    int up[WORLD_RAILS], broken[WORLD_RAILS], notif_rail;
    struct {
        void (*ended)(struct world *w, uint64_t handle, int code);
        void (*link_up)(gr_link *link);
        void (*change)(void); /* links are about to change: drop all cached posts */
    } callbacks;
    int not_receiving;    /* b's application takes no notifications */
    gr_sess *other_sess; /* another session of b: its messages count as handled at once */
    gr_xfer *poll_xfer; /* a transfer of b: checking it makes a step of progress and nothing else */
} world;

void world_open(world *w, int ordered, int rails, int threads, uint64_t seed);
void world_close(world *w);
/* Makes one step of progress in each core. */
void world_progress(world *w);
/* Handles the events that the cores pass to Go. */
void world_events(world *w);
/* Replaces both endpoints of a rail. Work without proof goes out again, over other rails if there are any. */
void world_fence(world *w, int rail);
/* Ends the session with err, and begins another. */
void world_restart(world *w, int err);

void assembler_add(assembler *m, gr_sess *sess, const gr_event *ev);
/* The numbers of whole messages that wait for earlier ones, ascending. */
size_t assembler_have(const assembler *m, uint64_t *out, size_t max);
void assembler_clear(assembler *m);

/* Notifications by number. A body carries its number and a pattern. A notification must arrive exactly once after
 * note_require, if its session continues. Notifications without a transfer (alone) arrive in order. */
char *note_of(uint64_t session, int alone, uint32_t len, uint64_t *id);
char *note_new(uint64_t session, int alone, uint64_t *rng, uint32_t *len, uint64_t *id);
void note_require(uint64_t id, uint64_t session);
void notes_take(gr_core *core);
void notes_unrequire(void);
int notes_all(void);
uint64_t notes_arrived(void);

/* Concurrent threads, which poll and repost some transfers again and again while links come and go. */
void repost_open(world *w, uint64_t seed);
/* Plays Go: posts the transfer and caches the post. */
void repost_one(uint64_t i);
void repost_change(void);
/* Returns 1 if the event belongs to one of these transfers. */
int repost_ended(uint64_t handle, int code);
/* Ends the posting thread, then posts each transfer once more. */
void repost_stop(void);
int repost_done(void);
/* Compares the memory and frees the transfers. Returns the number of reposts by the thread. */
uint64_t repost_close(void);
void drop_cached(gr_xfer *x);

/* Sets a random fault schedule on a rail of that side; without rng no faults. */
void set_faults(const world *w, side *s, int rail, uint64_t *rng);
/* Takes a rail down, or brings the rail that is down up again. At most one rail is down, and never the only one. */
void toggle_rail(const world *w, uint64_t *rng);

uint64_t below(uint64_t *rng, uint64_t n);

/* Gives the calling thread a clock of its own, which starts at the same time in every run and follows the seed. */
void clock_given(uint64_t seed);
/* Adds a value to the hash of the run, if this thread's clock is given. */
void trace(uint64_t value);
/* The hash of the run: every time, random number, event and notification. */
uint64_t traced(void);

/* Runs the scenario of that name. */
int scenario(const char *name);

/* starved.c: from now on the cores have memory for so many events, and no more. How many more there were. */
void starve(int most);
uint64_t starved_events(void);

#endif
