/* Fabrics and domains. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "fab.h"

/* Padded, because the attributes of libfabric after 1.17 are longer. */
union padded_cq_attr {
    struct fi_cq_attr v;
    unsigned char room[256];
};
union padded_av_attr {
    struct fi_av_attr v;
    unsigned char room[256];
};

uint64_t fab_next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (*state * UINT64_C(0x2545f4914f6cdd1d)) >> 16;
}

uint64_t fab_random(fab_dom *dom) { return fab_next_random(&dom->random); }

static int close_fabric(struct fid *fid)
{
    fab_fabric *fabric = FAB_OF(fab_fabric, fid);
    if (fab_is_closed(fabric->state, fabric->kind, "fi_close"))
        return -FI_EBADF;
    if (fabric->domains)
        return fab_busy(fabric->kind, "fabric", "its domains");
    fabric->state = FAB_CLOSED;
    return 0;
}

static struct fi_ops fabric_fid_ops = {.size = sizeof(struct fi_ops), .close = close_fabric};
static struct fi_ops_fabric fabric_ops = {
    .size = sizeof(struct fi_ops_fabric),
    .domain = fab_domain_open,
    .trywait = fab_trywait,
};

int fab_fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **out, void *context)
{
    const fab_config *config = fab_config_get();
    for (int k = 0; k < config->nkinds; k++) {
        int kind = config->kinds[k];
        fab_fabric *fabric;
        if (!attr || !attr->name || strcmp(attr->name, fab_fabric_name(kind)))
            continue;
        fabric = calloc(1, sizeof(*fabric));
        if (!fabric)
            return -FI_ENOMEM;
        fabric->fid.fid = (struct fid){.fclass = FI_CLASS_FABRIC, .context = context, .ops = &fabric_fid_ops};
        fabric->fid.ops = &fabric_ops;
        fabric->state = FAB_OPEN;
        fabric->kind = kind;
        *out = &fabric->fid;
        return 0;
    }
    return -FI_ENODATA;
}

static int close_real(fab_dom *dom)
{
    struct fid *const order[] = {
        dom->real_cq ? &dom->real_cq->fid : NULL,
        dom->real_av ? &dom->real_av->fid : NULL,
        dom->real ? &dom->real->fid : NULL,
        dom->real_fabric ? &dom->real_fabric->fid : NULL,
    };
    int first = 0;
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        int rc = order[i] ? fi_close(order[i]) : 0;
        if (rc && !first)
            first = rc;
    }
    if (first)
        fprintf(stderr, "fabric: closing the real domain: %d\n", first);
    if (dom->real_info)
        fab_real_get()->freeinfo(dom->real_info);
    fab_page_drop(dom->page);
    if (dom->page_fd >= 0)
        close(dom->page_fd);
    return first;
}

/* Frees the remaining operations. Their endpoints are closed already. */
static int close_domain(struct fid *fid)
{
    fab_dom *dom = FAB_OF(fab_dom, fid);
    if (fab_is_closed(dom->state, dom->kind, "fi_close"))
        return -FI_EBADF;
    fab_lock(dom);
    if (dom->eps || dom->cqs || dom->avs || dom->mrs) {
        int rc = fab_busy(dom->kind, "domain", dom->mrs ? "its regions" : dom->eps ? "its endpoints" : "its queues");
        fab_unlock(dom);
        return rc;
    }
    close_real(dom);
    while (dom->ops)
        fab_op_free(dom, dom->ops);
    dom->state = FAB_CLOSED;
    dom->fabric->domains--;
    fab_unlock(dom);
    return 0;
}

static struct fi_ops domain_fid_ops = {.size = sizeof(struct fi_ops), .close = close_domain};
static struct fi_ops_domain domain_ops = {
    .size = sizeof(struct fi_ops_domain),
    .av_open = fab_av_open,
    .cq_open = fab_cq_open,
    .endpoint = fab_ep_open,
};

/* Finds the epoll data of the real queue's signal in real_fd. Provider net never resets that signal. */
static int find_signal(fab_dom *dom)
{
    struct epoll_event ev[4];
    if (fi_cq_signal(dom->real_cq) || epoll_wait(dom->real_fd, ev, 4, 0) != 1)
        return -FI_EOPNOTSUPP;
    dom->signal_tag = ev[0].data.u64;
    return 0;
}

