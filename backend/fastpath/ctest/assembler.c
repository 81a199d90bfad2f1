/* What comes out of order or in fragments, put in order by number. */
#include <string.h>

#include "world.h"

static piece *find(assembler *m, uint64_t seq)
{
    piece *p = m->pieces;
    while (p && p->seq != seq)
        p = p->next;
    return p;
}

static void drop(assembler *m, piece *p)
{
    piece **at = &m->pieces;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
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

void assembler_add(assembler *m, gr_sess *sess, const gr_event *ev)
{
    uint64_t handed, next = gr_sess_next_seq(sess, &handed);
    m->handled++;
    if (next > m->next) { /* the core went on alone until then */
        CHECK(!m->pieces || m->pieces->seq >= next, "the core passed number %lu by", (unsigned long)m->pieces->seq);
        m->next = next;
    }
    if (ev->seq >= m->next) {
        piece *p = find(m, ev->seq);
        if (!p) {
            CHECK((p = calloc(1, sizeof *p)) && (p->body = malloc(ev->total + 1)), "out of memory");
            *p = (piece){.next = m->pieces, .seq = ev->seq, .total = ev->total, .body = p->body};
            m->pieces = p;
        }
        p->skip |= ev->parts == 0;
        if (!p->skip) {
            CHECK(p->total == ev->total && (uint64_t)ev->offset + ev->len <= ev->total, "fragment %u+%u of %u", ev->offset, ev->len,
                  ev->total);
            memcpy(p->body + ev->offset, ev->data, ev->len);
            uint64_t bit = UINT64_C(1) << (ev->offset >> 10); /* after a fence it comes again, and maybe over another link */
            p->have += p->seen & bit ? 0 : ev->len;
            p->seen |= bit;
        }
        advance(m, sess);
    }
    if (!m->pieces)
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
    for (const piece *p = m->pieces; p && n < max; p = p->next)
        if (p->skip || p->have == p->total)
            out[n++] = p->seq;
    qsort(out, n, sizeof *out, ascending);
    return n;
}

void assembler_clear(assembler *m)
{
    while (m->pieces)
        drop(m, m->pieces);
    *m = (assembler){0};
}
