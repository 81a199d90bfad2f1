/* Opens and closes a device: fabric, domain, address vector, completion queue. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <rdma/fi_errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "abi.h"
#include "ofi.h"

/* Completions that may wait to be read, over all peers. The tcp family grows its queue by itself; hardware doesn't, and
 * overrunning it is fatal there, so we ask for a lot and take what is given. */
enum { CQ_MAX = 65536, CQ_MIN = 1024 };

/* Raises the queue's signal to see how it shows in the wait descriptor. */
static int find_signal(ofi_rail *rail)
{
    struct epoll_event ev[4];
    if (rail->base.wait_fd < 0 || fi_cq_signal(rail->cq) != 0 || epoll_wait(rail->base.wait_fd, ev, 4, 0) != 1)
        return -FI_EOPNOTSUPP;
    rail->signal_tag = ev[0].data.u64;
    return 0;
}

static int open_cq(ofi_rail *rail)
{
    static const enum fi_wait_obj waits[] = { FI_WAIT_FD, FI_WAIT_NONE };
    uint32_t most = rail->quirks.per_peer ? CQ_MAX / 4 : CQ_MAX, least = CQ_MIN;
    int rc = -FI_ENOSYS;
    if (rail->cq_size) /* the operator's: that or none */
        most = least = rail->cq_size;
    for (int w = 0; w < 2; w++) {
        for (uint32_t size = most; size >= least; size /= 2) {
            union ofi_cq_attr attr;
            memset(&attr, 0, sizeof(attr));
            attr.v.size = size;
            attr.v.format = FI_CQ_FORMAT_MSG;
            attr.v.wait_obj = waits[w];
            rc = fi_cq_open(rail->domain, &attr.v, &rail->cq, NULL);
            if (rc == 0) {
                int fd = -1;
                if (waits[w] == FI_WAIT_FD && fi_control(&rail->cq->fid, FI_GETWAIT, &fd) == 0)
                    rail->base.wait_fd = fd;
                rail->cq_size = size;
                return 0;
            }
            rail->cq = NULL;
            if (rc == -FI_EMFILE)
                return rc; /* a queue without a wait object would be no cure */
            if (rc == -FI_ENOSYS || rc == -FI_EOPNOTSUPP)
                break; /* the wait object, not the size */
        }
    }
    return rc;
}

static int open_objects(ofi_rail *rail, const char **step)
{
    union ofi_av_attr av;
    int rc;

    *step = "fi_fabric";
    rc = rail->lib->fabric(rail->info->fabric_attr, &rail->fabric, NULL);
    if (rc)
        return rc;
    *step = "fi_domain";
    rc = fi_domain(rail->fabric, rail->info, &rail->domain, NULL);
    if (rc)
        return rc;
    *step = "fi_av_open";
    memset(&av, 0, sizeof(av));
    av.v.type = FI_AV_UNSPEC;
    rc = fi_av_open(rail->domain, &av.v, &rail->av, NULL);
    if (rc)
        return rc;
    *step = "fi_cq_open";
    rc = open_cq(rail);
    if (rc)
        return rc;
    if (rail->quirks.no_trywait && find_signal(rail) != 0)
        rail->base.wait_fd = -1; /* polled by timer instead */
    if (rail->quirks.per_peer) {
        *step = "opendir of /proc/self/fd";
        rail->fds = opendir("/proc/self/fd");
        return rail->fds && (rail->fds_locked = opendir("/proc/self/fd")) ? 0 : -errno;
    }
    *step = "calloc";
    if (!(rail->any = calloc(1, sizeof(*rail->any))))
        return -FI_ENOMEM;
    rail->any->peer = FI_ADDR_NOTAVAIL;
    rc = ofi_ep_make(rail, &rail->shared, step);
    rail->any->ep = rail->shared;
    rail->base.shared_ep = rail->any;
    return rc;
}

static uint32_t clamp32(uint64_t v, uint32_t most)
{
    return v < most ? (uint32_t)v : most;
}

/* "No limit" comes as SIZE_MAX; our callers calculate with these. */
static uint64_t bound(uint64_t v)
{
    return v < INT64_MAX ? v : INT64_MAX;
}

/* Messages may be smaller than RMA (efa-direct: MTU and 1 GB); 2.x tells each size when asked. */
static uint64_t size_option(ofi_rail *rail, int option, uint64_t fallback)
{
    size_t value = 0, len = sizeof(value);
    if (!rail->shared || fi_getopt(&rail->shared->fid, FI_OPT_ENDPOINT, option, &value, &len) || !value)
        return fallback;
    return value < fallback ? value : fallback;
}

/* EFA's fabric `efa` does RMA by messages where the device has none, or is told to. */
static uint8_t emulated(ofi_rail *rail, int option)
{
    bool value = false;
    size_t len = sizeof(value);
    return rail->shared && !fi_getopt(&rail->shared->fid, FI_OPT_ENDPOINT, option, &value, &len) && value;
}

