/* Fixtures of the C tests: the ends of a connection, in one process or two. */
#ifndef GORAIL_SHM_WORLD_H
#define GORAIL_SHM_WORLD_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "../cma.h"

#define CHECK(x)                                                                                                                                     \
    do {                                                                                                                                             \
        if (!(x)) {                                                                                                                                  \
            fprintf(stderr, "%s:%d: %s failed (errno %d)\n", __FILE__, __LINE__, #x, errno);                                                         \
            exit(1);                                                                                                                                 \
        }                                                                                                                                            \
    } while (0)

enum { MEM = 4 << 20, LIMIT_S = 300, SKIP = 77, FDS = 5, RING = 2 << 20 };

static inline uint64_t limit(void) { return cma_now() + (uint64_t)LIMIT_S * 1000000000; }

/* How often a test repeats what is random: in the short form a quarter as often. */
static inline int times(int n) { return getenv("CTEST_SHORT") ? (n + 3) / 4 : n; }

/* One end: rail, endpoint, memory, and the completions so far. */
typedef struct end {
    cma_rail *rail;
    cma_ep *ep;
    int fd[FDS];      /* segments that peers map: shm, table, shares; the ring; the file of mem */
    int peer_file;    /* of the peer's mem */
    uint32_t regions; /* regions opened so far */
    int mapper_fd;
    struct mapper *mapper; /* NULL: no mapper thread */
    uint8_t *mem;
    uint64_t key;
    int done, err;
    struct end *peer; /* in this process, if joined */
} end;

/* Address and key of an end's memory, for its peer. */
typedef struct region_info {
    uint64_t mem, key;
} region_info;

extern const char *step; /* the provider call that failed */
extern gr_ctx ctx[64];
extern cma_nodes nodes; /* for the ends opened next */
extern int rings;       /* ends connected next copy through rings */
extern int files;       /* memory of ends opened next is a file, which a mapper maps at the peer */
extern uint64_t ring_size;
extern uint8_t rights; /* of the regions opened next */

end open_end(uint32_t threads);
end open_beside(const end *e); /* another endpoint of its rail. Close it with close_beside */
void close_beside(end *e);
void close_end(end *e);
int close_ep(end *e); /* closes only the endpoint */
void poll_end(end *e);
int arm_end(const end *e);
region_info own_region(const end *e);
int open_descriptors(void);
/* Enters a region in the table, as shm/mr.go does, and returns its key. share: of GPU memory, or NULL. */
uint64_t open_region(end *e, uint64_t base, uint64_t len, const gr_gpu_share *share);
int close_region(cma_rail *rail, uint64_t key);
/* Connects an end as a handshake of package ipc does: the peer's process, its segments, and the sockets. sock: our connection
 * to the peer, the peer's to us. */
void connect_end(end *e, pid_t pid, const int fd[FDS], const int sock[2]);
void join(end *a, end *b); /* connects two ends of this process */
/* Posts one piece, repeating on -EAGAIN; 0 or an errno. */
int post_end(end *e, int op, const region_info *peer, uint64_t from, uint64_t to, uint64_t len, gr_ctx *c);
void wait_done(end *e, int n); /* polls until n operations have completed */
/* Posts one piece and waits for it; returns its error. */
int rma(end *e, int op, const region_info *peer, uint64_t from, uint64_t to, uint64_t len);

/* Two processes, each with one end. */
typedef struct pair {
    end me;
    region_info peer;
    pid_t child;
    int pipe;
} pair;

/* Forks a child that runs `other` and exits. */
pair split(uint32_t threads, void (*other)(pair *));
void pipe_put(const pair *p, char c);
char pipe_get(const pair *p);
void poll_until(pair *p, char told);
void wait_target(pair *p); /* an `other` that polls until it receives 'q' */
void finish(pair *p);      /* waits for the child's exit with status 0 and closes our end */

/* Parts of tests that run with rings and views, too: processes.c. */
void copies(uint32_t threads);
void signal_writer(int sig);
void close_during_writes(int by_endpoint);
void write_for_ever(pair *p);

/* A fake GPU driver that copies nothing. */
typedef struct fake_gpu {
    int map_fails, why; /* the next map_fails mappings fail with why */
    int maps;           /* mappings requested */
    uint32_t source;    /* the peer process of the last one, as the driver is told */
    gr_gpu_work work;   /* the last job posted */
    int posts;          /* jobs posted */
    int same;           /* what the driver says of the owner's memory: 0 or a -GR_GPU_* */
    int here;           /* what it says of ours: `same` with need */
    uint64_t asked_from, asked_len; /* the range of the last question */
    uint64_t looked;                /* bytes of all questions */
    uint64_t changed_at;            /* the owner has other memory there; 0: nowhere */
    _Atomic int mapped; /* open mappings */
    _Atomic int held;   /* jobs stay under way */
    _Atomic int stuck;  /* jobs stay under way although cancelled */
    int jobs, streams;  /* that exist */
    int freed;          /* operations freed */
} fake_gpu;
extern fake_gpu fake;
enum { FAKE_SIZE = 1 << 20 };
static inline uint64_t fake_at(int number) { return (uint64_t)number << 30; }

gr_gpu *fake_driver(void);
/* Starts a thread that does the work of shm/mapper.go with fake mappings of GPU memory, and of the peer's file. */
void start_mapper(end *e);
void wait_mapper(end *e);
void end_mapper(end *e);
/* Opens a fake GPU region of that number, shared as `how`, and returns its key. */
uint64_t fake_region(end *e, int number, int how, uint32_t pieces);
/* Posts a copy of the whole region. fake_bulk_until repeats it on -EAGAIN, and returns when the peer has answered, or does not. */
extern int fake_too_many; /* fake_bulk posts more operations than a copy takes */
extern int fake_op;       /* GR_WRITE */
extern int fake_far;      /* peers count as other processes: READs copy beside the question */
/* Polls both ends once. */
void fake_poll(end *e);
int fake_bulk(end *e, int number, uint64_t key);
extern uint64_t fake_local; /* cma_region_bit of the region of ours that fake_bulk names */
void *fake_ops(void);       /* the operations of fake_bulk */
int fake_bulk_until(end *e, int number, uint64_t key, double seconds);

/* The tests. */
void inline_copies(void);
void pool_copies(void);
void poller_epochs(void);
void no_wakeups(void);
void near(void);
void region_closed(void);
void endpoint_closed(void);
void killed(void);
void stopped(void);
void ended_unseen(void);
void slow(void);
void holes(void);
void hostile_ring(void);
void failed_handshake(void);
void failed_with_messages(void);
void closed_ring(void);
void doorbells(void);
void early_ring(void);
void dozes(void);
void moves(void);
void offloads(void);
void few_cpus(void);
void withdrawn(void);
void refused(void);
void assist_killed(void);
void assist_stopped_before(void);
void assist_stopped_in_call(void);
void assist_ends(void);
void overwritten_offers(void);
void slow_close(void);
void other_users_offer(void);
void another_programs_offer(void);
void another_program(void);
int the_program(void); /* what its target executes */
void hostile_offers(void);
void assist_rings(void);
void ready_ring(void);
void ring_copies(void);
void ring_small(void);
void ring_holes(void);
void ring_region_closed(void);
void ring_endpoint_closed(void);
void ring_writer_killed(void);
void ring_writer_stopped(void);
void ring_target_stopped(void);
void ring_target_killed(void);
void ring_unseen(void);
void ring_asleep(void);
void ring_taken_back(void);
void ring_threads(void);
void hostile_chunks(void);
void hostile_answers(void);
void guard_replaced(void);
void ring_given_up(void);
void ring_beside_pool(void);
void mapped_copies(void);
void mapped_pool(void);
void mapped_region_closed(void);
void mapped_endpoint_closed(void);
void mapped_killed(void);
void mapped_stopped(void);
void mapped_truncated(void);
void mapped_forgotten(void);
void mapped_readonly(void);
void mapped_threads(void);
void mapped_again(void);
void mapped_answered_late(void);
void mapped_most(void);
void mapped_replaced(void);
void vram_again(void);
void vram_epochs(void);
void vram_closed(void);
void vram_peer_closes(void);
void vram_stuck(void);
void vram_sources(void);
void asked_write(void);
void asked_read(void);
void asked_here(void);
void asked_given_up(void);
void hostile_questions(void);
void asked_turns(void);
void vram_kept(void);
void vram_left(void);

#endif
