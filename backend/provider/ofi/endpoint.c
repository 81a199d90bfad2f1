/* Endpoints: one per peer where that is cheap and a fence, else one per rail that all peers share. */
#include <netinet/in.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "ofi.h"

/* EFA: no CUDA calls and no detour through shared memory behind our back. Others don't know these: no harm. */
static void set_options(struct fid_ep *ep)
{
    const bool no = false;
    (void)fi_setopt(&ep->fid, FI_OPT_ENDPOINT, OFI_OPT_CUDA_API_PERMITTED, &no, sizeof(no));
    (void)fi_setopt(&ep->fid, FI_OPT_ENDPOINT, OFI_OPT_SHARED_MEMORY_PERMITTED, &no, sizeof(no));
}

/* Memory of GPUs is the device's own to move, or nobody's: a provider that copied it by way of the host's would call CUDA from our thread. One that
 * has no such option has no such detour either. */
static void set_p2p(ofi_rail *rail, struct fid_ep *ep)
{
    const int only = FI_HMEM_P2P_REQUIRED;
    int rc = fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &only, sizeof(only));
    rail->caps.no_p2p = rc == -FI_ENOPROTOOPT || rc == -FI_ENOSYS ? 0 : -ofi_errno(rc);
}

static int make(ofi_rail *rail, struct fi_info *info, struct fid_ep **out, const char **step)
{
    struct fid_ep *ep = NULL;
    int rc;

    *step = "fi_endpoint";
    rc = fi_endpoint(rail->domain, info, &ep, NULL);
    if (rc)
        return rc;
    if (!rail->quirks.per_peer)
        set_options(ep);
    if (rail->caps.hmem)
        set_p2p(rail, ep);
    *step = "fi_ep_bind (address vector)";
    rc = fi_ep_bind(ep, &rail->av->fid, 0);
    if (!rc) {
        *step = "fi_ep_bind (completion queue)";
        rc = fi_ep_bind(ep, &rail->cq->fid, FI_SEND | FI_RECV);
    }
    if (!rc) {
        *step = "fi_enable";
        rc = fi_enable(ep);
    }
    if (rc) {
        fi_close(&ep->fid);
        return rc;
    }
    *out = ep;
    return 0;
}

/* The ports of our choice are tried in turn: one that was used last is used last again. */
static int make_bound(ofi_rail *rail, struct fid_ep **out, const char **step)
{
    struct sockaddr_in *name = rail->bound->src_addr; /* the port is at the same place in both families */
    int rc = -FI_EADDRINUSE;
    for (unsigned i = rail->last_port - rail->first_port + 1u; i > 0 && rc == -FI_EADDRINUSE; i--) {
        name->sin_port = htons(rail->next_port);
        rail->next_port = rail->next_port == rail->last_port ? rail->first_port : (uint16_t)(rail->next_port + 1);
        rc = make(rail, rail->bound, out, step);
    }
    return rc;
}

int ofi_ep_make(ofi_rail *rail, struct fid_ep **out, const char **step)
{
    return rail->bound ? make_bound(rail, out, step) : make(rail, rail->info, out, step);
}

static void list(ofi_rail *rail, ofi_ep *ep)
{
    if ((ep->next = rail->eps))
        ep->next->prev = ep;
    rail->eps = ep;
}

static void unlist(ofi_rail *rail, ofi_ep *ep)
{
    if (ep->next)
        ep->next->prev = ep->prev;
    if (ep->prev)
        ep->prev->next = ep->next;
    else
        rail->eps = ep->next;
}

int ofi_ep_open(ofi_rail *rail, ofi_ep **out, void *addr, size_t *addr_len, const char **step)
{
    ofi_ep *ep = calloc(1, sizeof(*ep));
    int rc = 0;

    *step = "calloc";
    if (!ep)
        return -FI_ENOMEM;
    ep->peer = FI_ADDR_NOTAVAIL;
    ep->listener = -1;
    gr_rail_lock(&rail->base);
    int hint = rail->shared ? -1 : ofi_door_hint(rail);
    if (rail->shared)
        ep->ep = rail->shared;
    else
        rc = ofi_ep_make(rail, &ep->ep, step);
    if (!rc) {
        *step = "fi_getname";
        *addr_len = OFI_ADDR_MAX;
        rc = fi_getname(&ep->ep->fid, addr, addr_len);
        if (rc && !rail->shared)
            fi_close(&ep->ep->fid);
    }
    if (!rc) {
        rail->open_eps++;
        rail->addr_len = *addr_len;
        list(rail, ep);
        if (!rail->shared)
            ofi_door_fit(rail, ep, addr, *addr_len, hint);
    }
    gr_rail_unlock(&rail->base);
    if (rc) {
        free(ep);
        return ofi_errno(rc);
    }
    *out = ep;
    return 0;
}

/* The address's place in the address vector, with one user more. */
static int insert(ofi_rail *rail, const void *addr, ofi_peer **out)
{
    ofi_peer *p = rail->peers;
    while (p && (p->len != rail->addr_len || memcmp(p->bytes, addr, p->len) != 0))
        p = p->next;
    if (!p) {
        if (!(p = calloc(1, sizeof(*p) + rail->addr_len)))
            return -FI_ENOMEM;
        p->addr = FI_ADDR_NOTAVAIL;
        int rc = fi_av_insert(rail->av, addr, 1, &p->addr, 0, NULL);
        if (rc != 1 || p->addr == FI_ADDR_NOTAVAIL) {
            free(p);
            return rc < 0 ? rc : -FI_EADDRNOTAVAIL;
        }
        p->len = rail->addr_len;
        memcpy(p->bytes, addr, p->len);
        p->next = rail->peers;
        rail->peers = p;
    }
    p->users++;
    *out = p;
    return 0;
}

static void leave(ofi_rail *rail, ofi_peer *p)
{
    if (--p->users > 0)
        return;
    ofi_peer **at = &rail->peers;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    (void)fi_av_remove(rail->av, &p->addr, 1, 0);
    free(p);
}

/* Implements fi_av_insert. addr has the length of this rail's own addresses. -EISCONN when there is a peer already. */
int ofi_ep_connect(ofi_rail *rail, ofi_ep *ep, const void *addr)
{
    int rc = -FI_EISCONN;
    gr_rail_lock(&rail->base);
    if (!ep->at) {
        rc = insert(rail, addr, &ep->at);
        if (!rc)
            ep->peer = ep->at->addr;
    }
    gr_rail_unlock(&rail->base);
    return ofi_errno(rc);
}

/* Implements fi_close. What was posted comes out of the completion queue as ECANCELED, after this has returned. A shared
 * endpoint stays: the caller must have seen the completions of everything that it posted through ep. */
int ofi_ep_close(ofi_rail *rail, ofi_ep *ep)
{
    int rc = 0;
    ofi_sockets *all = NULL;
    if (!rail->shared)
        ofi_find_connections(rail, ep, &all);
    gr_rail_lock(&rail->base);
    if (!rail->shared) {
        ofi_door_shut(rail, ep);
        ofi_break_connections(rail, all);
        rc = fi_close(&ep->ep->fid);
    }
    if (!rc && ep->at)
        leave(rail, ep->at);
    if (!rc) {
        rail->open_eps--;
        unlist(rail, ep);
    }
    gr_rail_unlock(&rail->base);
    if (!rc)
        free(ep);
    return ofi_errno(rc);
}
