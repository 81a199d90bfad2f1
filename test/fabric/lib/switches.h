/* Every rule of the imitated fabrics, with the value that each fabric has. GORAIL_FABRIC="kind=cxi,rails=4,seed=7" changes
 * them; beside the numbers below it takes
 *   kind=efa|efa-direct|cxi   several with ':' between (libfabric lists efa-direct and efa on one device)
 *   on=lo                     the interfaces under the rails, ':' between, taken in turn
 *   real=libfabric.so.1       the library that moves the bytes (its provider net, or tcp of 2.x)
 */
#ifndef FAB_SWITCHES_H
#define FAB_SWITCHES_H

#include <stdint.h>

#define FAB_KIB(n) ((int64_t)(n) << 10)
#define FAB_GIB(n) ((int64_t)(n) << 30)

/* name, efa, efa-direct, cxi, what it does */
#define FAB_SWITCHES(X) \
    X(rails, 1, 1, 1, "devices of the kind, up to 4") \
    X(seed, 1, 1, 1, "of every choice below that is made by chance") \
    X(version, 0x20001, 0x20001, 0x20001, "what fi_version tells: major << 16 | minor") \
    X(mr_local, 0, 1, 0, "FI_MR_LOCAL: local buffers need a descriptor, which is checked") \
    X(virt_addr, 1, 1, 0, "FI_MR_VIRT_ADDR: remote addresses are virtual; else offsets") \
    X(prov_key, 1, 1, 0, "FI_MR_PROV_KEY: random keys of ours; else the caller's") \
    X(mr_endpoint, 0, 0, 1, "FI_MR_ENDPOINT: no key before bind and enable; regions close before their endpoint") \
    X(allocated, 1, 1, 1, "FI_MR_ALLOCATED: memory must be mapped when it is registered") \
    X(key_size, 4, 4, 4, "bytes of a key; larger ones are refused") \
    X(mr_max, 0, 0, 0, "regions of a domain, 0 = no limit") \
    X(context2, 0, 1, 0, "FI_CONTEXT2: 64 bytes at op_context are ours until completion, scribbled and checked") \
    X(directed, 1, 0, 1, "FI_DIRECTED_RECV is offered") \
    X(delivery, 1, 1, 1, "FI_DELIVERY_COMPLETE is offered") \
    X(iov, 4, 2, 1, "local pieces of an operation") \
    X(rma_iov, 1, 1, 1, "remote pieces of an operation") \
    X(msg_max, FAB_KIB(64), 8928, FAB_KIB(16), "bytes of a message (efa itself has no limit, this library has)") \
    X(rma_max, INT64_MAX, FAB_GIB(1), FAB_GIB(4) - 1, "bytes of an RMA operation") \
    X(inject, 4096, 32, 192, "bytes of an injected operation") \
    X(tx, 512, 512, 512, "operations in flight on an endpoint, then -FI_EAGAIN") \
    X(rx, 1024, 1024, 1024, "receives posted on an endpoint, then -FI_EAGAIN") \
    X(tx_max, 0, 0, 16384, "the largest tx that fi_getinfo grants; 0 = tx") \
    X(rx_max, 0, 0, 16384, "the largest rx that it grants; 0 = rx") \
    X(cq_max, 32768, 32768, 65536, "largest completion queue") \
    X(wait_fd, 0, 0, 1, "FI_WAIT_FD and fi_trywait work (on EFA only from 2.4 on)") \
    X(imm, 0, 0, 0, "nothing: writes with immediate data are always refused") \
    X(cancel, 0, 0, 0, "fi_cancel withdraws a receive; else -FI_ENOSYS") \
    X(shuffle, 8, 8, 8, "operations and completions held back to be mixed; 0 = all in order") \
    X(hold, 3, 3, 3, "polls that one of them is held back at most") \
    X(late, 32, 32, 32, "polls until data of a write without FI_DELIVERY_COMPLETE lands, at most") \
    X(order_sas, 0, 0, 0, "messages arrive in the order of sending all the same") \
    X(unknown_peer, 0, 1, 0, "operations fail until the target has inserted the initiator's address") \
    X(rnr_ms, 0, 500, 0, "a message waits so long for a receive, then fails; 0 = for ever") \
    X(av_refs, 0, 0, 1, "an address inserted twice must be removed twice; else the first removal counts") \
    X(av_check, 1, 1, 0, "an address of zeros is refused by fi_av_insert") \
    X(addr_ip, 0, 0, 0, "endpoint addresses begin like a struct sockaddr_in") \
    X(close_order, 1, 1, 1, "closing what is in use gives -FI_EBUSY") \
    X(service, 0, 0, 0, "the service id that a device has, 0 = any; fi_domain refuses others") \
    X(vni, 0, 0, 0, "the VNI that it allows, 0 = any") \
    X(classes, 15, 15, 15, "traffic classes that the service allows, 1 << (class - FI_TC_LABEL); fi_enable refuses others") \
    X(hmem, 1, 1, 1, "FI_HMEM is offered, to those who ask for it with FI_MR_HMEM") \
    X(p2p, 1, 1, 1, "devices move memory of GPUs by themselves; 0: FI_OPT_FI_HMEM_P2P says that they don't, 2: there is no such option") \
    X(mr_dmabuf, 1, 1, 1, "registrations with FI_MR_DMABUF; 0: -FI_ENOSYS") \
    X(mr_cuda, 1, 1, 1, "registrations by address with FI_HMEM_CUDA; 0: -FI_EFAULT, as without nvidia_peermem. They want GORAIL_FABRIC_CUDA, a libcuda of test/cuda") \
    X(emulated, 0, 0, 0, "1: READ is emulated, 2: WRITE, 3: both; the endpoint's options say so") \
    X(api_min, 0x10012, 0x10012, 0, "fi_getinfo below this API version is a breach: device RDMA would be off") \
    X(fail_at, 0, 0, 0, "the n-th operation posted to a domain fails, 0 = none") \
    X(fail_sends, 0, 0, 0, "one SEND in so many fails, by chance, 0 = none") \
    X(fail_lands, 0, 0, 0, "1: half of those arrive all the same") \
    X(fail_errno, 5, 5, 5, "with this error") \
    X(fail_prov, 13, 13, 5, "and this provider error") \
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
    char error[256]; /* the switch that was not understood, or "" */
} fab_config;

/* Read once from the environment. */
const fab_config *fab_config_get(void);

#define SW(kind, name) (fab_config_get()->value[kind][SW_##name])

#endif
