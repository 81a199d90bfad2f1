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
    return link->credit.failed ? link->credit.acked + (uint32_t)__builtin_ctz(link->credit.failed) : link->credit.next;
}

/* A slot for a probe, which always has one: that of the last message of all, where none is left. What was posted before it has
 * completed, so that there is a receive for it. */
uint32_t slot_probe(const gr_link *link)
{
    return credits_left(link) ? slot_next(link) : link->credit.next - 1;
}

/* A message is posted under the slot. 0: another was before, and this one has no credit. */
int slot_use(gr_link *link, uint32_t slot)
{
    uint32_t bit = slot - link->credit.acked;
    if (slot == link->credit.next && bit < RX_BUFS) {
        link->credit.next++;
        return 1;
    }
    if (bit >= RX_BUFS || !(link->credit.failed & UINT32_C(1) << bit))
        return 0;
    link->credit.failed &= ~(UINT32_C(1) << bit);
    return 1;
}

void slot_failed(gr_link *link, uint32_t slot)
{
    uint32_t bit = slot - link->credit.acked;
    if (bit < RX_BUFS) /* else the peer has it, and has said so */
        link->credit.failed |= UINT32_C(1) << bit;
}

/* The peer has taken in the slots below this one. */
int slots_acked(gr_link *link, uint32_t below)
{
    int32_t n = (int32_t)(below - link->credit.acked);
    if (n <= 0) /* overtaken by a later one */
        return 0;
    if ((uint32_t)n > link->credit.next - link->credit.acked)
        return -EBADMSG;
    link->credit.acked = below;
    link->credit.failed = n < RX_BUFS ? link->credit.failed >> n : 0;
    return 0;
}

/* A message has come under the slot. -EBADMSG: the peer had no credit for it. It has those that it was told of, however many were taken in since:
 * what we hold back is how a peer is kept from piling up memory here. */
int slot_taken(gr_link *link, uint32_t slot)
{
    int64_t at = (int32_t)(slot - (uint32_t)link->credit.taken);
    if ((int32_t)(slot - link->credit.granted) >= RX_BUFS || at >= RX_BUFS || at < -(int64_t)link->credit.taken)
        return -EBADMSG;
    if (at < 0 || link->credit.seen & UINT32_C(1) << at)
        return link->credit.twice++ < TWICE ? 0 : -EBADMSG;
    link->credit.twice -= link->credit.twice != 0;
    link->credit.seen |= UINT32_C(1) << at;
    for (; link->credit.seen & 1; link->credit.seen >>= 1)
        link->credit.taken++;
    return 0;
}

/* Both ends have other endpoints, and begin anew. */
void credits_fresh(gr_link *link)
{
    link->credit.next = link->credit.acked = link->credit.failed = 0;
    link->credit.taken = 0;
    link->credit.seen = link->credit.granted = link->credit.twice = 0;
    link->credit.again = 0;
}
