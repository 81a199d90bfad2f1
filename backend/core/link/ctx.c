/* Contexts of posted operations. */
#include "link.h"

#include <stdlib.h>
#include <string.h>

/* Takes a context for one operation of the link. NULL without memory. */
ctx *ctx_new(rail_st *rail, gr_link *link, int kind)
{
    ctx *c = rail->mem.free_ctx;
    if (c)
        rail->mem.free_ctx = c->next;
    else if (!(c = GR_ALLOC(core_ctx, malloc(sizeof *c)))) {
        rail->starved = 1; /* the thread tries again */
        return NULL;
    }
    memset(c, 0, sizeof *c);
    c->link = link;
    c->kind = kind;
    c->next = link->ep.posted;
    if (c->next)
        c->next->prev = c;
    link->ep.posted = c;
    return c;
}

static void ctx_unlink(ctx **head, ctx *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        *head = c->next;
    if (c->next)
        c->next->prev = c->prev;
}

/* Orphans the context: its link no longer waits for it, but the library may still use it. */
void ctx_orphan(rail_st *rail, ctx *c)
{
    ctx_unlink(&c->link->ep.posted, c);
    c->kind = CTX_ORPHAN;
    c->prev = NULL;
    c->next = rail->mem.orphans;
    if (c->next)
        c->next->prev = c;
    rail->mem.orphans = c;
}

void ctx_done(rail_st *rail, ctx *c)
{
    ctx_unlink(c->kind == CTX_ORPHAN ? &rail->mem.orphans : &c->link->ep.posted, c);
    c->next = rail->mem.free_ctx;
    rail->mem.free_ctx = c;
}
