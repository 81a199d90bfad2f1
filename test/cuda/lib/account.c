/* Which files are behind addresses. Tests compare them with what processes map: see Go package test/held. */
#include "ct.h"

/* Writes the inodes of the memory behind a range, and returns their number. Addresses without memory are left out. */
long ct_control_behind(uint64_t at, uint64_t size, uint64_t *inodes, long room)
{
    long n = 0;
    pthread_mutex_lock(&ct_mu);
    for (uint64_t end = at + size; at < end && n < room;) {
        ct_map *m = ct_map_at(at);
        if (m)
            inodes[n++] = m->mem->inode;
        at = m ? m->at + m->mem->size : at + CT_PAGE;
    }
    pthread_mutex_unlock(&ct_mu);
    return n;
}
