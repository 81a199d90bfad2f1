/* Copies of GPUs over NVLink between hosts: one job a transfer, posted and polled with the rail locked. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "gr_failpoint.h"
#include "gr_op.h"
#include "sock.h"

enum {
    PAUSE_NS = 20 * 1000,
    WAIT_NS = 1000 * 1000 * 1000,
    /* The owner's answer is good for a copy that begins within this time of the question. A process that was stopped in between asks again: the
     * owner's deregistration waits longer for it (cancel_timeout) before it ends the session. */
    LEASE_NS = 250 * 1000 * 1000,
    EXPIRED = 4, /* so often a job asks; then its transfer goes another way */
    QUESTIONS = TCP_TX_DEPTH / 2, /* the rest is for messages. 1024 ranges a round trip */
};

void tcp_pair_make(tcp_rail *rail, tcp_task *t)
{
    tcp_pair *p = (tcp_pair *)(void *)t;
    gr_gpu *g = atomic_load(&rail->bulk->driver);
    gr_gpu_fault f = {0};
    tcp_job *j = GR_ALLOC(tcp_job, calloc(1, sizeof(*j)));
    int rc = j ? 0 : -GR_GPU_NO_MEMORY;
    if (!rc && !p->stream)
        rc = g->ops->stream(g, p->device, rail->bulk->peer, &p->stream, &f);
    if (!rc)
        rc = g->ops->job(p->stream, &j->job, &f);
    if (rc) {
        tcp_note_error(rail, "cannot make a stream for GPU copies", -rc, f.why ? &f : NULL);
        free(j);
    }
    gr_rail_lock(&rail->base);
    p->asked = 0;
    p->failed = -rc;
    if (!rc) {
        j->pair = p;
        j->next = p->free;
        p->free = j;
    }
    tcp_wake(rail);
    gr_rail_unlock(&rail->base);
}

static tcp_job *job_take(tcp_rail *rail, int device, int *rc)
{
    tcp_pair *p = &rail->bulk->pairs[device];
    tcp_job *j = p->free;
    if (j) {
        p->free = j->next;
        return j;
    }
    *rc = p->failed ? -ENOTSUP : -EAGAIN;
    p->failed = 0; /* the next transfer tries again */
    if (*rc == -EAGAIN && !p->asked) {
        p->asked = 1;
        p->device = device;
        tcp_task_add(rail, &p->task, TCP_PAIR);
    }
    return NULL;
}

static void job_put(tcp_job *j)
{
    j->next = j->pair->free;
    j->pair->free = j;
}

static void note_changed(tcp_rail *rail)
{
    if (!atomic_exchange(&rail->bulk->changed, 1))
        tcp_task_add(rail, &rail->bulk->changed_task, TCP_CHANGED);
}

/* Whether our own memory is what was registered, and our GPU can access it. */
static int check_here(tcp_rail *rail, const tcp_job *j)
{
    gr_gpu *g = atomic_load(&rail->bulk->driver);
    for (uint32_t i = 0; i < j->use.nhere; i++) {
        const tcp_here *h = &j->use.here[i];
        uint64_t at;
        int rc = g->ops->same(g, h->mem->parts, h->from, h->len, j->write ? GR_GPU_READS : GR_GPU_WRITES, &at);
        if (!rc)
            continue;
        note_changed(rail);
        tcp_note_error(rail, "our GPU memory cannot be copied", -rc, NULL);
        return EREMCHG;
    }
    return 0;
}

/* Asks the owner about ranges, eight in a question: all at once if the connection's queue takes them, since an answer is good for LEASE_NS alone. 0, or an errno. */
static int ask(tcp_job *j)
{
    tcp_conn *conn = j->conn;
    if (conn->state != TCP_UP)
        return conn->state == TCP_FAILED ? conn->err : ENOTCONN;
    while (j->asked < j->use.nrange && (!j->questions || conn->ops < QUESTIONS)) {
        tcp_op *op = tcp_op_new(conn->rail);
        if (!op && j->questions)
            return 0; /* their answers ask again */
        if (!op) {
            tcp_note_error(conn->rail, "cannot ask the peer about its GPU memory", GR_GPU_NO_MEMORY, NULL);
            return ENOTSUP;
        }
        uint32_t left = j->use.nrange - j->asked;
        op->ctx = NULL;
        op->kind = TCP_CONFIRM;
        op->signaled = (uint8_t)j->write;
        op->nseg = left < GR_MAX_IOV ? left : GR_MAX_IOV;
        for (uint32_t i = 0; i < op->nseg; i++) {
            const tcp_range *r = &j->use.range[j->asked + i];
            op->seg[i] = (gr_seg){.rkey = r->key, .raddr = r->addr, .len = r->len};
        }
        op->id = ++conn->next_id;
        op->job = j;
        if (!j->asked)
            j->asked_ns = tcp_copy_clock();
        j->asked += op->nseg;
        j->questions++;
        conn->ops++;
        STAILQ_INSERT_TAIL(&conn->tx, op, next);
    }
    tcp_conn_dirty(conn);
    return 0;
}

