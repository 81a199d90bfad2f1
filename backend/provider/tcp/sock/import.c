/* Peers' memory as our GPUs see it. The mapper (../nvlink_map.go) maps a region when a transfer first needs it. The mapping lasts until the peer
 * revokes the region, its metadata is unloaded, its owner finds other memory there, or the connection is closed. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gr_failpoint.h"
#include "sock.h"

#define TEXT(name, text) text,
static const char *const whys[] = {GR_GPU_WHYS(TEXT)};

void tcp_note_error(tcp_rail *rail, const char *what, int why, const gr_gpu_fault *fault)
{
    tcp_bulk *b = rail->bulk;
    const char *text = why >= 0 && why < GR_GPU_WHY_COUNT ? whys[why] : "unknown reason";
    pthread_mutex_lock(&b->mu);
    if (fault && fault->call)
        snprintf(b->last_error, sizeof(b->last_error), "%s: %s: %s%s%s", what, fault->call, text, fault->text[0] ? ": " : "", fault->text);
    else
        snprintf(b->last_error, sizeof(b->last_error), "%s: %s", what, text);
    pthread_mutex_unlock(&b->mu);
}

void tcp_last_error(tcp_rail *rail, char *to, size_t size)
{
    pthread_mutex_lock(&rail->bulk->mu);
    snprintf(to, size, "%s", rail->bulk->last_error);
    pthread_mutex_unlock(&rail->bulk->mu);
}

void tcp_set_last_error(tcp_rail *rail, const char *text)
{
    pthread_mutex_lock(&rail->bulk->mu);
    snprintf(rail->bulk->last_error, sizeof(rail->bulk->last_error), "%s", text);
    pthread_mutex_unlock(&rail->bulk->mu);
}

void tcp_task_add(tcp_rail *rail, tcp_task *t, int what)
{
    tcp_bulk *b = rail->bulk;
    pthread_mutex_lock(&b->mu);
    t->what = what;
    t->next = NULL;
    *b->tail = t;
    b->tail = &t->next;
    b->asked++;
    pthread_mutex_unlock(&b->mu);
    (void)!write(b->doorbell_fd, &(uint64_t){1}, sizeof(uint64_t));
}

tcp_task *tcp_task_take(tcp_rail *rail)
{
    tcp_bulk *b = rail->bulk;
    pthread_mutex_lock(&b->mu);
    tcp_task *t = b->head;
    if (t)
        b->head = t->next;
    if (!b->head)
        b->tail = &b->head;
    pthread_mutex_unlock(&b->mu);
    return t;
}

uint64_t tcp_tasks_asked(tcp_rail *rail)
{
    pthread_mutex_lock(&rail->bulk->mu);
    uint64_t n = rail->bulk->asked;
    pthread_mutex_unlock(&rail->bulk->mu);
    return n;
}

static int delta_of(tcp_rail *rail, const tcp_import *m, uint64_t delta, gr_gpu_fault *f)
{
    gr_gpu *g = atomic_load(&rail->bulk->driver);
    gr_gpu_table **t = &rail->bulk->deltas[m->device];
    int rc = *t ? 0 : g->ops->table(g, m->device, t, f);
    return rc ? rc : g->ops->entry(*t, m->index, delta, f);
}

int tcp_import_done(tcp_rail *rail, tcp_import *m, int why, uint64_t delta)
{
    gr_gpu_fault f = {0};
    if (!why && (why = -delta_of(rail, m, delta, &f)))
        tcp_note_error(rail, "cannot map the peer's GPU memory", why, f.why == why ? &f : NULL);
    m->delta = delta;
    m->why = why;
    atomic_fetch_sub(&rail->bulk->opening, 1);
    atomic_store(&m->state, why ? TCP_UNMAPPABLE : TCP_READY);
    gr_rail_lock(&rail->base);
    tcp_wake(rail); /* the post is tried again */
    gr_rail_unlock(&rail->base);
    return why;
}

