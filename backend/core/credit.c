/* Credits. A message that takes one of the peer's receives has a slot, a number of its link's: at most RX_BUFS are out beyond the first that the
 * peer has not told to have taken in. A CREDIT tells how many it has, all of them together: a lost one or a second one does no harm. A SEND that
 * failed keeps its slot, for the next message, whatever that is; the peer counts a slot once. */
#include "link.h"

#include <errno.h>

_Static_assert(RX_BUFS == 32, "a slot is a bit of 32");

enum { TWICE = 256 /* slots that may come again without new ones between: a SEND may have failed and arrived */ };

/* The slot of the next message, if credits are left. */
uint32_t slot_next(const gr_link *link)
{
    return link->slots_failed ? link->slot_acked + (uint32_t)__builtin_ctz(link->slots_failed) : link->slot_next;
}

/* A slot for a probe, which always has one: that of the last message of all, where none is left. What was posted before it has
 * completed, so that there is a receive for it. */
uint32_t slot_probe(const gr_link *link)
{
    return credits_left(link) ? slot_next(link) : link->slot_next - 1;
}

/* A message is posted under the slot. 0: another was before, and this one has no credit. */
int slot_use(gr_link *link, uint32_t slot)
{
    uint32_t bit = slot - link->slot_acked;
    if (slot == link->slot_next && bit < RX_BUFS) {
        link->slot_next++;
        return 1;
    }
    if (bit >= RX_BUFS || !(link->slots_failed & UINT32_C(1) << bit))
        return 0;
    link->slots_failed &= ~(UINT32_C(1) << bit);
    return 1;
}

void slot_failed(gr_link *link, uint32_t slot)
{
    uint32_t bit = slot - link->slot_acked;
    if (bit < RX_BUFS) /* else the peer has it, and has said so */
        link->slots_failed |= UINT32_C(1) << bit;
}

/* The peer has taken in the slots below this one. */
int slots_acked(gr_link *link, uint32_t below)
{
    int32_t n = (int32_t)(below - link->slot_acked);
    if (n <= 0) /* overtaken by a later one */
        return 0;
    if ((uint32_t)n > link->slot_next - link->slot_acked)
        return -EBADMSG;
    link->slot_acked = below;
    link->slots_failed = n < RX_BUFS ? link->slots_failed >> n : 0;
    return 0;
}

/* A message has come under the slot. -EBADMSG: the peer had no credit for it. It has those that it was told of, however many were taken in since:
 * what we hold back is how a peer is kept from piling up memory here. */
int slot_taken(gr_link *link, uint32_t slot)
{
    int64_t at = (int32_t)(slot - (uint32_t)link->slots_taken);
    if ((int32_t)(slot - link->slots_told) >= RX_BUFS || at >= RX_BUFS || at < -(int64_t)link->slots_taken)
        return -EBADMSG;
    if (at < 0 || link->slots_seen & UINT32_C(1) << at)
        return link->slots_twice++ < TWICE ? 0 : -EBADMSG;
    link->slots_twice -= link->slots_twice != 0;
    link->slots_seen |= UINT32_C(1) << at;
    for (; link->slots_seen & 1; link->slots_seen >>= 1)
        link->slots_taken++;
    return 0;
}

/* Both ends have other endpoints, and begin anew. */
void credits_fresh(gr_link *link)
{
    link->slot_next = link->slot_acked = link->slots_failed = 0;
    link->slots_taken = 0;
    link->slots_seen = link->slots_told = link->slots_twice = 0;
    link->credit_failed = 0;
}
