/* Streams to other GPUs or host memory, and jobs on them. */
#include <stdlib.h>
#include <string.h>

#include "gpu_int.h"

int gg_stream(gr_gpu *gpu, int device, int peer, gr_gpu_stream **out, gr_gpu_fault *fault)
{
    gg *g = gg_of(gpu);
    int rc;
    *out = NULL;
    gg_dev *d = gg_device(g, device, fault, &rc);
    if (!d || (rc = gg_load(g, d, fault)))
        return rc;
    pthread_mutex_lock(&g->stream_mu);
    gr_gpu_stream *l = g->streams;
    while (l && !(l->dev == d && l->peer == peer))
        l = l->next;
    if (l)
        l->refs++;
    else if (!(l = GR_ALLOC(gpu_stream, calloc(1, sizeof(*l)))))
        rc = gg_fail(fault, GR_GPU_NO_MEMORY, "calloc");
    else {
        *l = (gr_gpu_stream){.g = g, .dev = d, .peer = peer, .refs = 1, .piece = peer < 0 ? GG_PIECE_HOST : GG_PIECE};
        if ((rc = gg_enter(g, d, fault)) == 0) {
            rc = GG_CALL(g, fault, stream_create, &l->handle, CU_STREAM_NON_BLOCKING, d->priority);
            gg_leave(g);
        }
        if (rc) {
            free(l);
            l = NULL;
        } else {
            pthread_mutex_init(&l->pack_mu, NULL);
            l->next = g->streams;
            g->streams = l;
        }
    }
    *out = l;
    pthread_mutex_unlock(&g->stream_mu);
    return rc;
}

/* Frees the stream without references of callers or jobs. With stream_mu held, which it releases. */
static void drop(gg *g, gr_gpu_stream *l)
{
    if (l->refs || l->jobs) {
        pthread_mutex_unlock(&g->stream_mu);
        return;
    }
    gr_gpu_stream **at = &g->streams;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    if (gg_enter(g, l->dev, NULL) == 0) {
        (void)g->cu.stream_destroy(l->handle);
        gg_leave(g);
    }
    atomic_fetch_add(&g->ending, 1);
    pthread_mutex_unlock(&g->stream_mu);
    gg_scratch_free(g, l->dev->ordinal, l->scratch); /* the driver may wait for all work of the GPU */
    pthread_mutex_destroy(&l->pack_mu);
    free(l);
    atomic_fetch_sub(&g->ending, 1);
}

void gg_stream_close(gr_gpu *gpu, gr_gpu_stream *l)
{
    gg *g = gg_of(gpu);
    pthread_mutex_lock(&g->stream_mu);
    l->refs--;
    drop(g, l);
}

static void discard(gg *g, gr_gpu_job *j)
{
    if (gg_enter(g, j->stream->dev, NULL) == 0) {
        for (int i = 0; i < GG_QUEUED; i++)
            if (j->event[i])
                (void)g->cu.event_destroy(j->event[i]);
        gg_leave(g);
    }
    if (j->mark)
        gg_mark_free(g, j->stream->dev, j->mark);
    gg_free(&g->pub, j->word);
    free(j);
}

int gg_job(gr_gpu_stream *l, gr_gpu_job **out, gr_gpu_fault *fault)
{
    gg *g = l->g;
    gr_gpu_job *j = GR_ALLOC(gpu_job, calloc(1, sizeof(*j)));
    int rc = 0;
    *out = NULL;
    if (!j)
        return gg_fail(fault, GR_GPU_NO_MEMORY, "calloc");
    j->stream = l;
    j->word = gg_alloc(&g->pub, sizeof(*j->word));
    if (!j->word)
        rc = gg_fail(fault, GR_GPU_NO_MEMORY, gg_name_host_alloc);
    else
        memset(j->word, 0, sizeof(*j->word));
    if (rc == 0 && (rc = gg_mark(g, l->dev, &j->mark, fault)) == 0 && (rc = gg_enter(g, l->dev, fault)) == 0) {
        for (int i = 0; rc == 0 && i < GG_QUEUED; i++)
            rc = GG_CALL(g, fault, event_create, &j->event[i], CU_EVENT_NO_TIMING);
        gg_leave(g);
    }
    if (rc) {
        discard(g, j);
        return rc;
    }
    pthread_mutex_lock(&g->stream_mu);
    l->jobs++;
    pthread_mutex_unlock(&g->stream_mu);
    *out = j;
    return 0;
}

int gg_job_free(gr_gpu_job *j)
{
    gr_gpu_stream *l = j->stream;
    gg *g = l->g;
    if (j->state != GG_IDLE)
        return -GR_GPU_BUSY;
    discard(g, j);
    pthread_mutex_lock(&g->stream_mu);
    l->jobs--;
    drop(g, l);
    return 0;
}
