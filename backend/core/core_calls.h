/* What the core's files call of each other. Included by core_int.h alone. */
#ifndef GORAIL_CORE_CALLS_H
#define GORAIL_CORE_CALLS_H

#include "pause.h"

/* The time where thousands of operations come and go and some milliseconds do not matter: asking costs 25 ns, where the kernel has to be
 * asked some 300 ns and in a virtual machine up to 30 us, twice a transfer. */
static inline uint64_t core_tick(gr_core *core)
{
    uint64_t t = atomic_load_explicit(&core->tick, memory_order_relaxed);
    return t ? t : gr_now_ns();
}

#define COUNT(core, which, n) atomic_fetch_add_explicit(&(core)->count[which], (n), memory_order_relaxed)

/* Counts for the link and its rail. Only whoever holds the rail writes them, so that no locked instruction is needed;
 * anybody may read. */
static inline void counter_add(_Atomic uint64_t *c, uint64_t n)
{
    atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) + n, memory_order_relaxed);
}

static inline void link_count(gr_link *link, int which, uint64_t n)
{
    counter_add(&link->count[which], n);
    counter_add(&link->rail->count[which], n);
}

/* Bytes in flight on the link: more and fewer of them. */
static inline void link_flying(gr_link *link, uint64_t more, uint64_t less)
{
    link->inflight_bytes += more - less;
    atomic_store_explicit(&link->load, link->inflight_bytes, memory_order_relaxed);
    counter_add(&link->rail->load, more - less);
}

/* core.c */
void core_event(gr_core *core, const gr_event *ev, gr_sess *sess);
void sess_room(gr_sess *sess, _Atomic uint64_t *queue, uint64_t size);
void sess_fill(gr_sess *sess, _Atomic uint64_t *queue, uint64_t size);
int sess_full(gr_sess *sess);
void core_ready(gr_sess *sess, gr_notif *n);
void core_wake(gr_core *core);

/* Before the application hears of what has arrived. No lock held. */
void core_flush(gr_core *core);
static inline int core_flushes(gr_core *core) { return atomic_load_explicit(&core->nflush, memory_order_acquire) != 0; }

/* thread.c */
void *core_thread(void *arg);
void core_progress(gr_core *core);
void core_posted(gr_core *core); /* the application has, and that left nothing under way on its rails */

/* progress.c */
void rail_push(rail_st *rail, cmd *c);
/* Runs the inbox unless somebody else has the rail, who will do it when unlocking. 1: it has, and nothing is left, neither under way
 * nor undone. */
int rail_run(rail_st *rail);
/* One bounded step. Returns completions taken in, or 1 for a copy; POLL_MAX or more when there is more to do at once; -1 when another
 * thread is at it. *helped: this one copied. */
int rail_progress(rail_st *rail, int *helped);
void rail_unstarve(rail_st *rail);
int rail_poll(rail_st *rail, int max);
int rail_full(const rail_st *rail);
enum { POLL_MAX = 4 * POLL_BATCH };
void rail_inbox(rail_st *rail);
void rail_kick(gr_rail *dev);
size_t rail_msg_size(const rail_st *rail);
ctx *rail_ctx(rail_st *rail, gr_link *link, int kind);
void rail_ctx_done(rail_st *rail, ctx *c);
void rail_bury(rail_st *rail, ctx *c);
buf *rail_buf(rail_st *rail);
void rail_buf_put(rail_st *rail, buf *b);

/* wr.c */
enum { POSTED, NO_ROOM, REGION_GONE, NOTHING };
void link_pump(gr_link *link, uint64_t budget);
void link_halt(gr_link *link);
void link_refused(gr_link *link, int rc);
void link_error(gr_link *link, int err);
/* The window that is nearest to so many bytes. */
uint64_t link_window(const gr_link *link, uint64_t bytes);
void link_measure(gr_link *link, uint64_t bytes);
/* While small transfers come, larger ones keep little in flight, in pieces: behind 4 x 1 MiB a write of 4 KiB took 3.5 ms,
 * behind 2 x 128 KiB 0.2 (alone 0.08). */
