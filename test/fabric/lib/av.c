/* Address vectors. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fab.h"
#include "address.h"

fab_peer *fab_av_peer(fab_av *av, fi_addr_t addr) { return addr < av->room ? av->peer[addr] : NULL; }

/* A killed process that is a zombie counts as dead. */
bool fab_peer_alive(const fab_peer *peer)
{
    char path[64], line[256], *state;
    FILE *f;
    bool alive;
    if (!peer->page || atomic_load(&peer->page->ep[peer->idx].cookie) != peer->cookie)
        return false;
    snprintf(path, sizeof(path), "/proc/%d/stat", peer->pid);
    f = fopen(path, "re");
    if (!f)
        return false;
    state = fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
    alive = state && state[1] && state[2] != 'Z' && state[2] != 'X';
    fclose(f);
    return alive;
}

void fab_peer_put(fab_dom *dom, fab_peer *peer)
{
    if (peer->users || peer->listed)
        return;
    if (peer->real != FI_ADDR_NOTAVAIL)
        fi_av_remove(dom->real_av, &peer->real, 1, 0);
    fab_page_drop(peer->page);
    free(peer);
}

static fab_peer *make_peer(fab_dom *dom, const void *addr)
{
    fab_address a;
    fab_peer *peer;
    struct sockaddr_in sin = {.sin_family = AF_INET};
    if (!fab_address_read(addr, &a))
        return NULL;
    peer = calloc(1, sizeof(*peer));
    if (!peer)
        return NULL;
    memcpy(peer->addr, addr, FAB_ADDR_LEN);
    peer->cookie = a.cookie;
    peer->pid = (pid_t)a.pid;
    peer->idx = a.idx;
    peer->real = FI_ADDR_NOTAVAIL;
    sin.sin_addr.s_addr = a.ip;
    sin.sin_port = a.port;
    if (fi_av_insert(dom->real_av, &sin, 1, &peer->real, 0, NULL) != 1) {
        free(peer);
        return NULL;
    }
    peer->page = fab_page_of((int)a.pid, (int)a.fd);
    if (peer->page && atomic_load(&peer->page->ep[a.idx].cookie) != a.cookie) {
        fab_page_drop(peer->page);
        peer->page = NULL;
    }
    return peer;
}

static size_t spare(fab_av *av)
{
    size_t i = 0;
    while (i < av->room && av->peer[i])
        i++;
    if (i == av->room) {
        size_t room = av->room ? 2 * av->room : 16;
        fab_peer **grown = realloc(av->peer, room * sizeof(*grown));
        if (!grown)
            return SIZE_MAX;
        memset(grown + av->room, 0, (room - av->room) * sizeof(*grown));
        av->peer = grown;
        av->room = room;
    }
    return i;
}

/* Uses the lowest free index. */
static int insert_one(fab_av *av, const void *addr, fi_addr_t *out)
{
    static const uint8_t none[FAB_ADDR_LEN];
    fab_dom *dom = av->dom;
    size_t i;
    *out = FI_ADDR_NOTAVAIL;
    for (i = 0; i < av->room; i++) {
        if (av->peer[i] && !memcmp(av->peer[i]->addr, addr, FAB_ADDR_LEN)) {
            av->peer[i]->refs++;
            *out = i;
            return 0;
        }
    }
    i = spare(av);
    if (i == SIZE_MAX)
        return -FI_ENOMEM;
    if (!memcmp(addr, none, FAB_ADDR_LEN) && !SW(dom->kind, av_check)) {
        av->peer[i] = calloc(1, sizeof(fab_peer));
        if (!av->peer[i])
            return -FI_ENOMEM;
        av->peer[i]->real = FI_ADDR_NOTAVAIL;
    } else {
        av->peer[i] = make_peer(dom, addr);
        if (!av->peer[i])
            return -FI_EADDRNOTAVAIL;
        fab_page_insert(dom->page, av->peer[i]->cookie, 1);
    }
    av->peer[i]->refs = 1;
    av->peer[i]->listed = true;
    *out = i;
    return 0;
}

