/* Reads the counters without a lock: see link_count. */
#include "progress.h"

static uint64_t load(const _Atomic uint64_t *c) { return atomic_load_explicit(c, memory_order_relaxed); }

static void copy(const _Atomic uint64_t *count, uint64_t *out)
{
    for (int i = 0; i < GR_N_COUNT; i++)
        out[i] = load(&count[i]);
}

void gr_link_tally(gr_link *link, gr_tally *out)
{
    copy(link->count, out->count);
    out->inflight = load(&link->win.load);
    out->rate = load(&link->win.rate_pub);
    out->last_ns = load(&link->last_ns);
    out->links = 1;
}

void gr_rail_tally(gr_core *core, int idx, gr_tally *out)
{
    rail_st *rail = core->rails[idx];
    *out = (gr_tally){0};
    if (!rail)
        return;
    copy(rail->count, out->count);
    out->inflight = load(&rail->load);
    out->last_ns = rail_now(rail);
    out->links = (uint32_t)atomic_load_explicit(&rail->nlinks, memory_order_relaxed);
}

void gr_rail_times(gr_core *core, int idx, uint64_t out[GR_TIME_CLASSES][GR_TIME_BUCKETS])
{
    rail_st *rail = core->rails[idx];
    for (int c = 0; c < GR_TIME_CLASSES; c++)
        for (int b = 0; b < GR_TIME_BUCKETS; b++)
            out[c][b] = rail ? load(&rail->times[c][b]) : 0;
}

/* Adds up the counters that only rails count, so that the hot path counts each only once. */
void gr_counters(gr_core *core, uint64_t *out)
{
    static const struct {
        int core, rail;
    } sums[] = {{GR_C_WRS, GR_N_WRS},       {GR_C_ERRORS, GR_N_ERRORS},           {GR_C_ERRORS, GR_N_FLUSHED},
                {GR_C_EAGAIN, GR_N_EAGAIN}, {GR_C_WRITE_BYTES, GR_N_WRITE_BYTES}, {GR_C_READ_BYTES, GR_N_READ_BYTES}};
    for (int i = 0; i < GR_C_COUNT; i++)
        out[i] = load(&core->count[i]);
    for (int i = 0, n = core->nrails; i < n; i++) {
        rail_st *rail = core->rails[i];
        for (size_t k = 0; rail && k < sizeof sums / sizeof sums[0]; k++)
            out[sums[k].core] += load(&rail->count[sums[k].rail]);
    }
}

uint64_t gr_xfer_share(gr_xfer *pub, gr_link *link)
{
    xfer *x = (xfer *)pub;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < x->nsubs; i++)
        if (x->subs[i].link == link)
            bytes = atomic_load_explicit(&x->subs[i].bytes, memory_order_relaxed);
    return bytes;
}

uint32_t gr_xfer_paths(gr_xfer *pub, gr_path *out, uint32_t max)
{
    xfer *x = (xfer *)pub;
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->nsubs; i++) {
        subxfer *p = &x->subs[i];
        uint64_t bytes = atomic_load_explicit(&p->bytes, memory_order_relaxed);
        uint32_t k = 0;
        while (k < n && (out[k].own != p->own || out[k].peer != p->peer)) /* links over the same pair of rails count together */
            k++;
        if (k < n)
            out[k].bytes += bytes;
        else if (bytes && n < max)
            out[n++] = (gr_path){p->own, p->peer, bytes};
    }
    return n;
}
