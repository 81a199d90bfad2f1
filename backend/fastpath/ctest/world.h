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

enum { SLOTS = 24, SLOT_SIZE = 24 << 10, LOCAL = 0, REMOTE = 1 }; /* region numbers */

/* One end: a core with a rail, a registered buffer, and its side of the one session there is. */
typedef struct side {
    gr_core *core;
    fake_rail *rail;
    fake_mr *mr;
    uint64_t key;
    unsigned char *mem;
    gr_sess *sess;
    gr_link *link;
    fake_ep *ep;
} side;

/* The order of notifications, as notify.Assembler keeps it. */
typedef struct piece {
    struct piece *next;
    uint64_t seq;
    int skip;
    uint32_t total, have;
    char *body;
} piece;

typedef struct assembler {
    piece *pieces;
    uint64_t next, handled;
} assembler;

typedef struct world {
    fake_fabric *fabric;
    side a, b; /* a sends to b */
    assembler order;
    uint64_t session; /* its number */
    uint64_t xfer_events;
    int ordered, threads, broken;
    void (*ended)(struct world *w, uint64_t handle, int code);
    void *user;
} world;

void world_open(world *w, int ordered, int threads, uint64_t seed);
void world_close(world *w);
/* Takes in what the cores leave to Go. */
void world_events(world *w);
/* Both endpoints are replaced and what was not proved goes out again. */
void world_fence(world *w);
/* The session ends with err, and another begins. */
void world_restart(world *w, int err);

void assembler_add(assembler *m, gr_sess *sess, const gr_event *ev);
void assembler_drop_partial(assembler *m);
void assembler_clear(assembler *m);

/* Notifications by number. A body carries its number and a pattern; it must arrive once if note_must was said of it in
 * the session that still goes on. Those of no transfer (alone) arrive in order. */
char *note_new(uint64_t session, int alone, uint64_t *rng, uint32_t *len, uint64_t *id);
void note_must(uint64_t id, uint64_t session);
void notes_take(gr_core *core);
void notes_forgive(void);
int notes_all(void);
uint64_t notes_arrived(void);

uint64_t below(uint64_t *rng, uint64_t n);

#endif
