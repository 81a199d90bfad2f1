/* Credits. Each message that takes one of the peer's receives has a slot: a number of its link. The sender may have RX_BUFS
 * slots open, counted from the first slot that the peer has not acknowledged.
 * A CREDIT carries the number of slots that the peer has taken in, in total. So a lost or repeated CREDIT does no harm. A
 * failed SEND keeps its slot for the next message of any kind. The peer counts a slot once. */
#include "link.h"

#include <errno.h>

_Static_assert(RX_BUFS == 32, "a slot is a bit of 32");

enum { MAX_REPEATS = 256 /* repeated slots without new ones between; a failed SEND may have arrived, and its slot then comes again */ };

/* The slot of the next message. Valid only if credits are left. */
uint32_t slot_next(const gr_link *link)
{
    return link->credit.failed ? link->credit.acked + (uint32_t)__builtin_ctz(link->credit.failed) : link->credit.next;
}

/* The slot for a probe, which may always go out. Without credits a probe reuses the slot of the last message. Earlier
 * messages have completed by then, so a receive is posted for the probe. */
uint32_t slot_probe(const gr_link *link) { return credits_left(link) ? slot_next(link) : link->credit.next - 1; }

/* Marks the slot used by a posted message. 0: an earlier message has used the slot, and this message takes no credit. */
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
    if (bit < RX_BUFS) /* else the peer has acknowledged the message */
        link->credit.failed |= UINT32_C(1) << bit;
}

/* The peer has acknowledged all slots below this one. */
int slots_acked(gr_link *link, uint32_t below)
{
    int32_t n = (int32_t)(below - link->credit.acked);
    if (n <= 0) /* a later CREDIT came first */
        return 0;
    if ((uint32_t)n > link->credit.next - link->credit.acked)
        return -EBADMSG;
    link->credit.acked = below;
    link->credit.failed = n < RX_BUFS ? link->credit.failed >> n : 0;
    return 0;
}

/* A message has arrived under the slot. -EBADMSG: the peer had no credit for the slot. The peer's credits are those of the
 * last CREDIT sent, whatever was taken in since. Credits held back keep a peer from filling our memory. */
int slot_taken(gr_link *link, uint32_t slot)
{
    int64_t at = (int32_t)(slot - (uint32_t)link->credit.taken);
    /* limit:credits */
    if ((int32_t)(slot - link->credit.granted) >= RX_BUFS || at >= RX_BUFS || at < -(int64_t)link->credit.taken)
        return -EBADMSG;
    if (at < 0 || link->credit.seen & UINT32_C(1) << at)
        return link->credit.repeats++ < MAX_REPEATS ? 0 : -EBADMSG;
    link->credit.repeats -= link->credit.repeats != 0;
    link->credit.seen |= UINT32_C(1) << at;
    for (; link->credit.seen & 1; link->credit.seen >>= 1)
        link->credit.taken++;
    return 0;
}

/* Resets the credits: both ends have new endpoints. */
void credits_reset(gr_link *link)
{
    link->credit.next = link->credit.acked = link->credit.failed = 0;
    link->credit.taken = 0;
    link->credit.seen = link->credit.granted = link->credit.repeats = 0;
    link->credit.resend = 0;
}
