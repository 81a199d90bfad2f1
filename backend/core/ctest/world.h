/* Two cores over one fake fabric, and what Go does for them: sessions, fences, the order of notifications. */
#ifndef WORLD_H
#define WORLD_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "fake.h"
#include "gr_policy.h"

#define CHECK(cond, ...)                                                         \
    do {                                                                         \
        if (!(cond)) {                                                           \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond);           \
            fprintf(stderr, __VA_ARGS__);                                        \
            fprintf(stderr, "\n");                                               \
            abort();                                                             \
        }                                                                        \
    } while (0)

enum { SLOTS = 24, AGAIN = 4 /* more, see again.c */, SLOT_SIZE = 24 << 10, MEM_SIZE = (SLOTS + AGAIN) * SLOT_SIZE, LOCAL = 0, REMOTE = 1 /* region numbers */, MAX_RAILS = 3 };

/* One end: a core with rails, a registered buffer, and its side of the one session there is. */
typedef struct side {
    gr_core *core;
    fake_rail *rail[MAX_RAILS];
    fake_mr *mr[MAX_RAILS];
    uint64_t key[MAX_RAILS];
    unsigned char *mem;
    gr_sess *sess;
    gr_link *link[MAX_RAILS];
    fake_ep *ep[MAX_RAILS];
    gr_tally gone[MAX_RAILS]; /* what links that are gone had counted */
} side;

/* The order of notifications, as notify.Assembler keeps it. */
typedef struct piece {
    struct piece *next;
    uint64_t seq;
    int skip;
    uint32_t total, have;
    uint64_t seen; /* fragments, by their first kilobyte */
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
    uint64_t session; /* its number */
    uint64_t xfer_events, bulks, stops; /* bulks posted, and told to stop */
    int ordered, shared, threads, rails; /* shared: peers share endpoints, nothing can be fenced */
    uint32_t limit; /* of requests in flight on a rail */
    int up[MAX_RAILS], broken[MAX_RAILS], notif_rail;
    struct {
        void (*ended)(struct world *w, uint64_t handle, int code);
        void (*came_up)(gr_link *link);
        void (*change)(void); /* links are about to change: no cached is good any more */
    } tell;
    int deaf;    /* b's application takes no notifications */
    gr_sess *guest; /* of b, beside the session: Go is done with its messages at once */
    gr_xfer *poke; /* of b: a check of it is a step of progress and no more */
} world;

void world_open(world *w, int ordered, int rails, int threads, uint64_t seed);
void world_close(world *w);
/* One step of each core. */
void world_progress(world *w);
/* Takes in what the cores leave to Go. */
void world_events(world *w);
/* Both endpoints of a rail are replaced and what was not proved goes out again, over other rails where there are. */
void world_fence(world *w, int rail);
/* The session ends with err, and another begins. */
void world_restart(world *w, int err);

void assembler_add(assembler *m, gr_sess *sess, const gr_event *ev);
/* The numbers of whole messages that wait for earlier ones, ascending. */
size_t assembler_have(const assembler *m, uint64_t *out, size_t max);
void assembler_clear(assembler *m);

/* Notifications by number. A body carries its number and a pattern; it must arrive once if note_must was said of it in
 * the session that still goes on. Those of no transfer (alone) arrive in order. */
char *note_of(uint64_t session, int alone, uint32_t len, uint64_t *id);
char *note_new(uint64_t session, int alone, uint64_t *rng, uint32_t *len, uint64_t *id);
void note_must(uint64_t id, uint64_t session);
void notes_take(gr_core *core);
void notes_forgive(void);
int notes_all(void);
uint64_t notes_arrived(void);

/* Other threads, which poll and post some transfers again and again, while links come and go. */
void again_open(world *w, uint64_t seed);
/* What Go does: a post of its own, which gives a cached. */
void again_post(uint64_t i);
void again_change(void);
/* True: the event was for one of these. */
int again_ended(uint64_t handle, int code);
/* The thread posts no more. */
void again_stop(void);
int again_settled(void);
/* Their memory is compared and they are let go. How often they were posted past Go. */
uint64_t again_close(void);
void drop_cached(gr_xfer *x);

/* Another weather on a rail of that side; without rng a fine one. */
void weather(const world *w, side *s, int rail, uint64_t *rng);
/* Takes a rail down, or the one that is down up again: one at a time, and never the only one. */
void weather_cut(const world *w, uint64_t *rng);

uint64_t below(uint64_t *rng, uint64_t n);

/* Runs one by its name. */
int scenario(const char *name);

#endif
