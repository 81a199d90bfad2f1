/* Registered memory: a range and a key, unique on the rail. */
#include <errno.h>
#include <stdlib.h>

#include "fake.h"

static uint64_t key_mask(const fake_rail *rail) { return rail->config.key_size >= 8 ? UINT64_MAX : (UINT64_C(1) << (8 * rail->config.key_size)) - 1; }

fake_mr *fake_mr_find(fake_rail *rail, uint64_t key)
{
    fake_mr *mr = rail->mrs[key % FAKE_MRS];
    while (mr && mr->key != key)
        mr = mr->next;
    return mr;
}

fake_mr *fake_mr_for(const fake_ep *ep, uint64_t key, int kind)
{
    uint64_t salt = ep->rail->config.keyed ? ep->proof.salt & key_mask(ep->rail) : 0;
    fake_mr *mr = fake_mr_find(ep->rail, key ^ salt);
    return mr && mr->peers & (kind == GR_READ ? FAKE_PEERS_READ : FAKE_PEERS_WRITE) ? mr : NULL;
}

fake_mr *fake_mr_add(fake_rail *rail, uint64_t addr, uint64_t len, uint64_t key, uint8_t peers, int *err)
{
    *err = 0;
    if (rail->config.prov_key) {
        do
            key = fake_random(&rail->fabric->rng) & key_mask(rail);
        while (fake_mr_find(rail, key));
    } else if (key & ~key_mask(rail)) {
        *err = -EINVAL;
    } else if (fake_mr_find(rail, key)) {
        *err = -ENOKEY;
    }
    fake_mr *mr = *err ? NULL : calloc(1, sizeof(*mr));
    if (!mr) {
        *err = *err ? *err : -ENOMEM;
        return NULL;
    }
    *mr = (fake_mr){.next = rail->mrs[key % FAKE_MRS], .addr = addr, .len = len, .key = key, .peers = peers};
    rail->mrs[key % FAKE_MRS] = mr;
    rail->open_mrs++;
    return mr;
}

void fake_mr_drop(fake_rail *rail, fake_mr *mr)
{
    fake_mr **at = &rail->mrs[mr->key % FAKE_MRS];
    while (*at != mr)
        at = &(*at)->next;
    *at = mr->next;
    rail->open_mrs--;
    free(mr);
}

int fake_mr_open(fake_rail *rail, uint64_t addr, uint64_t len, uint64_t key, uint8_t peers, fake_mr **out, uint64_t *out_key)
{
    int err;
    gr_rail_lock(&rail->base);
    pthread_mutex_lock(&rail->fabric->mu);
    *out = fake_mr_add(rail, addr, len, key, peers, &err);
    if (*out)
        *out_key = (*out)->key;
    pthread_mutex_unlock(&rail->fabric->mu);
    gr_rail_unlock(&rail->base);
    return err;
}

void fake_mr_close(fake_rail *rail, fake_mr *mr)
{
    gr_rail_lock(&rail->base);
    pthread_mutex_lock(&rail->fabric->mu);
    fake_mr_drop(rail, mr);
    pthread_mutex_unlock(&rail->fabric->mu);
    gr_rail_unlock(&rail->base);
}