/* The job has ended before its answers have come. */
static void forget_questions(tcp_job *j)
{
    struct tcp_ops *lists[] = {&j->conn->tx, &j->conn->reading};
    for (int i = 0; i < 2 && j->questions; i++) {
        tcp_op *op;
        STAILQ_FOREACH(op, lists[i], next)
        if (op->job == j) {
            op->job = NULL;
            j->questions--;
        }
    }
}

/* Counts the job while the peer owes nothing for it: its GPU copies, however long. */
static void count(tcp_job *j)
{
    int copying = j->under_way && j->answered;
    atomic_fetch_add(&j->conn->maps.copying, (uint32_t)(copying - j->copying));
    j->copying = copying;
}

/* Copies. 0 or an errno. */
static int start(tcp_rail *rail, tcp_job *j)
{
    gr_gpu *g = atomic_load(&rail->bulk->driver);
    gr_gpu_fault f = {0};
    int err = check_here(rail, j);
    if (err)
        return err;
    int rc = g->ops->post(j->job, &j->work, &f);
    if (rc) {
        tcp_note_error(rail, "cannot post a GPU copy", -rc, &f);
        return EIO;
    }
    j->posted = j->under_way = 1;
    count(j);
    return 0;
}

void tcp_job_answered(tcp_conn *conn, tcp_op *op, int err)
{
    tcp_job *j = op->job;
    STAILQ_INSERT_HEAD(&conn->rail->pool, op, next);
    if (!j) /* it has ended meanwhile */
        return;
    j->questions--;
    if (!err) {
        j->answered = !j->questions && j->asked == j->use.nrange;
        if (!j->answered && !j->err)
            err = ask(j);
    } else if (err == EACCES || err == EFAULT || err == ESTALE) { /* what is mapped here is not what the owner has there */
        tcp_note_error(conn->rail, "the peer's GPU memory is no longer what was mapped", err == EFAULT ? GR_GPU_UNMAPPED : GR_GPU_CHANGED, NULL);
        tcp_imports_drop(conn, op);
        err = EREMCHG;
    }
    count(j);
    if (err && !j->err)
        j->err = err;
    tcp_wake(conn->rail);
}

static int grow(tcp_job *j, uint32_t n)
{
    if (n <= j->use.room)
        return 0;
    tcp_range *range = GR_ALLOC(tcp_job_ranges, realloc(j->use.range, n * sizeof(*range)));
    if (range)
        j->use.range = range;
    tcp_here *here = GR_ALLOC(tcp_job_here, realloc(j->use.here, n * sizeof(*here)));
    if (here)
        j->use.here = here;
    tcp_import **on = GR_ALLOC(tcp_job_imports, realloc(j->use.on, n * sizeof(*on)));
    if (on)
        j->use.on = on;
    if (!range || !here || !on)
        return -EAGAIN;
    j->use.room = n;
    return 0;
}

/* Notes what the job uses, and counts it on its imports, which are all ready. */
static int hold(tcp_conn *conn, tcp_job *j, const gr_bulk *w, int device)
{
    int rc = grow(j, w->nremote > w->nlocal ? w->nremote : w->nlocal);
    if (rc)
        return rc;
    j->use.nhere = j->use.nrange = 0;
    for (uint32_t i = 0; i < w->nlocal; i++)
        if (w->local[i].to > w->local[i].from)
            j->use.here[j->use.nhere++] = (tcp_here){w->local[i].desc, w->local[i].from, w->local[i].to - w->local[i].from};
    for (j->use.n = 0; j->use.n < w->nremote; j->use.n++) {
        const gr_bulk_region *r = &w->remote[j->use.n];
        (j->use.on[j->use.n] = tcp_import_of(conn, r, device, &rc))->jobs++;
        if (r->to > r->from)
            j->use.range[j->use.nrange++] = (tcp_range){r->key, r->base + (r->from - r->addr), r->to - r->from};
    }
    return 0;
}

