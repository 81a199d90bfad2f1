/* The table of registered ranges, and the checks of what a peer names. C, because each frame of a peer is checked. */
#include <errno.h>
#include <stdlib.h>

#include "gr_failpoint.h"
#include "sock.h"

static int table_grow(tcp_rail *rail)
{
    uint32_t size = rail->table.size ? rail->table.size * 2 : 64;
    if (size > TCP_REGIONS)
        return ENOSPC;
    tcp_region *at = GR_ALLOC(tcp_regions, realloc(rail->table.at, size * sizeof(*at)));
    if (!at)
        return ENOMEM;
    rail->table.at = at;
    rail->table.size = size;
    return 0;
}

int tcp_region_add(tcp_rail *rail, uint64_t addr, uint64_t len, uint64_t key, uint8_t peers, tcp_gpu *gpu, uint32_t *number)
{
    uint32_t n = rail->table.free;
    if (n) {
        rail->table.free = rail->table.at[--n].next_free;
    } else {
        n = rail->table.used;
        int err = n < rail->table.size ? 0 : table_grow(rail);
        if (err)
            return err;
        rail->table.used++;
    }
    rail->table.at[n] = (tcp_region){.addr = addr, .len = len, .key = key, .peers = peers, .live = 1, .gpu = gpu};
    rail->table.live++;
    *number = n;
    return 0;
}

void tcp_region_remove(tcp_rail *rail, uint32_t number)
{
    rail->table.at[number].live = 0;
    rail->table.at[number].next_free = rail->table.free;
    rail->table.free = number + 1;
    rail->table.live--;
    rail->table.changes++;
}

static uint64_t rotate(uint64_t v, int by) { return v << by | v >> (64 - by); }

static void sip_round(uint64_t v[4])
{
    v[0] += v[1], v[1] = rotate(v[1], 13) ^ v[0], v[0] = rotate(v[0], 32);
    v[2] += v[3], v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = rotate(v[1], 17) ^ v[2], v[2] = rotate(v[2], 32);
}

/* SipHash-2-4 of the region's key and number, under the session's salt. */
uint64_t tcp_session_key(const uint8_t salt[16], uint64_t key, uint32_t number)
{
    uint64_t k0 = tcp_get64(salt), k1 = tcp_get64(salt + 8), m[3] = {key, number, UINT64_C(16) << 56};
    uint64_t v[4] = {k0 ^ UINT64_C(0x736f6d6570736575), k1 ^ UINT64_C(0x646f72616e646f6d), k0 ^ UINT64_C(0x6c7967656e657261),
                     k1 ^ UINT64_C(0x7465646279746573)};
    for (int i = 0; i < 3; i++) {
        v[3] ^= m[i];
        sip_round(v);
        sip_round(v);
        v[0] ^= m[i];
    }
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

const tcp_region *tcp_region_for(const tcp_conn *conn, const tcp_segment *seg, uint64_t len, uint8_t right, int *err)
{
    const tcp_rail *rail = conn->rail;
    uint32_t n = TCP_REGION(seg->addr);
    uint64_t offset = TCP_OFFSET(seg->addr);
    const tcp_region *r = n < rail->table.used ? &rail->table.at[n] : NULL;
    if (!r || !r->live || tcp_session_key(conn->salt, r->key, n) != seg->key)
        *err = ESTALE;
    else if (!(r->peers & right))
        *err = EACCES;
    else if (offset > r->len || len > r->len - offset)
        *err = EFAULT;
    else
        return r;
    return NULL;
}

void *tcp_region_find(const tcp_conn *conn, const tcp_segment *seg, uint8_t right, int *err)
{
    const tcp_region *r = tcp_region_for(conn, seg, seg->len, right, err);
    if (r && r->vram)
        *err = EACCES;
    return r && !r->vram ? (void *)(uintptr_t)(r->addr + TCP_OFFSET(seg->addr)) : NULL;
}