enum { HURRY = 256 << 10 };
uint64_t link_hurry(gr_link *link);
/* Bytes that the link may have in flight when it posts of a transfer of so many. */
static inline uint64_t link_most(gr_link *link, uint64_t bytes)
{
    return !link->small_ns || bytes <= SMALL || link->window <= HURRY ? link->window : link_hurry(link);
}
int wr_post(gr_link *link, part *p, uint64_t *bytes);
int wr_post_bulk(gr_link *link, part *p);
void wr_done(ctx *c, int err);

/* run.c */
int pool_has(xfer *x);
void pool_drop(xfer *x, rail_st *rail);
run *run_take(part *p, int *later);
void run_end(run *r);
void run_back(run *r);
int run_proof(run *r);

/* bulk.c */
void bulk_stop(part *p);
void bulk_free(xfer *x);

/* part.c */
enum { LIST_TODO = 1, LIST_WAITING = 2 };
void part_list(part *p, int which);
void part_unlist(part *p);
void part_start(rail_st *rail, cmd *self);
void part_nudge(rail_st *rail, cmd *self);
void part_late(rail_st *rail, cmd *self);
int part_drop(part *p);
void part_rest(part *p);
int part_call(part *p);
void part_leave(part *p);
void part_out(xfer *x, gr_link *link);
int part_evict(part *p);
void part_evict_idle(gr_link *link);
int part_unposted(const part *p);

/* send.c, receive.c */
void msg_pump(gr_link *link);
int msg_queue(gr_link *link, msg *m);
void msg_end(msg *m, int err);
void msg_sent(ctx *c, int err);
void msg_received(ctx *c, int err, uint64_t len);
int msg_post_recv(gr_link *link, buf *b);
uint32_t msg_recvs(const gr_link *link);
void msg_repay(gr_link *link);
int msg_post_recvs(gr_link *link);
void msg_unlist(msg *m);
int msg_gap(msg *m);
void msg_move(msg *m, gr_link *to);
int msg_part(msg *m, int err);
void msg_credit_cmd(rail_st *rail, cmd *self);

/* numbers.c */
int sess_number(gr_sess *s, size_t len, uint8_t *block, uint64_t *seq);
uint8_t sess_resent(gr_sess *s);
void sess_proved(gr_sess *s, uint8_t block);
int msg_number(msg *m);
void msg_resend(msg *m, uint64_t seq);
void msg_start(rail_st *rail, cmd *self);

/* Messages that may be posted now: see credit.c. */
static inline uint32_t credits_left(const gr_link *link)
{
    uint32_t again = link->slots_failed ? (uint32_t)__builtin_popcount(link->slots_failed) : 0;
    return link->role & GR_LINK_TX ? RX_BUFS - (link->slot_next - link->slot_acked) + again : 0;
}

/* Whether it is time for a CREDIT. */
static inline int credits_due(const gr_link *link)
{
    return (uint32_t)link->slots_taken - link->slots_told >= CREDIT_BATCH || link->credit_failed || link->answer;
}

/* The number of its probe: an answer to that of another endpoint tells nothing. */
static inline uint64_t link_probe_seq(const gr_link *link)
{
    return (uint64_t)link->epoch + 1;
}

/* credit.c */
uint32_t slot_next(const gr_link *link);
uint32_t slot_probe(const gr_link *link);
int slot_use(gr_link *link, uint32_t slot);
void slot_failed(gr_link *link, uint32_t slot);
int slots_acked(gr_link *link, uint32_t below);
int slot_taken(gr_link *link, uint32_t slot);
void credits_fresh(gr_link *link);

/* xfer.c */
void xfer_end(xfer *x);
void xfer_data_done(xfer *x, gr_link *link);
void xfer_msg_ended(msg *m, int err);
void xfer_fail(xfer *x, int err, int wire_err);
int xfer_sole(part *p);
void xfer_not_sole(part *p, uint32_t now);
void xfer_try_pipeline(part *p);
void xfer_cmd_fin(rail_st *rail, cmd *self);
void sess_unref(gr_sess *sess);

#endif
