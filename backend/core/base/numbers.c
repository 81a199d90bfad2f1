/* Sequence numbers of notifications. One notification may be stuck on its rail while later ones arrive. The peer keeps the
 * later ones, within limits (notify.Limits). Beyond these limits the peer ends the session.
 * So a notification gets its number only while few numbers are open since the oldest unacknowledged one. The other
 * notifications wait in their queues, and numbered notifications pass them. */
#include "session.h"

enum {
    BLOCK_NUMBERS = 2048,      /* TX_BLOCKS blocks fit the answer to a fence (wire.MaxHave), and are a quarter of the peer's limit */
    BLOCK_BYTES = 4 << 20,
    MAX_BYTES = 48 << 20,      /* the peer's limit is 64 MiB; a longer notification goes alone */
    MSG_OVERHEAD = 512,        /* at least what the peer counts for a notification besides its body */
};

/* Reserves room in a block for one notification of so many bytes. 0: no room. Caller holds tx.mu. */
static int reserve(gr_sess *s, uint64_t bytes, uint8_t *block)
{
    tx_block *b = &s->tx.blocks[s->tx.newest % TX_BLOCKS];
    if (s->tx.resent || (s->tx.bytes && s->tx.bytes + bytes > MAX_BYTES))
        return 0;
    if (b->numbers == BLOCK_NUMBERS || b->bytes >= BLOCK_BYTES) {
        if (s->tx.newest + 1 - s->tx.oldest == TX_BLOCKS)
            return 0;
        b = &s->tx.blocks[++s->tx.newest % TX_BLOCKS];
        *b = (tx_block){0};
    }
    b->numbers++;
    b->left++;
    b->bytes += bytes;
    s->tx.bytes += bytes;
    *block = (uint8_t)(s->tx.newest % TX_BLOCKS);
    return 1;
}

/* Gives the next number and its block. 0: no room yet; sess_acked wakes the thread when there is room. */
int sess_number(gr_sess *s, size_t len, uint8_t *block, uint64_t *seq)
{
    pthread_mutex_lock(&s->tx.mu);
    int placed = reserve(s, len + MSG_OVERHEAD, block);
    if (placed)
        *seq = atomic_fetch_add_explicit(&s->tx.seq, 1, memory_order_relaxed);
    else
        s->tx.held = 1;
    pthread_mutex_unlock(&s->tx.mu);
    return placed;
}

/* Registers a notification that keeps its number of an earlier session. While such a notification is out, no new number is
 * given: the peer may hold as many notifications behind it as its limits allow. */
uint8_t sess_resent(gr_sess *s)
{
    pthread_mutex_lock(&s->tx.mu);
    s->tx.resent++;
    pthread_mutex_unlock(&s->tx.mu);
    return TX_RESENT;
}

/* Counts one acknowledged notification of the block. Returns 1 if it was the block's last. Caller holds tx.mu. */
static int block_acked(gr_sess *s, uint8_t block)
{
    if (block == TX_RESENT)
        return --s->tx.resent == 0;
    tx_block *b = &s->tx.blocks[block];
    int last = --b->left == 0;
    for (; last && s->tx.oldest < s->tx.newest && !(b = &s->tx.blocks[s->tx.oldest % TX_BLOCKS])->left; s->tx.oldest++)
        s->tx.bytes -= b->bytes;
    b = &s->tx.blocks[s->tx.oldest % TX_BLOCKS];
    if (last && !b->left) { /* the peer has every numbered notification */
        *b = (tx_block){0};
        s->tx.bytes = 0;
    }
    return last;
}

/* The peer has received a message of the block, or will receive a SKIP instead. */
void sess_acked(gr_sess *s, uint8_t block)
{
    pthread_mutex_lock(&s->tx.mu);
    int wake = block_acked(s, block) && s->tx.held;
    if (wake)
        s->tx.held = 0;
    pthread_mutex_unlock(&s->tx.mu);
    if (wake) /* links of any rail may wait for a number */
        core_wake(s->core);
}
