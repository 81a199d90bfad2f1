/* Numbers of notifications. Of those behind one that is stuck on its rail the peer keeps what has come, within limits (notify.Limits), beyond which it
 * ends the session. So a notification gets its number only while it is near enough to the oldest that the peer is not known to have; others
 * wait where they are queued, and those with numbers pass them. */
#include "session.h"

enum {
    BLOCK_NUMBERS = 2048,      /* TX_BLOCKS of them fit the answer to a fence (wire.MaxHave), and are a quarter of what the peer allows */
    BLOCK_BYTES = 4 << 20,
    MOST_BYTES = 48 << 20,     /* of 64 MiB; one that is longer goes alone */
    BOOKS = 512,               /* what the peer counts for one beside its body, and more */
};

/* Under tx.mu. */
static int place(gr_sess *s, uint64_t bytes, uint8_t *block)
{
    tx_block *b = &s->tx.blocks[s->tx.newest % TX_BLOCKS];
    if (s->tx.resent || (s->tx.bytes && s->tx.bytes + bytes > MOST_BYTES))
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

/* The next number, and its block. 0: not yet; the thread is woken when there is room. */
int sess_number(gr_sess *s, size_t len, uint8_t *block, uint64_t *seq)
{
    pthread_mutex_lock(&s->tx.mu);
    int placed = place(s, len + BOOKS, block);
    if (placed)
        *seq = s->tx.seq++;
    else
        s->tx.held = 1;
    pthread_mutex_unlock(&s->tx.mu);
    return placed;
}

/* A notification goes out under its number of a session before. The peer holds others behind it, as many as it may: see place. */
uint8_t sess_resent(gr_sess *s)
{
    pthread_mutex_lock(&s->tx.mu);
    s->tx.resent++;
    pthread_mutex_unlock(&s->tx.mu);
    return TX_RESENT;
}

/* One of its block is proved; whether that was the last. Under tx.mu. */
static int block_proved(gr_sess *s, uint8_t block)
{
    if (block == TX_RESENT)
        return --s->tx.resent == 0;
    tx_block *b = &s->tx.blocks[block];
    int last = --b->left == 0;
    for (; last && s->tx.oldest < s->tx.newest && !(b = &s->tx.blocks[s->tx.oldest % TX_BLOCKS])->left; s->tx.oldest++)
        s->tx.bytes -= b->bytes;
    b = &s->tx.blocks[s->tx.oldest % TX_BLOCKS];
    if (last && !b->left) { /* the peer has all there are */
        *b = (tx_block){0};
        s->tx.bytes = 0;
    }
    return last;
}

/* The peer has a message of that block, or is told to do without it. */
void sess_proved(gr_sess *s, uint8_t block)
{
    pthread_mutex_lock(&s->tx.mu);
    int wake = block_proved(s, block) && s->tx.held;
    if (wake)
        s->tx.held = 0;
    pthread_mutex_unlock(&s->tx.mu);
    if (wake) /* links of whichever rail */
        core_wake(s->core);
}
