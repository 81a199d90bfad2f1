/* An endpoint's address: 32 bytes, opaque to the application. */
#ifndef FAB_ADDRESS_H
#define FAB_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "page.h"

typedef struct fab_address {
    uint8_t head[2];
    uint8_t kind, idx;
    uint32_t ip;
    uint16_t port, zero;
    uint32_t pid;
    uint64_t cookie;
    uint32_t fd, check;
} fab_address;

_Static_assert(sizeof(fab_address) == 32, "fab_address");

static inline uint32_t fab_address_check(const fab_address *a)
{
    return (uint32_t)((a->cookie ^ a->ip ^ (uint64_t)a->port << 32 ^ (uint64_t)a->pid << 16 ^ a->fd ^ a->idx) * UINT64_C(0x9e3779b97f4a7c15) >> 32);
}

static inline bool fab_address_read(const void *raw, fab_address *a)
{
    memcpy(a, raw, sizeof(*a));
    return a->cookie && a->idx < FAB_EPS && a->check == fab_address_check(a);
}

#endif