static int open_real(fab_dom *dom)
{
    const fab_config *config = fab_config_get();
    union padded_cq_attr cq;
    union padded_av_attr av;
    int rc;
    dom->real_info = fab_real_info(config->on[dom->rail % config->non]);
    if (!dom->real_info)
        return -FI_ENODEV;
    memset(&cq, 0, sizeof(cq));
    memset(&av, 0, sizeof(av));
    cq.v.size = 16384;
    cq.v.format = FI_CQ_FORMAT_MSG;
    cq.v.wait_obj = FI_WAIT_FD;
    rc = fab_real_get()->fabric(dom->real_info->fabric_attr, &dom->real_fabric, NULL);
    if (!rc)
        rc = fi_domain(dom->real_fabric, dom->real_info, &dom->real, NULL);
    if (!rc)
        rc = fi_av_open(dom->real, &av.v, &dom->real_av, NULL);
    if (!rc)
        rc = fi_cq_open(dom->real, &cq.v, &dom->real_cq, NULL);
    if (!rc)
        rc = fi_control(&dom->real_cq->fid, FI_GETWAIT, &dom->real_fd);
    if (!rc && fab_real_get()->lazy_sockets)
        rc = find_signal(dom);
    return rc;
}

/* CXI's authorization key. */
struct key {
    uint32_t service;
    uint16_t vni;
};

int fab_class_ok(int kind, uint32_t tclass)
{
    return kind == FAB_CXI && tclass != FI_TC_UNSPEC && (tclass < FI_TC_LABEL || tclass > FI_TC_SCAVENGER) ? -FI_EINVAL : 0;
}

/* Like cxi: the key has the right size, the device has the service, and the service allows the VNI. Other fabrics refuse keys. */
static int set_key(fab_dom *dom, const struct fi_domain_attr *attr)
{
    struct key key;
    if (!attr->auth_key)
        return attr->auth_key_size ? -FI_EINVAL : 0;
    if (dom->kind != FAB_CXI || attr->auth_key_size != sizeof(key))
        return -FI_EINVAL;
    memcpy(&key, attr->auth_key, sizeof(key));
    dom->service = key.service;
    dom->vni = key.vni;
    return (SW(FAB_CXI, service) && key.service != SW(FAB_CXI, service)) || (SW(FAB_CXI, vni) && key.vni != SW(FAB_CXI, vni)) ? -FI_EINVAL : 0;
}

int fab_domain_open(struct fid_fabric *fid, struct fi_info *info, struct fid_domain **out, void *context)
{
    fab_fabric *fabric = FAB_OF(fab_fabric, fid);
    static _Atomic uint64_t count;
    fab_dom *dom;
    int rc;
    if (fab_is_closed(fabric->state, fabric->kind, "fi_domain"))
        return -FI_EBADF;
    dom = calloc(1, sizeof(*dom));
    if (!dom)
        return -FI_ENOMEM;
    dom->fid.fid = (struct fid){.fclass = FI_CLASS_DOMAIN, .context = context, .ops = &domain_fid_ops};
    dom->fid.ops = &domain_ops;
    dom->fid.mr = &fab_mr_ops;
    dom->state = FAB_OPEN;
    dom->kind = fabric->kind;
    dom->rail = info->nic ? info->nic->bus_attr->attr.pci.bus_id - 0x3b : 0;
    dom->fabric = fabric;
    dom->random = ((uint64_t)SW(dom->kind, seed) + 1) * UINT64_C(0x9e3779b97f4a7c15) + atomic_fetch_add(&count, 1);
    dom->fail_random = dom->random;
    dom->tclass = info->domain_attr->tclass;
    dom->hmem = (info->caps & FI_HMEM) != 0;
    dom->one_thread = info->domain_attr->threading == FI_THREAD_DOMAIN;
    rc = set_key(dom, info->domain_attr);
    if (!rc)
        rc = fab_class_ok(dom->kind, dom->tclass);
    if (rc) {
        free(dom);
        return rc;
    }
    pthread_mutex_init(&dom->mu, NULL);
    dom->page = fab_page_new(&dom->page_fd);
    rc = dom->page ? open_real(dom) : -FI_ENOMEM;
    if (rc) {
        close_real(dom);
        free(dom);
        return rc;
    }
    fabric->domains++;
    *out = &dom->fid;
    return 0;
}
