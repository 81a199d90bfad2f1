/* fi_getinfo. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "fab.h"

const char *fab_prov_name(int kind) { return kind == FAB_CXI ? "cxi" : "efa"; }

const char *fab_fabric_name(int kind) { return kind == FAB_CXI ? "cxi" : kind == FAB_EFA ? "efa" : "efa-direct"; }

static uint64_t caps_of(int kind)
{
    return FI_MSG | FI_RMA | FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_LOCAL_COMM | FI_REMOTE_COMM |
           (SW(kind, directed) ? FI_DIRECTED_RECV : 0) | (SW(kind, hmem) ? FI_HMEM : 0);
}

static int mr_mode_of(int kind)
{
    return (SW(kind, mr_local) ? FI_MR_LOCAL : 0) | (SW(kind, virt_addr) ? FI_MR_VIRT_ADDR : 0) | (SW(kind, prov_key) ? FI_MR_PROV_KEY : 0) |
           (SW(kind, mr_endpoint) ? FI_MR_ENDPOINT : 0) | (SW(kind, allocated) ? FI_MR_ALLOCATED : 0);
}

static uint64_t order_of(int kind) { return kind == FAB_DIRECT ? 0 : FI_ORDER_SAS; }

static uint64_t op_flags(int kind) { return FI_INJECT | FI_COMPLETION | FI_TRANSMIT_COMPLETE | (SW(kind, delivery) ? FI_DELIVERY_COMPLETE : 0); }

static int close_nic(struct fid *fid)
{
    struct fid_nic *nic = FAB_OF(struct fid_nic, fid);
    free(nic->device_attr->name);
    free(nic->device_attr);
    free(nic->bus_attr);
    free(nic->link_attr);
    free(nic);
    return 0;
}

static struct fi_ops nic_ops = {.size = sizeof(struct fi_ops), .close = close_nic};

static struct fid_nic *make_nic(int kind, int rail)
{
    struct fid_nic *nic = calloc(1, sizeof(*nic));
    char name[32];
    nic->fid.fclass = FI_CLASS_NIC;
    nic->fid.ops = &nic_ops;
    nic->device_attr = calloc(1, sizeof(*nic->device_attr));
    nic->bus_attr = calloc(1, sizeof(*nic->bus_attr));
    nic->link_attr = calloc(1, sizeof(*nic->link_attr));
    snprintf(name, sizeof(name), kind == FAB_CXI ? "cxi%d" : "rdmap%d", rail);
    nic->device_attr->name = strdup(name);
    nic->bus_attr->bus_type = FI_BUS_PCI;
    nic->bus_attr->attr.pci.bus_id = (uint8_t)(0x3b + rail);
    nic->link_attr->speed = kind == FAB_CXI ? 200000000000u : 100000000000u;
    nic->link_attr->mtu = (size_t)SW(kind, msg_max);
    nic->link_attr->state = FI_LINK_UP;
    return nic;
}

static struct fi_info *make_info(int kind, int rail)
{
    struct fi_info *info = fab_real_get()->dupinfo(NULL);
    char name[32];
    snprintf(name, sizeof(name), kind == FAB_CXI ? "cxi%d" : "rdmap%d-rdm", rail);
    info->caps = caps_of(kind);
    info->mode = SW(kind, context2) ? FI_CONTEXT2 : 0;
    info->addr_format = kind == FAB_CXI ? FI_ADDR_CXI : FI_ADDR_EFA;
    info->src_addrlen = FAB_ADDR_LEN;
    info->src_addr = calloc(1, FAB_ADDR_LEN);
    memcpy(info->src_addr, "\xfe\x80", 2);
    *info->tx_attr = (struct fi_tx_attr){
        .caps = info->caps,
        .mode = info->mode,
        .op_flags = op_flags(kind),
        .msg_order = order_of(kind),
        .inject_size = (size_t)SW(kind, inject),
        .size = (size_t)SW(kind, tx),
        .iov_limit = (size_t)SW(kind, iov),
        .rma_iov_limit = (size_t)SW(kind, rma_iov),
    };
    *info->rx_attr = (struct fi_rx_attr){
        .caps = info->caps,
        .mode = info->mode,
        .op_flags = FI_COMPLETION,
        .msg_order = order_of(kind),
        .size = (size_t)SW(kind, rx),
        .iov_limit = (size_t)SW(kind, iov),
    };
    info->ep_attr->type = FI_EP_RDM;
    info->ep_attr->protocol = kind == FAB_CXI ? FI_PROTO_CXI : FI_PROTO_EFA;
    info->ep_attr->protocol_version = 1;
    info->ep_attr->max_msg_size = (size_t)SW(kind, rma_max);
    info->ep_attr->tx_ctx_cnt = info->ep_attr->rx_ctx_cnt = 1;
    info->domain_attr->name = strdup(name);
    info->domain_attr->threading = FI_THREAD_SAFE;
    info->domain_attr->control_progress = info->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    info->domain_attr->resource_mgmt = FI_RM_ENABLED;
    info->domain_attr->av_type = FI_AV_TABLE;
    info->domain_attr->mr_mode = mr_mode_of(kind);
    info->domain_attr->mr_key_size = (size_t)SW(kind, key_size);
    info->domain_attr->cq_cnt = 32;
    info->domain_attr->ep_cnt = FAB_EPS;
    info->domain_attr->mr_iov_limit = 1;
    info->fabric_attr->name = strdup(fab_fabric_name(kind));
    info->fabric_attr->prov_name = strdup(fab_prov_name(kind));
    info->nic = make_nic(kind, rail);
    return info;
}

static size_t granted(int64_t by_itself, int64_t most) { return (size_t)(most ? most : by_itself); }

static bool named(const char *wanted, const char *have) { return !wanted || !strcasecmp(wanted, have); }

/* Like the real providers: required modes must be in the hints, and requested capabilities must be offered. */
static bool fits(const struct fi_info *hints, const struct fi_info *info, int kind)
{
    if (!hints)
        return true;
    if ((hints->caps & ~info->caps) || (info->mode & ~hints->mode))
        return false;
    if ((hints->caps & FI_HMEM) && !(hints->domain_attr && (hints->domain_attr->mr_mode & FI_MR_HMEM)))
        return false;
    if (hints->addr_format != FI_FORMAT_UNSPEC && hints->addr_format != info->addr_format)
        return false;
    if (hints->ep_attr && hints->ep_attr->type != FI_EP_UNSPEC && hints->ep_attr->type != FI_EP_RDM)
        return false;
    if (hints->ep_attr && hints->ep_attr->max_msg_size > info->ep_attr->max_msg_size)
        return false;
    if (hints->domain_attr &&
        ((info->domain_attr->mr_mode & ~hints->domain_attr->mr_mode) || !named(hints->domain_attr->name, info->domain_attr->name)))
        return false;
    if (hints->domain_attr && hints->domain_attr->threading == FI_THREAD_ENDPOINT)
        return false;
    if (hints->fabric_attr && (!named(hints->fabric_attr->prov_name, fab_prov_name(kind)) || !named(hints->fabric_attr->name, fab_fabric_name(kind))))
        return false;
    if (hints->tx_attr && ((hints->tx_attr->op_flags & ~op_flags(kind)) || (hints->tx_attr->msg_order & ~order_of(kind)) ||
                           hints->tx_attr->size > granted(SW(kind, tx), SW(kind, tx_max)) || hints->tx_attr->iov_limit > info->tx_attr->iov_limit ||
                           hints->tx_attr->inject_size > info->tx_attr->inject_size))
        return false;
    return !hints->rx_attr || hints->rx_attr->size <= granted(SW(kind, rx), SW(kind, rx_max));
}

