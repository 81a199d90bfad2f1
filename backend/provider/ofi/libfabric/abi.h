/* Structures that we allocate and libfabric reads or fills.
 *
 * They are declared by the headers of libfabric, of 1.11 (Ubuntu 22.04) or later. Some are longer in later releases (up to 2.6: fi_mr_attr 80 ->
 * 112 bytes, fi_cq_err_entry + src_addr, fi_cq_attr + xpu_ctx). So each is padded and zeroed here, and assertions
 * check the important offsets. Structures that libfabric allocates (fi_info) have only grown at the end. */
#ifndef GORAIL_OFI_ABI_H
#define GORAIL_OFI_ABI_H

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_rma.h>
#include <stddef.h>

#define OFI_PADDED(name, type)                                                                                                                       \
    union name {                                                                                                                                     \
        struct type v;                                                                                                                               \
        unsigned char room[256];                                                                                                                     \
    }

OFI_PADDED(ofi_mr_attr, fi_mr_attr);
OFI_PADDED(ofi_cq_attr, fi_cq_attr);
OFI_PADDED(ofi_av_attr, fi_av_attr);
OFI_PADDED(ofi_cq_err, fi_cq_err_entry);
OFI_PADDED(ofi_msg_rma, fi_msg_rma);
OFI_PADDED(ofi_msg, fi_msg);

#define OFI_AT(type, field, offset) _Static_assert(offsetof(struct type, field) == (offset), #type "." #field)

#if defined(__LP64__)
OFI_AT(fi_mr_attr, mr_iov, 0);
OFI_AT(fi_mr_attr, access, 16);
OFI_AT(fi_mr_attr, requested_key, 32);
OFI_AT(fi_mr_attr, iface, 64);
OFI_AT(fi_mr_attr, device, 72);
OFI_AT(fi_cq_err_entry, op_context, 0);
OFI_AT(fi_cq_err_entry, len, 16);
OFI_AT(fi_cq_err_entry, err, 56);
OFI_AT(fi_cq_err_entry, prov_errno, 60);
OFI_AT(fi_cq_err_entry, err_data_size, 72);
OFI_AT(fi_cq_attr, format, 16);
OFI_AT(fi_cq_attr, wait_obj, 20);
OFI_AT(fi_cq_attr, wait_set, 32);
OFI_AT(fi_av_attr, count, 8);
OFI_AT(fi_av_attr, flags, 40);
OFI_AT(fi_cq_msg_entry, len, 16);
OFI_AT(fi_msg_rma, addr, 24);
OFI_AT(fi_msg_rma, rma_iov, 32);
OFI_AT(fi_msg_rma, context, 48);
OFI_AT(fi_msg, addr, 24);
OFI_AT(fi_msg, context, 32);
OFI_AT(fi_rma_iov, key, 16);
OFI_AT(fi_info, tx_attr, 72);
OFI_AT(fi_info, nic, 112);
OFI_AT(fi_tx_attr, op_flags, 16);
OFI_AT(fi_tx_attr, msg_order, 24);
OFI_AT(fi_tx_attr, size, 48);
OFI_AT(fi_tx_attr, rma_iov_limit, 64);
OFI_AT(fi_tx_attr, tclass, 72);
OFI_AT(fi_ep_attr, protocol, 4);
OFI_AT(fi_ep_attr, max_msg_size, 16);
OFI_AT(fi_domain_attr, mr_mode, 36);
OFI_AT(fi_domain_attr, mr_key_size, 40);
OFI_AT(fi_domain_attr, auth_key, 152);
OFI_AT(fi_domain_attr, tclass, 184);
_Static_assert(sizeof(struct fi_cq_msg_entry) == 24, "fi_cq_msg_entry");
_Static_assert(sizeof(struct fi_rma_iov) == 24, "fi_rma_iov");
#endif
_Static_assert(sizeof(struct fi_context2) <= 64, "gr_ctx.scratch");

/* Options newer than the oldest headers (fi_endpoint.h of 2.x); older libraries return -FI_ENOPROTOOPT. */
enum {
    OFI_OPT_HMEM_P2P = 8,                 /* int, 1.14: FI_OPT_FI_HMEM_P2P */
    OFI_HMEM_P2P_REQUIRED = 1,            /* its value FI_HMEM_P2P_REQUIRED */
    OFI_OPT_CUDA_API_PERMITTED = 10,      /* bool, 1.18 */
    OFI_OPT_SHARED_MEMORY_PERMITTED = 11, /* bool, 1.19 */
    OFI_OPT_MAX_MSG_SIZE = 12,            /* size_t, 1.20 */
    OFI_OPT_MAX_RMA_SIZE = 14,            /* size_t, 1.20 */
};
/* EFA's own options, 1.18; bool. */
enum { OFI_OPT_EFA_EMULATED_READ = -(0xefa << 16) + 1, OFI_OPT_EFA_EMULATED_WRITE = -(0xefa << 16) + 2 };
_Static_assert(FI_OPT_RX_SIZE == 7, "option numbers");
#if FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION) >= FI_VERSION(1, 17)
_Static_assert(FI_OPT_FI_HMEM_P2P == 8 && FI_HMEM_P2P_REQUIRED == 1 && FI_OPT_XPU_TRIGGER == 9, "option numbers");
#endif

/* Registration by dmabuf, 1.20. Addresses of such a region begin at base + offset. */
#define OFI_MR_DMABUF (UINT64_C(1) << 40)
enum { OFI_API_DMABUF = FI_VERSION(1, 20) };
typedef struct ofi_mr_dmabuf {
    int fd;
    uint64_t offset;
    size_t len;
    void *base;
} ofi_mr_dmabuf;
_Static_assert(sizeof(ofi_mr_dmabuf) == 32 && offsetof(ofi_mr_dmabuf, base) == 24, "struct fi_mr_dmabuf");

/* Authorization key of CXI. */
typedef struct ofi_cxi_key {
    uint32_t svc_id;
    uint16_t vni;
} ofi_cxi_key;
_Static_assert(sizeof(ofi_cxi_key) == 8, "struct cxi_auth_key");

#endif
