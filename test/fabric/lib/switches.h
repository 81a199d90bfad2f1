/* All rules of the imitated fabrics, with each fabric's values. GORAIL_FABRIC="kind=cxi,rails=4,seed=7" changes the values.
 * Beside the numbers below, GORAIL_FABRIC takes
 *   kind=efa|efa-direct|cxi   several separated by ':' (libfabric lists efa-direct and efa on one device)
 *   on=lo                     the interfaces of the rails, separated by ':', assigned in turn
 *   real=libfabric.so.1       the library that moves the bytes (with its provider net, or tcp of 2.x)
 */
#ifndef FAB_SWITCHES_H
#define FAB_SWITCHES_H

#include <stdint.h>

#define FAB_KIB(n) ((int64_t)(n) << 10)
#define FAB_GIB(n) ((int64_t)(n) << 30)

/* name, value for efa, efa-direct, cxi, effect */
#define FAB_SWITCHES(X)                                                                                                                              \
    X(rails, 1, 1, 1, "number of devices of the kind, at most 32")                                                                                  \
    X(seed, 1, 1, 1, "seed of every random choice below")                                                                                            \
    X(version, 0x20001, 0x20001, 0x20001, "result of fi_version: major << 16 | minor")                                                               \
    X(mr_local, 0, 1, 0, "FI_MR_LOCAL: a local buffer needs a descriptor, which is checked")                                                         \
    X(virt_addr, 1, 1, 0, "FI_MR_VIRT_ADDR: remote addresses are virtual; else offsets")                                                             \
    X(prov_key, 1, 1, 0, "FI_MR_PROV_KEY: the library chooses random keys; else the caller chooses")                                                 \
    X(mr_endpoint, 0, 0, 1, "FI_MR_ENDPOINT: a region has no key before bind and enable, and closes before its endpoint")                            \
    X(allocated, 1, 1, 1, "FI_MR_ALLOCATED: memory must be mapped at registration")                                                                  \
    X(key_size, 4, 4, 4, "bytes of a key; larger keys are refused")                                                                                  \
    X(mr_max, 0, 0, 0, "most regions of a domain, 0 = no limit")                                                                                     \
    X(context2, 0, 1, 0, "FI_CONTEXT2: the library owns 64 bytes at op_context until completion, overwrites and checks them")                        \
    X(directed, 1, 0, 1, "FI_DIRECTED_RECV is offered")                                                                                              \
    X(delivery, 1, 1, 1, "FI_DELIVERY_COMPLETE is offered")                                                                                          \
    X(iov, 4, 2, 1, "most local buffers of an operation")                                                                                            \
    X(rma_iov, 1, 1, 1, "most remote buffers of an operation")                                                                                       \
    X(msg_max, FAB_KIB(64), 8928, FAB_KIB(16), "most bytes of a message (the real efa has no limit)")                                                \
    X(rma_max, INT64_MAX, FAB_GIB(1), FAB_GIB(4) - 1, "most bytes of an RMA operation")                                                              \
    X(inject, 4096, 32, 192, "most bytes of an injected operation")                                                                                  \
    X(tx, 512, 512, 512, "most operations in flight on an endpoint, then -FI_EAGAIN")                                                                \
    X(rx, 1024, 1024, 1024, "most receives posted on an endpoint, then -FI_EAGAIN")                                                                  \
    X(tx_max, 0, 0, 16384, "the largest tx that fi_getinfo grants; 0 = tx")                                                                          \
    X(rx_max, 0, 0, 16384, "the largest rx that fi_getinfo grants; 0 = rx")                                                                          \
    X(cq_max, 32768, 32768, 65536, "most entries of a completion queue")                                                                             \
    X(wait_fd, 0, 0, 1, "1: FI_WAIT_FD and fi_trywait work (the real EFA has them since 2.4)")                                                       \
    X(imm, 0, 0, 0, "no effect: writes with immediate data are always refused")                                                                      \
    X(cancel, 0, 0, 0, "1: fi_cancel cancels a receive; 0: -FI_ENOSYS")                                                                              \
    X(shuffle, 8, 8, 8, "number of operations held back to be reordered, completions are reordered too; 0 = all in order")                           \
    X(hold, 3, 3, 3, "most polls that an operation or completion is held back")                                                                      \
    X(late, 32, 32, 32, "most polls until the data of a WRITE without FI_DELIVERY_COMPLETE lands")                                                   \
    X(order_sas, 0, 0, 0, "1: messages arrive in the order of sending, even with shuffle")                                                           \
    X(unknown_peer, 0, 1, 0, "1: operations fail unless the target has inserted the initiator's address")                                            \
    X(rnr_ms, 0, 500, 0, "ms that a message waits for a receive before the SEND fails; 0 = without end")                                             \
    X(av_refs, 0, 0, 1, "1: an address inserted twice must be removed twice; 0: the first removal counts")                                           \
    X(av_check, 1, 1, 0, "1: fi_av_insert refuses an address of zeros")                                                                              \
    X(addr_ip, 0, 0, 0, "1: endpoint addresses begin like a struct sockaddr_in")                                                                     \
    X(close_order, 1, 1, 1, "1: closing an object in use gives -FI_EBUSY")                                                                           \
    X(service, 0, 0, 0, "the only CXI service id of the device, 0 = any; fi_domain refuses others")                                                  \
    X(vni, 0, 0, 0, "the only VNI that the service allows, 0 = any")                                                                                 \
    X(classes, 15, 15, 15, "traffic classes that the CXI service allows, 1 << (class - FI_TC_LABEL); fi_enable refuses others")                      \
    X(hmem, 1, 1, 1, "1: FI_HMEM is offered to callers with FI_HMEM and FI_MR_HMEM in the hints")                                                    \
    X(p2p, 1, 1, 1, "1: devices access GPU memory; 0: FI_OPT_FI_HMEM_P2P refuses FI_HMEM_P2P_REQUIRED; 2: the option does not exist")                \
    X(mr_dmabuf, 1, 1, 1, "1: registration with FI_MR_DMABUF works; 0: -FI_ENOSYS")                                                                  \
    X(mr_cuda, 1, 1, 1, "1: registration by address with FI_HMEM_CUDA works, with GORAIL_FABRIC_CUDA; 0: -FI_EFAULT, as without nvidia_peermem")     \
    X(emulated, 0, 0, 0, "efa only: 1 READ is emulated, 2 WRITE, 3 both; the endpoint's options report that")                                        \
    X(api_min, 0x10012, 0x10012, 0, "fi_getinfo with an older API version is a breach, because the real provider then disables device RDMA")         \
    X(mbps, 0, 0, 0, "most Mbit/s that a device opened by a process reads and writes, 0 = no limit")                                                \
    X(fail_at, 0, 0, 0, "the n-th operation posted to a domain fails, 0 = none")                                                                     \
    X(fail_sends, 0, 0, 0, "n: a SEND fails with probability 1/n, 0 = none")                                                                         \
    X(fail_lands, 0, 0, 0, "1: half of those SENDs arrive")                                                                                          \
    X(fail_errno, 5, 5, 5, "error of these failures")                                                                                                \
    X(fail_prov, 13, 13, 5, "provider error of these failures")                                                                                      \
    X(abort, 0, 0, 0, "abort() at a breach")

#define FAB_ENUM(name, efa, direct, cxi, what) SW_##name,
enum { FAB_SWITCHES(FAB_ENUM) SW_COUNT };

enum { FAB_EFA, FAB_DIRECT, FAB_CXI, FAB_KINDS };

typedef struct fab_config {
    int64_t value[FAB_KINDS][SW_COUNT];
    int kinds[FAB_KINDS], nkinds;
    char on[8][32];
    int non;
    char real[512];
    char error[256]; /* names the unknown switch or bad value, or "" */
} fab_config;

/* The configuration, read once from the environment. */
const fab_config *fab_config_get(void);

#define SW(kind, name) (fab_config_get()->value[kind][SW_##name])

#endif
