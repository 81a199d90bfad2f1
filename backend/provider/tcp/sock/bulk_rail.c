/* NVLink between hosts: what a rail has of it, and memory for operations. */
#include <errno.h>
#include <stdlib.h>

#include "gr_failpoint.h"
#include "sock.h"

static void *ops_alloc(gr_rail *base, size_t size)
{
    gr_gpu *g = atomic_load(&((tcp_rail *)base)->bulk->driver);
    return g ? g->ops->alloc(g, size) : NULL;
}

/* A job of a closed connection may still read them. */
static void ops_free(gr_rail *base, void *mem)
{
    tcp_rail *rail = (tcp_rail *)base;
    gr_gpu *g = atomic_load(&rail->bulk->driver);
    int kept = 0;
    gr_rail_lock(base);
    for (tcp_job *j = rail->bulk->kept ? rail->bulk->jobs : NULL; j && !kept; j = j->next)
        if (j->ops == mem && !j->end)
            kept = j->ops_freed = 1;
    gr_rail_unlock(base);
    if (!kept)
        g->ops->free(g, mem);
}

const gr_rail_bulk tcp_bulk_ops = {.post = tcp_job_post, .stop = tcp_job_stop, .ops_alloc = ops_alloc, .ops_free = ops_free};

static int job_uses(const tcp_bulk *b, const tcp_vram *v)
{
    for (const tcp_job *j = b->jobs; j; j = j->next)
        for (uint32_t i = 0; i < j->use.nhere; i++)
            if (j->use.here[i].mem == v)
                return 1;
    return 0;
}

/* Those that no job uses. What is left are ranges of jobs, so their number is bounded by the jobs'. */
static void free_retired(tcp_bulk *b)
{
    for (tcp_vram **at = &b->retired, *v; (v = *at);) {
        if (job_uses(b, v)) {
            at = &v->next;
            continue;
        }
        *at = v->next;
        free(v);
    }
}

void tcp_vram_retire(tcp_rail *rail, tcp_vram *v)
{
    gr_rail_lock(&rail->base);
    v->next = rail->bulk->retired;
    rail->bulk->retired = v;
    free_retired(rail->bulk);
    gr_rail_unlock(&rail->base);
}

uint64_t tcp_conn_number(const tcp_conn *conn) { return conn->maps.number; }

uint32_t tcp_conn_copying(tcp_conn *conn) { return atomic_load(&conn->maps.copying); }

uint32_t tcp_jobs_kept(tcp_rail *rail)
{
    gr_rail_lock(&rail->base);
    tcp_jobs_poll(rail);
    uint32_t n = rail->bulk->kept;
    gr_rail_unlock(&rail->base);
    return n;
}

static _Atomic int rails; /* a stream takes one thread at a time, and each rail has its own lock */

int tcp_bulk_new(tcp_rail *rail, int doorbell_fd, int how)
{
    tcp_bulk *b = GR_ALLOC(tcp_bulk, calloc(1, sizeof(*b)));
    if (!b)
        return ENOMEM;
    pthread_mutex_init(&b->mu, NULL);
    b->tail = &b->head;
    b->doorbell_fd = doorbell_fd;
    b->how = how;
    b->peer = GR_GPU_AWAY + atomic_fetch_add(&rails, 1) % (1 << 30);
    rail->bulk = b;
    rail->base.bulk = &tcp_bulk_ops;
    rail->base.is.by_processor = 0;
    return 0;
}

void tcp_bulk_use(tcp_rail *rail, gr_gpu *driver) { atomic_store(&rail->bulk->driver, driver); }

void tcp_bulk_free(tcp_rail *rail)
{
    tcp_bulk *b = rail->bulk;
    gr_gpu *g = b ? atomic_load(&b->driver) : NULL;
    if (!b)
        return;
    free_retired(b);
    for (int i = 0; i < TCP_GPUS && !b->jobs; i++) { /* else a GPU may still use all of it */
        tcp_pair *p = &b->pairs[i];
        for (tcp_job *j; (j = p->free);) {
            p->free = j->next;
            (void)g->ops->job_free(j->job);
            free(j->use.range);
            free(j->use.here);
            free(j->use.on);
            free(j);
        }
        if (p->stream)
            g->ops->stream_close(g, p->stream);
        if (b->deltas[i])
            g->ops->table_free(b->deltas[i]);
    }
    if (b->jobs)
        return;
    pthread_mutex_destroy(&b->mu);
    free(b);
    rail->bulk = NULL;
}