/* The job touches nothing any more. */
static void job_over(tcp_rail *rail, tcp_job *j)
{
    tcp_conn *conn = j->conn;
    gr_gpu *g = atomic_load(&rail->bulk->driver);
    while (j->use.n)
        j->use.on[--j->use.n]->jobs--;
    tcp_imports_sweep(conn);
    conn->maps.jobs--;
    forget_questions(j);
    if (j->end)
        tcp_op_done(rail, j->end, j->err);
    else if (j->ops_freed)
        g->ops->free(g, (void *)(uintptr_t)j->ops);
    j->end = NULL;
    job_put(j);
    if (conn->gpu.closed && !conn->maps.jobs) {
        rail->bulk->kept--;
        rail->kept--;
        free(conn->maps.import);
        free(conn);
    }
}

int tcp_job_post(gr_rail *base, void *ep, int kind, const gr_bulk *w, gr_ctx *ctx)
{
    tcp_rail *rail = (tcp_rail *)base;
    tcp_conn *conn = ep;
    tcp_import *first = NULL;
    const tcp_vram *here = w->local[0].desc;
    int rc = conn->state == TCP_NEW ? -ENOTCONN : conn->state == TCP_FAILED ? -conn->err : conn->state != TCP_UP || conn->maps.jobs >= TCP_JOBS ? -EAGAIN : 0;
    if (rc)
        return rc;
    if (here && here->device < 0) {
        tcp_note_error(rail, "no GPU here may access the local host memory", GR_GPU_PINNED, NULL);
        return -ENOTSUP;
    }
    if (!here || w->nops > UINT32_MAX) {
        tcp_note_error(rail, here ? "the transfer is too long for a GPU copy" : "the local region is no GPU memory", here ? GR_GPU_TOO_MANY : GR_GPU_HOST, NULL);
        return -ENOTSUP;
    }
    for (uint32_t i = 1; i < w->nlocal; i++) { /* an access that a GPU may not make ends the application's use of it */
        const tcp_vram *v = w->local[i].desc;
        if (!v || v->device != here->device) {
            tcp_note_error(rail, "no GPU here may access all of the local memory", GR_GPU_PINNED, NULL);
            return -ENOTSUP;
        }
    }
    for (uint32_t i = w->nremote; i-- && (!rc || rc == -EAGAIN);) { /* request all imports at once */
        int one = 0;
        first = tcp_import_of(conn, &w->remote[i], here->device, &one);
        if (!first)
            rc = one;
    }
    if (rc)
        return rc;
    tcp_job *j = job_take(rail, here->device, &rc);
    if (!j)
        return rc;
    j->end = tcp_op_new(rail);
    if (!j->end || (rc = hold(conn, j, w, here->device))) {
        if (j->end)
            STAILQ_INSERT_HEAD(&rail->pool, j->end, next);
        j->end = NULL;
        job_put(j);
        return -EAGAIN;
    }
    j->end->ctx = ctx;
    j->end->kind = TCP_CONFIRM;
    j->conn = conn;
    j->ops = w->ops;
    j->write = kind != GR_READ;
    j->posted = j->under_way = j->stopped = j->err = j->ops_freed = 0;
    j->asked = j->questions = j->expired = 0;
    j->late_ns = 0;
    j->answered = j->use.nrange == 0;
    j->work = (gr_gpu_work){.ops = w->ops, .nops = (uint32_t)w->nops, .write = (uint32_t)j->write, .how = (uint32_t)rail->bulk->how, .bytes = w->bytes,
                            .delta = first->delta, .table = w->nremote > 1 ? rail->bulk->deltas[here->device] : NULL};
    conn->maps.jobs++;
    if (!j->answered)
        j->err = ask(j);
    if (!j->err && (j->answered || !j->write))
        j->err = start(rail, j);
    j->next = rail->bulk->jobs;
    rail->bulk->jobs = j;
    tcp_wake(rail);
    return 0;
}

static void halt(tcp_rail *rail, tcp_job *j)
{
    gr_gpu *g = atomic_load(&rail->bulk->driver);
    if (j->under_way && !j->stopped)
        g->ops->cancel(j->job);
    j->stopped = 1;
}

/* One step; 1: the job has ended. */
static int step(tcp_rail *rail, tcp_job *j)
{
    gr_gpu *g = atomic_load(&rail->bulk->driver);
    gr_gpu_fault f = {0};
    int rc = j->under_way ? g->ops->poll(j->job, &f) : 0;
    if (rc > 0) {
        if (j->err)
            halt(rail, j);
        return 0;
    }
    if (rc && rc != -GR_GPU_CANCELLED)
        tcp_note_error(rail, "GPU copy failed", -rc, &f);
    if (rc && !j->err)
        j->err = rc == -GR_GPU_CANCELLED ? ECANCELED : EIO;
    j->under_way = 0;
    count(j);
    if (j->stopped && !j->err && !(j->posted && j->answered))
        j->err = ECANCELED;
    if (!j->err && j->answered && !j->posted) {
        if (j->asked && tcp_copy_clock() - j->asked_ns > LEASE_NS) {
            j->answered = 0;
            j->asked = 0;
            if (++j->expired == EXPIRED)
                tcp_note_error(rail, "the peer's answers about its GPU memory come too late", GR_GPU_SILENT, NULL);
            j->err = j->expired == EXPIRED ? ENOTSUP : ask(j);
        } else {
            j->err = start(rail, j);
        }
    }
    return !j->under_way && (j->err || j->answered);
}