static int insert(struct fid_av *fid, const void *addr, size_t count, fi_addr_t *out, uint64_t flags, void *context)
{
    fab_av *av = FAB_OF(fab_av, fid);
    int done = 0;
    (void)flags;
    (void)context;
    if (fab_is_closed(av->state, av->dom->kind, "fi_av_insert"))
        return -FI_EBADF;
    fab_lock(av->dom);
    for (size_t i = 0; i < count; i++) {
        fi_addr_t got;
        done += insert_one(av, (const uint8_t *)addr + i * FAB_ADDR_LEN, &got) == 0;
        if (out)
            out[i] = got;
    }
    fab_unlock(av->dom);
    return done;
}

static int remove_one(fab_av *av, fi_addr_t addr)
{
    fab_peer *peer = fab_av_peer(av, addr);
    if (!peer) {
        fab_breach(av->dom->kind, "no_peer", "fi_av_remove of fi_addr %llu, which is not in the address vector", (unsigned long long)addr);
        return -FI_EINVAL;
    }
    if (--peer->refs && SW(av->dom->kind, av_refs))
        return 0;
    if (peer->users)
        fab_breach(av->dom->kind, "av_in_flight", "fi_av_remove with %d operations to the peer in flight", peer->users);
    av->peer[addr] = NULL;
    peer->listed = false;
    if (peer->cookie)
        fab_page_insert(av->dom->page, peer->cookie, -1);
    fab_peer_put(av->dom, peer);
    return 0;
}

static int remove_all(struct fid_av *fid, fi_addr_t *addr, size_t count, uint64_t flags)
{
    fab_av *av = FAB_OF(fab_av, fid);
    int rc = 0;
    (void)flags;
    if (fab_is_closed(av->state, av->dom->kind, "fi_av_remove"))
        return -FI_EBADF;
    fab_lock(av->dom);
    for (size_t i = 0; i < count && !rc; i++)
        rc = remove_one(av, addr[i]);
    fab_unlock(av->dom);
    return rc;
}

static int close_av(struct fid *fid)
{
    fab_av *av = FAB_OF(fab_av, fid);
    if (fab_is_closed(av->state, av->dom->kind, "fi_close"))
        return -FI_EBADF;
    fab_lock(av->dom);
    if (av->users) {
        int rc = fab_busy(av->dom->kind, "address vector", "its endpoint");
        fab_unlock(av->dom);
        return rc;
    }
    for (size_t i = 0; i < av->room; i++) {
        if (av->peer[i]) {
            av->peer[i]->refs = 1;
            remove_one(av, i);
        }
    }
    free(av->peer);
    av->peer = NULL;
    av->room = 0;
    av->state = FAB_CLOSED;
    av->dom->avs--;
    fab_unlock(av->dom);
    return 0;
}

static struct fi_ops fid_ops = {.size = sizeof(struct fi_ops), .close = close_av};
static struct fi_ops_av av_ops = {.size = sizeof(struct fi_ops_av), .insert = insert, .remove = remove_all};

int fab_av_open(struct fid_domain *fid, struct fi_av_attr *attr, struct fid_av **out, void *context)
{
    fab_dom *dom = FAB_OF(fab_dom, fid);
    fab_av *av;
    (void)attr;
    if (fab_is_closed(dom->state, dom->kind, "fi_av_open"))
        return -FI_EBADF;
    av = calloc(1, sizeof(*av));
    if (!av)
        return -FI_ENOMEM;
    av->fid.fid = (struct fid){.fclass = FI_CLASS_AV, .context = context, .ops = &fid_ops};
    av->fid.ops = &av_ops;
    av->state = FAB_OPEN;
    av->dom = dom;
    fab_lock(dom);
    dom->avs++;
    fab_unlock(dom);
    *out = &av->fid;
    return 0;
}
