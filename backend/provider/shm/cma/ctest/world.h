/* What the tests of the provider share: ends of a connection, within one process. */
#ifndef GORAIL_LOCAL_WORLD_H
#define GORAIL_LOCAL_WORLD_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "../cma.h"

#define CHECK(x) \
    do { \
        if (!(x)) { \
            fprintf(stderr, "%s:%d: %s failed (errno %d)\n", __FILE__, __LINE__, #x, errno); \
            exit(1); \
        } \
    } while (0)

enum { MEM = 4 << 20, LIMIT_S = 10, SKIP = 77 };

static inline uint64_t limit(void) { return cma_now() + (uint64_t)LIMIT_S * 1000000000; }

/* One end: a rail, an endpoint, memory, and what completed. */
typedef struct end {
    cma_rail *rail;
    cma_ep *ep;
    int fd[3]; /* what peers map: shm, table, shares */
    uint32_t regions; /* that were opened, ever */
    int mapper_fd;
    struct mapper *mapper; /* NULL: it has none */
    uint8_t *mem;
    uint64_t key;
    int done, err;
} end;

/* What two ends tell each other. */
typedef struct card {
    uint64_t mem, key;
} card;

extern const char *step; /* the call of the provider that failed */
extern gr_ctx ctx[64];
extern cma_nodes nodes; /* of the ends that are opened */

end open_end(uint32_t threads);
void close_end(end *e);
int close_ep(end *e); /* its endpoint alone */
void poll_end(end *e);
card own_card(const end *e);
int open_descriptors(void);
/* A region in the table, as shm/table.go enters it; its key. share: of a GPU's memory. */
uint64_t open_region(end *e, uint64_t base, uint64_t len, const gr_gpu_share *share);
int close_region(cma_rail *rail, uint64_t key);
/* The end's peer is the process of that number, with these descriptors; sock: our connection to it, and its to us. As package handshake does it. */
void connect_end(end *e, pid_t pid, const int fd[3], const int sock[2]);
void join(end *a, end *b); /* two ends of this process */
/* Posts one piece, as soon as it is taken; 0 or an errno. */
int post_end(end *e, int op, const card *peer, uint64_t from, uint64_t to, uint64_t len, gr_ctx *c);
void wait_done(end *e, int n); /* until so many have completed */
/* Posts one piece and waits for it; its error. */
int rma(end *e, int op, const card *peer, uint64_t from, uint64_t to, uint64_t len);

/* Two processes, each with its end. */
typedef struct pair {
    end me;
    card peer;
    pid_t child;
    int pipe;
} pair;

/* A child that runs `other` and then ends. */
pair split(uint32_t threads, void (*other)(pair *));
void tell(const pair *p, char c);
char hear(const pair *p);
void poll_until(pair *p, char told);
void wait_target(pair *p); /* an `other` that polls until it is told 'q' */
void finish(pair *p);      /* the child has ended well; ours is closed */

/* A driver of GPUs that copies nothing. */
typedef struct fake_gpu {
    int map_fails, why;  /* so many mappings from now fail, with that */
    int maps;            /* asked for */
    gr_gpu_work work;    /* the last one posted */
    _Atomic int mapped;  /* open */
    _Atomic int held;    /* jobs stay under way */
    _Atomic int stuck;   /* also when they are cancelled */
} fake_gpu;
extern fake_gpu fake;
enum { FAKE_SIZE = 1 << 20 };
static inline uint64_t fake_at(int number) { return (uint64_t)number << 30; }

gr_gpu *fake_driver(void);
/* A thread that does what shm/mapper.go does: with fake mappings. */
void start_mapper(end *e);
void wait_mapper(end *e);
void end_mapper(end *e);
/* A region of that number that can be shared so; its key. */
uint64_t fake_region(end *e, int number, int how, uint32_t pieces);
/* Posts a copy of it whole; until: as long as it says -EAGAIN. */
int fake_bulk(end *e, int number, uint64_t key);
int fake_bulk_until(end *e, int number, uint64_t key, double seconds);

/* The tests. */
void inline_copies(void);
void pool_copies(void);
void lent_epochs(void);
void left_alone(void);
void near(void);
void region_goes(void);
void endpoint_goes(void);
void killed(void);
void stopped(void);
void ended_unseen(void);
void slow(void);
void holes(void);
void hostile_ring(void);
void failed_handshake(void);
void closed_ring(void);
void doorbells(void);
void early_ring(void);
void lent(void);
void crowded(void);
void taken_back(void);
void refused(void);
void helper_killed(void);
void helper_stopped_before(void);
void helper_stopped_behind(void);
void help_ends(void);
void scribbled(void);
void slow_close(void);
void other_users_offer(void);
void another_programs_offer(void);
void hostile_offers(void);
void helper_rings(void);
void ready_ring(void);
void vram_again(void);
void vram_epochs(void);
void vram_closed(void);
void vram_peer_closes(void);
void vram_stuck(void);

#endif