static void fill_caps(ofi_rail *rail)
{
    const struct fi_info *info = rail->info;
    const struct fi_domain_attr *dom = info->domain_attr;
    uint64_t iov = info->tx_attr->iov_limit;

    rail->caps.virt_addr = (dom->mr_mode & FI_MR_VIRT_ADDR) != 0;
    rail->caps.prov_key = (dom->mr_mode & FI_MR_PROV_KEY) != 0;
    rail->caps.local_desc = (dom->mr_mode & FI_MR_LOCAL) != 0;
    rail->caps.endpoint_mr = (dom->mr_mode & FI_MR_ENDPOINT) != 0;
    rail->caps.delivery = (info->tx_attr->op_flags & FI_DELIVERY_COMPLETE) != 0;
    rail->caps.emulated_read = emulated(rail, OFI_OPT_EFA_EMULATED_READ);
    rail->caps.emulated_write = emulated(rail, OFI_OPT_EFA_EMULATED_WRITE);
    rail->caps.key_size = dom->mr_key_size ? dom->mr_key_size : sizeof(uint64_t);
    rail->caps.max_send = size_option(rail, OFI_OPT_MAX_MSG_SIZE, bound(info->ep_attr->max_msg_size));

    rail->write_flags = FI_COMPLETION | (rail->caps.delivery ? FI_DELIVERY_COMPLETE : 0);
    rail->send_flags = rail->write_flags;

    if (info->tx_attr->rma_iov_limit < iov)
        iov = info->tx_attr->rma_iov_limit;
    rail->base.iov_limit = clamp32(iov ? iov : 1, GR_MAX_IOV);
    rail->base.tx_depth = clamp32(info->tx_attr->size, rail->cq_size);
    rail->base.rx_depth = clamp32(info->rx_attr->size, rail->cq_size);
    rail->base.max_msg = size_option(rail, OFI_OPT_MAX_RMA_SIZE, bound(info->ep_attr->max_msg_size));
    rail->base.msg_size = clamp32(rail->caps.max_send, UINT32_MAX);
    rail->base.private_ep = rail->quirks.per_peer;
    rail->base.ordered = (info->tx_attr->msg_order & info->rx_attr->msg_order & FI_ORDER_SAW) != 0;
    rail->base.chained = rail->quirks.per_peer && rail->caps.delivery &&
                         info->ep_attr->max_order_waw_size >= rail->base.max_msg && (info->tx_attr->msg_order & info->rx_attr->msg_order & FI_ORDER_RMA_WAW) != 0;
}

/* Ours is the reverse of the order of opening; a queue closes only when nothing is bound to it. */
static int close_objects(ofi_rail *rail)
{
    struct fid *const order[] = {
        rail->shared ? &rail->shared->fid : NULL, rail->cq ? &rail->cq->fid : NULL, rail->av ? &rail->av->fid : NULL,
        rail->domain ? &rail->domain->fid : NULL, rail->fabric ? &rail->fabric->fid : NULL,
    };
    int first = 0;
    if (rail->fds)
        closedir(rail->fds);
    if (rail->fds_locked)
        closedir(rail->fds_locked);
    rail->fds = rail->fds_locked = NULL;
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        int rc = order[i] ? fi_close(order[i]) : 0;
        if (rc && !first)
            first = rc;
    }
    return first;
}

/* Endpoints that all peers share are the hardware's and listen on nothing. */
static int choose_ports(ofi_rail *rail, const ofi_ports *ports)
{
    if (!ports->first || !rail->quirks.per_peer || !rail->info->src_addr)
        return 0;
    rail->first_port = rail->next_port = ports->first;
    rail->last_port = ports->last;
    return (rail->bound = rail->lib->dupinfo(rail->info)) ? 0 : -FI_ENOMEM;
}

static void free_rail(ofi_rail *rail)
{
    pthread_mutex_destroy(&rail->base.mu);
    pthread_mutex_destroy(&rail->look_mu);
    pthread_cond_destroy(&rail->look_over);
    if (rail->reserve >= 0)
        close(rail->reserve);
    ofi_freeinfo(rail->lib, rail->bound);
    free(rail->any);
    free(rail);
}

int ofi_rail_open(ofi_lib *lib, struct fi_info *info, const ofi_quirks *quirks, const ofi_ports *ports, uint32_t cq_depth, ofi_rail **out,
                  const char **step)
{
    ofi_rail *rail = calloc(1, sizeof(*rail));
    int rc;
    *step = "calloc";
    if (!rail)
        return -FI_ENOMEM;
    gr_rail_init(&rail->base, &ofi_ops);
    pthread_mutex_init(&rail->look_mu, NULL);
    pthread_cond_init(&rail->look_over, NULL);
    rail->lib = lib;
    rail->info = info;
    rail->quirks = *quirks;
    rail->cq_size = cq_depth;
    rail->caps.hmem = (info->caps & FI_HMEM) != 0;
    rail->reserve = quirks->per_peer ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;
    rc = choose_ports(rail, ports);
    if (!rc)
        rc = open_objects(rail, step);
    if (rc) {
        close_objects(rail);
        free_rail(rail);
        return ofi_errno(rc);
    }
    fill_caps(rail);
    *out = rail;
    return 0;
}

int ofi_rail_close(ofi_rail *rail)
{
    int rc;
    gr_rail_lock(&rail->base);
    if (rail->open_eps || rail->open_mrs) {
        gr_rail_unlock(&rail->base);
        return -FI_EBUSY;
    }
    rc = close_objects(rail);
    gr_rail_unlock(&rail->base);
    free_rail(rail);
    return ofi_errno(rc);
}
