/* Puts messages that arrive out of order or in fragments in order by number. */
#include <string.h>

#include "world.h"

/* As notify.DefaultLimits: a sender that exceeds them loses its session. */
enum { MAX_DISTANCE = 1 << 16, MAX_PENDING = 64 << 20, PIECE_OVERHEAD = 256 + 16 + 8 };

static piece *find(const assembler *m, uint64_t seq)
{
    piece *p = m->pieces[seq % PIECE_BUCKETS];
    while (p && p->seq != seq)
        p = p->next;
    return p;
}

static void drop(assembler *m, piece *p)
{
    piece **at = &m->pieces[p->seq % PIECE_BUCKETS];
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    m->npieces--;
    m->bytes -= p->total + PIECE_OVERHEAD;
    free(p->body);
    free(p);
}

static void advance(assembler *m, gr_sess *sess)
{
    for (piece *p; (p = find(m, m->next)) && (p->skip || p->have == p->total); m->next++) {
        if (!p->skip)
            CHECK(gr_sess_deliver(sess, p->body, p->total) == 0, "out of memory");
        drop(m, p);
    }
}

static piece *add(assembler *m, const gr_event *ev)
{
    piece *p = calloc(1, sizeof *p);
    CHECK(p && (p->body = malloc(ev->total + 1)), "out of memory");
    *p = (piece){.next = m->pieces[ev->seq % PIECE_BUCKETS], .seq = ev->seq, .total = ev->total, .body = p->body};
    m->pieces[ev->seq % PIECE_BUCKETS] = p;
    m->npieces++;
    m->bytes += ev->total + PIECE_OVERHEAD;
    CHECK(ev->seq == m->next || m->bytes <= MAX_PENDING, "%lu bytes wait for number %lu", (unsigned long)m->bytes, (unsigned long)m->next);
    return p;
}

void assembler_add(assembler *m, gr_sess *sess, const gr_event *ev)
{
    uint64_t handed, next = gr_sess_next_seq(sess, &handed);
    m->handled++;
    gr_sess_handled(sess, ev->len);
    if (next > m->next) { /* the core took messages in alone until then */
        CHECK(!m->npieces, "the core continued although %lu pieces wait", (unsigned long)m->npieces);
        m->next = next;
    }
    CHECK(ev->seq <= m->next || ev->seq - m->next <= MAX_DISTANCE, "number %lu, the next is %lu", (unsigned long)ev->seq, (unsigned long)m->next);
    if (ev->seq >= m->next) {
        piece *p = find(m, ev->seq);
        if (!p)
            p = add(m, ev);
        p->skip |= ev->subs == 0;
        if (!p->skip) {
            CHECK(p->total == ev->total && (uint64_t)ev->offset + ev->len <= ev->total, "fragment %u+%u of %u", ev->offset, ev->len, ev->total);
            memcpy(p->body + ev->offset, ev->data, ev->len);
            uint64_t bit = UINT64_C(1) << (ev->offset >> 10); /* after a fence the fragment comes again, perhaps over another link */
            p->have += p->seen & bit ? 0 : ev->len;
            p->seen |= bit;
        }
        advance(m, sess);
    }
    if (!m->npieces)
        gr_sess_resume(sess, m->next, m->handled);
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

size_t assembler_have(const assembler *m, uint64_t *out, size_t max)
{
    size_t n = 0;
    for (int i = 0; i < PIECE_BUCKETS; i++)
        for (const piece *p = m->pieces[i]; p && n < max; p = p->next)
            if (p->skip || p->have == p->total)
                out[n++] = p->seq;
    qsort(out, n, sizeof *out, ascending);
    return n;
}

void assembler_clear(assembler *m)
{
    for (int i = 0; i < PIECE_BUCKETS; i++)
        while (m->pieces[i])
            drop(m, m->pieces[i]);
    m->next = m->handled = 0;
}
