/* Calls of libfabric that Go makes for set-up: symbols behind pointers, and calls that take structures of abi.h. */
#include <string.h>

#include "ofi.h"

uint32_t ofi_version(const ofi_lib *lib) { return lib->version(); }

int ofi_getinfo(const ofi_lib *lib, uint32_t api, uint64_t flags, const struct fi_info *hints, struct fi_info **list)
{
    return lib->getinfo(api, NULL, NULL, flags, hints, list);
}

void ofi_freeinfo(const ofi_lib *lib, struct fi_info *list) { lib->freeinfo(list); }

struct fi_info *ofi_dupinfo(const ofi_lib *lib, const struct fi_info *info) { return lib->dupinfo(info); }

int ofi_fabric(const ofi_lib *lib, struct fi_fabric_attr *attr, struct fid_fabric **out) { return lib->fabric(attr, out, NULL); }

const char *ofi_strerror(const ofi_lib *lib, int err) { return lib->strerror(err); }

int ofi_av_open(struct fid_domain *domain, struct fid_av **out)
{
    union ofi_av_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.v.type = FI_AV_UNSPEC;
    return fi_av_open(domain, &attr.v, out, NULL);
}

int ofi_cq_open(struct fid_domain *domain, size_t size, enum fi_wait_obj wait, struct fid_cq **out)
{
    union ofi_cq_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.v.size = size;
    attr.v.format = FI_CQ_FORMAT_MSG;
    attr.v.wait_obj = wait;
    return fi_cq_open(domain, &attr.v, out, NULL);
}

int ofi_cq_getwait(struct fid_cq *cq, int *fd) { return fi_control(&cq->fid, FI_GETWAIT, fd); }

const struct fi_pci_attr *ofi_pci(const struct fi_info *info)
{
    const struct fid_nic *nic = info->nic;
    return nic && nic->bus_attr && nic->bus_attr->bus_type == FI_BUS_PCI ? &nic->bus_attr->attr.pci : NULL;
}
