/* Endpoints. */
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "address.h"
#include "fab.h"

/* Endpoint options of libfabric 2.x. */
enum {
    OPT_CUDA = 10,
    OPT_SHARED_MEMORY = 11,
    OPT_MAX_MSG_SIZE = 12,
    OPT_MAX_RMA_SIZE = 14,
    OPT_EMULATED_READ = -(0xefa << 16) + 1,
    OPT_EMULATED_WRITE = -(0xefa << 16) + 2,
};

static int close_ep(struct fid *fid)
{
    fab_ep *ep = FAB_OF(fab_ep, fid);
    fab_dom *dom = ep->dom;
    int rc = 0;
    if (fab_is_closed(ep->state, dom->kind, "fi_close"))
        return -FI_EBADF;
    fab_lock(dom);
    if (ep->mrs)
        rc = fab_busy(dom->kind, "endpoint", "its regions");
    if (!rc) {
        atomic_store(&dom->page->ep[ep->idx].cookie, 0);
        atomic_store(&dom->page->ep[ep->idx].receives, 0);
        for (int i = 0; i < FAB_PEERS; i++)
            atomic_store(&dom->page->peer[i].receives[ep->idx], 0);
        fab_op_drop(ep);
        if (ep->real)
            fi_close(&ep->real->fid);
        ep->recvs = ep->recvs_last = NULL;
        if (ep->av)
            ep->av->users--;
        if (ep->tx_cq)
            ep->tx_cq->users--;
        if (ep->rx_cq)
            ep->rx_cq->users--;
        ep->state = FAB_CLOSED;
        dom->ep[ep->idx] = NULL;
        dom->eps--;
    }
    fab_unlock(dom);
    return rc;
}

static int bind_ep(struct fid *fid, struct fid *to, uint64_t flags)
{
    fab_ep *ep = FAB_OF(fab_ep, fid);
    if (to->fclass == FI_CLASS_AV && !ep->av) {
        ep->av = FAB_OF(fab_av, to);
        ep->av->users++;
        return 0;
    }
    if (to->fclass != FI_CLASS_CQ)
        return -FI_EINVAL;
    if (flags & FI_TRANSMIT) {
        ep->tx_cq = FAB_OF(fab_cq, to);
        ep->tx_cq->users++;
    }
    if (flags & FI_RECV) {
        ep->rx_cq = FAB_OF(fab_cq, to);
        ep->rx_cq->users++;
    }
    return 0;
}

static int make_address(fab_ep *ep)
{
    struct sockaddr_in sin;
    size_t len = sizeof(sin);
    int kind = ep->dom->kind, rc = fi_getname(&ep->real->fid, &sin, &len);
    fab_address a = {
        .kind = (uint8_t)kind,
        .idx = (uint8_t)ep->idx,
        .pid = (uint32_t)fab_own_pid(),
        .cookie = ep->cookie,
        .fd = (uint32_t)ep->dom->page_fd,
    };
    if (rc)
        return rc;
    a.ip = sin.sin_addr.s_addr;
    a.port = sin.sin_port;
    memcpy(a.head, SW(kind, addr_ip) ? "\x02\x00" : "\xfe\x80", 2);
    a.check = fab_address_check(&a);
    memcpy(ep->addr, &a, sizeof(a));
    return 0;
}

static int enable(fab_ep *ep)
{
    fab_dom *dom = ep->dom;
    int rc;
    if (ep->enabled || !ep->av || !ep->tx_cq || !ep->rx_cq)
        return -FI_EOPBADSTATE;
    if (dom->kind == FAB_CXI && !(SW(FAB_CXI, classes) >> (ep->tclass ? ep->tclass - FI_TC_LABEL : 0) & 1))
        return -FI_EINVAL; /* efa accepts any class, and uses its own service level if the class is not available */
    rc = fi_endpoint(dom->real, dom->real_info, &ep->real, NULL);
    if (!rc)
        rc = fi_ep_bind(ep->real, &dom->real_av->fid, 0);
    if (!rc)
        rc = fi_ep_bind(ep->real, &dom->real_cq->fid, FI_TRANSMIT | FI_RECV);
    if (!rc)
        rc = fi_enable(ep->real);
    if (!rc)
        rc = make_address(ep);
    if (rc)
        return rc;
    atomic_store(&dom->page->ep[ep->idx].receives, 0);
    atomic_store(&dom->page->ep[ep->idx].cookie, ep->cookie);
    ep->enabled = true;
    fab_opened(ep);
    return 0;
}

static int control(struct fid *fid, int command, void *arg)
{
    fab_ep *ep = FAB_OF(fab_ep, fid);
    int rc;
    (void)arg;
    if (fab_is_closed(ep->state, ep->dom->kind, "fi_enable"))
        return -FI_EBADF;
    if (command != FI_ENABLE)
        return -FI_ENOSYS;
    fab_lock(ep->dom);
    rc = enable(ep);
    fab_unlock(ep->dom);
    return rc;
}

