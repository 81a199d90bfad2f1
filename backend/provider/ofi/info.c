/* What a loaded libfabric offers, and what it is asked for. */
#include <rdma/fi_errno.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "ofi.h"

static struct fi_info *make_hints(ofi_lib *lib, const char *prov, int want, const ofi_asked *asked)
{
    struct fi_info *hints = lib->dupinfo(NULL);
    if (!hints)
        return NULL;
    hints->caps = FI_RMA | FI_MSG;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    hints->domain_attr->threading = asked->thread_domain ? FI_THREAD_DOMAIN : FI_THREAD_SAFE;
    hints->domain_attr->tclass = hints->tx_attr->tclass = asked->tclass;
    hints->tx_attr->size = asked->tx_depth;
    hints->rx_attr->size = asked->rx_depth;
    if (want & OFI_WANT_DELIVERY)
        hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    if (want & OFI_WANT_HMEM) {
        hints->caps |= FI_HMEM;
        hints->domain_attr->mr_mode |= FI_MR_HMEM; /* as all memory is: registered */
    }
    hints->fabric_attr->prov_name = strdup(prov); /* freed by fi_freeinfo */
    if (!hints->fabric_attr->prov_name) {
        lib->freeinfo(hints);
        return NULL;
    }
    return hints;
}

int ofi_getinfo(ofi_lib *lib, const char *prov, int want, const ofi_asked *asked, struct fi_info **list)
{
    struct fi_info *hints = make_hints(lib, prov, want, asked);
    int rc;
    *list = NULL;
    if (!hints)
        return -FI_ENOMEM;
    rc = lib->getinfo(lib->api, NULL, NULL, 0, hints, list);
    lib->freeinfo(hints);
    /* No provider takes the class over from the hints; domains and endpoints are opened with what is in here. */
    for (struct fi_info *p = rc ? NULL : *list; p && asked->tclass; p = p->next)
        p->domain_attr->tclass = p->tx_attr->tclass = asked->tclass;
    return rc;
}

/* Endpoints inherit it from their domain. fi_freeinfo frees it. */
int ofi_set_key(struct fi_info *info, uint32_t service, uint16_t vni)
{
    ofi_cxi_key *key = calloc(1, sizeof(*key));
    if (!key)
        return -FI_ENOMEM;
    key->svc_id = service;
    key->vni = vni;
    free(info->domain_attr->auth_key);
    info->domain_attr->auth_key = (uint8_t *)key;
    info->domain_attr->auth_key_size = sizeof(*key);
    return 0;
}

void ofi_describe(const struct fi_info *info, ofi_desc *out)
{
    memset(out, 0, sizeof(*out));
    out->provider = info->fabric_attr->prov_name;
    out->fabric = info->fabric_attr->name;
    out->domain = info->domain_attr->name;
    out->src = info->src_addr;
    out->src_len = info->src_addr ? info->src_addrlen : 0;
    out->protocol = info->ep_attr->protocol;
    out->ip = info->addr_format == FI_SOCKADDR || info->addr_format == FI_SOCKADDR_IN || info->addr_format == FI_SOCKADDR_IN6;
    out->max_msg = info->ep_attr->max_msg_size;
    out->tx_depth = info->tx_attr->size;
    out->rx_depth = info->rx_attr->size;
    if (!info->nic)
        return;
    if (info->nic->device_attr)
        out->nic = info->nic->device_attr->name;
    if (info->nic->link_attr)
        out->link_bps = info->nic->link_attr->speed;
    if (info->nic->bus_attr && info->nic->bus_attr->bus_type == FI_BUS_PCI) {
        const struct fi_pci_attr *pci = &info->nic->bus_attr->attr.pci;
        out->has_pci = 1;
        out->pci[0] = pci->domain_id;
        out->pci[1] = pci->bus_id;
        out->pci[2] = pci->device_id;
        out->pci[3] = pci->function_id;
    }
}

/* Implements fi_freeinfo. */
void ofi_freeinfo(ofi_lib *lib, struct fi_info *list)
{
    if (list)
        lib->freeinfo(list);
}

/* Implements fi_strerror; err is positive. */
const char *ofi_strerror(ofi_lib *lib, int err)
{
    return lib->strerror(err);
}