void tcp_jobs_poll(tcp_rail *rail)
{
    if (!rail->bulk)
        return;
    for (tcp_job **at = &rail->bulk->jobs, *j; (j = *at);) {
        if (!step(rail, j)) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        job_over(rail, j);
    }
}

int tcp_jobs_busy(const tcp_rail *rail)
{
    for (const tcp_job *j = rail->bulk ? rail->bulk->jobs : NULL; j; j = j->next)
        if (j->under_way || !j->questions) /* or it is to begin, or to end */
            return 1;
    return 0;
}

void tcp_job_stop(gr_rail *base, void *ep, gr_ctx *ctx)
{
    tcp_rail *rail = (tcp_rail *)base;
    for (tcp_job *j = rail->bulk->jobs; j; j = j->next)
        if (j->conn == ep && j->end && j->end->ctx == ctx)
            halt(rail, j);
    tcp_wake(rail);
}

int tcp_jobs_end(tcp_conn *conn)
{
    tcp_rail *rail = conn->rail;
    if (!rail->bulk)
        return 0;
    uint64_t until = tcp_copy_clock() + WAIT_NS;
    tcp_imports_drop(conn, NULL);
    for (tcp_job *j = rail->bulk->jobs; j; j = j->next)
        if (j->conn == conn) {
            j->err = j->err ? j->err : ECANCELED;
            halt(rail, j);
        }
    for (tcp_jobs_poll(rail); conn->maps.jobs; tcp_jobs_poll(rail)) {
        if (tcp_copy_clock() > until)
            break;
        gr_rail_unlock(&rail->base);
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        gr_rail_lock(&rail->base);
    }
    int device = -1;
    for (tcp_job *j = conn->maps.jobs ? rail->bulk->jobs : NULL; j; j = j->next)
        if (j->conn == conn) { /* the core ends the operation when it reaps the link */
            if (j->end)
                STAILQ_INSERT_HEAD(&rail->pool, j->end, next);
            j->end = NULL;
            device = j->pair->device;
        }
    if (device < 0)
        return 0;
    conn->gpu.closed = 1;
    rail->kept++;
    rail->bulk->kept++;
    return 1 + device;
}

int tcp_jobs_await(tcp_rail *rail, uint32_t number)
{
    for (;;) {
        int busy = 0, left = 0;
        uint64_t now = tcp_copy_clock();
        tcp_jobs_poll(rail);
        for (tcp_job *j = rail->bulk ? rail->bulk->jobs : NULL; j; j = j->next) {
            int uses = 0;
            for (uint32_t i = 0; i < j->use.nhere; i++)
                uses |= j->use.here[i].mem->number == number;
            if (!uses)
                continue;
            if (!j->late_ns)
                j->late_ns = now + WAIT_NS;
            busy = 1;
            left |= now < j->late_ns;
        }
        if (!busy)
            return 0;
        if (!left)
            return EBUSY;
        gr_rail_unlock(&rail->base);
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        gr_rail_lock(&rail->base);
    }
}

int tcp_same(tcp_conn *conn)
{
    tcp_rail *rail = conn->rail;
    gr_gpu *g = atomic_load(&rail->bulk->driver);
    uint8_t right = conn->in.h.flags & TCP_FOR_WRITE ? TCP_PEERS_WRITE : TCP_PEERS_READ;
    for (uint32_t i = 0; i < conn->in.h.segments; i++) {
        const uint8_t *p = conn->in.segments + i * TCP_SEGMENT;
        tcp_segment s = tcp_get_segment(p);
        uint64_t len = s.len | (uint64_t)tcp_get32(p + 20) << 32, at;
        int err = 0;
        const tcp_region *r = tcp_region_for(conn, &s, len, right, &err);
        if (!r)
            return err;
        if (!r->vram || !g)
            return ESTALE;
        int rc = g->ops->same(g, r->vram->parts, r->addr + TCP_OFFSET(s.addr), len, 0, &at);
        if (!rc)
            continue;
        note_changed(rail);
        return rc == -GR_GPU_UNMAPPED ? EFAULT : ESTALE;
    }
    return 0;
}