/* Narrows the entry to the hints: FI_HMEM, and FI_DIRECTED_RECV if the hints have caps, only on request; op_flags, msg_order, depths and
 * threading as in the hints. No provider copies the traffic class. */
static void narrow(struct fi_info *info, const struct fi_info *hints)
{
    if (hints && hints->caps)
        info->caps = info->tx_attr->caps = info->rx_attr->caps = hints->caps | (info->caps & ~(FI_DIRECTED_RECV | FI_HMEM));
    else
        info->caps &= ~FI_HMEM;
    if (info->caps & FI_HMEM)
        info->domain_attr->mr_mode |= FI_MR_HMEM;
    info->tx_attr->op_flags = hints && hints->tx_attr ? hints->tx_attr->op_flags : 0;
    info->tx_attr->msg_order = hints && hints->tx_attr ? hints->tx_attr->msg_order : 0;
    info->rx_attr->msg_order = hints && hints->rx_attr ? hints->rx_attr->msg_order : 0;
    if (hints && hints->tx_attr && hints->tx_attr->size)
        info->tx_attr->size = hints->tx_attr->size;
    if (hints && hints->rx_attr && hints->rx_attr->size)
        info->rx_attr->size = hints->rx_attr->size;
    if (hints && hints->domain_attr && hints->domain_attr->threading)
        info->domain_attr->threading = hints->domain_attr->threading;
}

int fab_getinfo(uint32_t version, uint64_t flags, const struct fi_info *hints, struct fi_info **out)
{
    const fab_config *config = fab_config_get();
    struct fi_info **last = out;
    *out = NULL;
    if (config->error[0]) {
        fprintf(stderr, "%s\n", config->error);
        return -FI_EINVAL;
    }
    if (!fab_real_get())
        return -FI_ENODATA;
    for (int k = 0; k < config->nkinds; k++) {
        int kind = config->kinds[k];
        for (int rail = 0; rail < SW(kind, rails) && rail < 32; rail++) {
            struct fi_info *info = make_info(kind, rail);
            if (!(flags & FI_PROV_ATTR_ONLY)) {
                if (!fits(hints, info, kind)) {
                    fab_real_get()->freeinfo(info);
                    continue;
                }
                narrow(info, hints);
            }
            info->fabric_attr->api_version = version;
            *last = info;
            last = &info->next;
        }
        if (*out && version < SW(kind, api_min) && !(flags & FI_PROV_ATTR_ONLY))
            fab_breach(kind, "api", "fi_getinfo with version %u.%u", version >> 16, version & 0xffff);
    }
    return *out ? 0 : -FI_ENODATA;
}