static int getname_ep(fid_t fid, void *addr, size_t *len)
{
    fab_ep *ep = FAB_OF(fab_ep, fid);
    size_t room = *len;
    if (fab_is_closed(ep->state, ep->dom->kind, "fi_getname"))
        return -FI_EBADF;
    if (!ep->enabled)
        return -FI_EOPBADSTATE;
    *len = FAB_ADDR_LEN;
    memcpy(addr, ep->addr, room < FAB_ADDR_LEN ? room : FAB_ADDR_LEN);
    return room < FAB_ADDR_LEN ? -FI_ETOOSMALL : 0;
}

static int getopt_ep(fid_t fid, int level, int name, void *value, size_t *len)
{
    fab_ep *ep = FAB_OF(fab_ep, fid);
    size_t v;
    if (level == FI_OPT_ENDPOINT && ep->dom->kind != FAB_CXI && (name == OPT_EMULATED_READ || name == OPT_EMULATED_WRITE)) {
        if (*len < sizeof(bool))
            return -FI_ETOOSMALL;
        *(bool *)value = ep->dom->kind == FAB_EFA && (SW(FAB_EFA, emulated) & (name == OPT_EMULATED_READ ? 1 : 2));
        *len = sizeof(bool);
        return 0;
    }
    if (level != FI_OPT_ENDPOINT || ep->dom->kind == FAB_CXI || (name != OPT_MAX_MSG_SIZE && name != OPT_MAX_RMA_SIZE))
        return -FI_ENOPROTOOPT;
    if (*len < sizeof(v))
        return -FI_ETOOSMALL;
    v = (size_t)(name == OPT_MAX_MSG_SIZE ? SW(ep->dom->kind, msg_max) : SW(ep->dom->kind, rma_max));
    memcpy(value, &v, sizeof(v));
    *len = sizeof(v);
    return 0;
}

static int setopt_ep(fid_t fid, int level, int name, const void *value, size_t len)
{
    fab_ep *ep = FAB_OF(fab_ep, fid);
    if (level == FI_OPT_ENDPOINT && name == FI_OPT_FI_HMEM_P2P && SW(ep->dom->kind, p2p) != 2) {
        if (!ep->dom->hmem || len != sizeof(int))
            return -FI_EINVAL;
        return *(const int *)value == FI_HMEM_P2P_REQUIRED && !SW(ep->dom->kind, p2p) ? -FI_EOPNOTSUPP : 0;
    }
    if (level != FI_OPT_ENDPOINT || ep->dom->kind == FAB_CXI || (name != OPT_CUDA && name != OPT_SHARED_MEMORY))
        return -FI_ENOPROTOOPT;
    return len == sizeof(bool) ? 0 : -FI_EINVAL;
}

static struct fi_ops fid_ops = {
    .size = sizeof(struct fi_ops),
    .close = close_ep,
    .bind = bind_ep,
    .control = control,
};
static struct fi_ops_ep ep_ops = {
    .size = sizeof(struct fi_ops_ep),
    .cancel = fab_cancel,
    .getopt = getopt_ep,
    .setopt = setopt_ep,
};
static struct fi_ops_cm cm_ops = {.size = sizeof(struct fi_ops_cm), .getname = getname_ep};

int fab_ep_open(struct fid_domain *fid, struct fi_info *info, struct fid_ep **out, void *context)
{
    fab_dom *dom = FAB_OF(fab_dom, fid);
    uint32_t idx = 0;
    fab_ep *ep;
    if (fab_is_closed(dom->state, dom->kind, "fi_endpoint"))
        return -FI_EBADF;
    if (fab_class_ok(dom->kind, info->tx_attr->tclass))
        return -FI_EINVAL;
    ep = calloc(1, sizeof(*ep));
    if (!ep)
        return -FI_ENOMEM;
    fab_lock(dom);
    while (idx < FAB_EPS && dom->ep[idx])
        idx++;
    if (idx < FAB_EPS) {
        dom->ep[idx] = ep;
        dom->eps++;
    }
    /* Unique on the host, independent of the seed. */
    ep->cookie = fab_now() << 20 ^ (uint64_t)fab_own_pid() << 44 ^ (uint64_t)(uintptr_t)ep >> 4;
    fab_unlock(dom);
    if (idx == FAB_EPS) {
        free(ep);
        return -FI_ENOSPC;
    }
    ep->fid.fid = (struct fid){.fclass = FI_CLASS_EP, .context = context, .ops = &fid_ops};
    ep->fid.ops = &ep_ops;
    ep->fid.cm = &cm_ops;
    ep->fid.msg = &fab_msg_ops;
    ep->fid.rma = &fab_rma_ops;
    ep->state = FAB_OPEN;
    ep->dom = dom;
    ep->idx = idx;
    ep->caps = info->caps;
    ep->tclass = info->tx_attr->tclass ? info->tx_attr->tclass : dom->tclass;
    ep->tx = info->tx_attr->size;
    ep->rx = info->rx_attr->size;
    ep->tx_flags = info->tx_attr ? info->tx_attr->op_flags : 0;
    *out = &ep->fid;
    return 0;
}