/* Moves the imports of a region to conn->maps.left. */
static void detach(tcp_conn *conn, uint32_t index)
{
    for (tcp_import *m; (m = conn->maps.import[index]);) {
        conn->maps.import[index] = m->next;
        m->next = conn->maps.left;
        conn->maps.left = m;
    }
}

void tcp_imports_sweep(tcp_conn *conn)
{
    for (tcp_import **at = &conn->maps.left, *m; (m = *at);) {
        if (m->jobs) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        tcp_task_add(conn->rail, &m->unmap, TCP_UNMAP);
    }
}

void tcp_imports_drop(tcp_conn *conn, const tcp_op *of)
{
    for (uint32_t i = 0; i < conn->maps.n; i++) {
        int hit = !of;
        for (uint32_t k = 0; of && !hit && k < of->nseg; k++)
            hit = conn->maps.import[i] && conn->maps.import[i]->key == of->seg[k].rkey;
        if (hit)
            detach(conn, i);
    }
    tcp_imports_sweep(conn);
}

void tcp_import_forget(tcp_conn *conn, uint32_t index)
{
    gr_rail_lock(&conn->rail->base);
    if (index < conn->maps.n) {
        detach(conn, index);
        tcp_imports_sweep(conn);
    }
    gr_rail_unlock(&conn->rail->base);
}

static int room(tcp_conn *conn, uint32_t index)
{
    uint32_t n = conn->maps.n ? conn->maps.n : 64;
    while (n <= index)
        n *= 2;
    if (n == conn->maps.n)
        return 0;
    tcp_import **more = GR_ALLOC(tcp_imports, realloc(conn->maps.import, n * sizeof(*more)));
    if (!more)
        return -EAGAIN;
    for (uint32_t i = conn->maps.n; i < n; i++)
        more[i] = NULL;
    conn->maps.import = more;
    conn->maps.n = n;
    return 0;
}

static int request(tcp_conn *conn, const gr_bulk_region *r, int device)
{
    int rc = room(conn, r->index);
    tcp_import *m = rc ? NULL : GR_ALLOC(tcp_import, calloc(1, sizeof(*m)));
    if (!m)
        return -EAGAIN;
    *m = (tcp_import){.key = r->key, .base = r->base, .addr = r->addr, .len = r->len, .index = r->index, .device = device, .conn = conn->maps.number,
                      .next = conn->maps.import[r->index]};
    conn->maps.import[r->index] = m;
    atomic_fetch_add(&conn->rail->bulk->opening, 1);
    tcp_task_add(conn->rail, &m->map, TCP_MAP);
    return -EAGAIN;
}

/* Whether a failure may pass by itself. The other reasons last until the peer registers the memory again. */
static int transient(int why) { return why == GR_GPU_NO_MEMORY || why == GR_GPU_SILENT || why == GR_GPU_CANCELLED; }

/* A peer's region as our GPU sees it. NULL: -EAGAIN while the mapping is under way, -ENOTSUP if it has failed, -EREMCHG if other memory is there. */
tcp_import *tcp_import_of(tcp_conn *conn, const gr_bulk_region *r, int device, int *rc)
{
    tcp_import *m = r->index < conn->maps.n ? conn->maps.import[r->index] : NULL;
    if (m && m->key != r->key) { /* the number now belongs to another region */
        detach(conn, r->index);
        tcp_imports_sweep(conn);
        m = NULL;
    }
    while (m && m->device != device)
        m = m->next;
    if (!m) {
        *rc = request(conn, r, device);
        return NULL;
    }
    int state = atomic_load(&m->state);
    if (state == TCP_READY)
        return m;
    *rc = state != TCP_UNMAPPABLE ? -EAGAIN : gr_gpu_changed(m->why) ? -EREMCHG : -ENOTSUP;
    if (state == TCP_UNMAPPABLE && (transient(m->why) || gr_gpu_changed(m->why))) { /* the next post asks again */
        detach(conn, r->index);
        tcp_imports_sweep(conn);
    }
    return NULL;
}
