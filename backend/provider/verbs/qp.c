/* Endpoints: one reliable connection each. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "verbs.h"

enum {
    INLINE = 64,        /* bytes: a header and a short notification */
    INLINE_MOST = 1024, /* of any device: more is no answer */
    SLOTS_MAX = 65535,
    FLUSH_MS = 200,     /* flushing is the device's own work, without the wire */
};

/* Room in the tables of the rail for one endpoint more; *number is its slot. */
static int make_room(vb_rail *rail, uint32_t comps, uint32_t *number, const char **step)
{
    *step = "ibv_resize_cq";
    uint32_t want = rail->cq_promised + comps, size = (uint32_t)rail->cq->cqe;
    if (want > size) {
        while (size < want)
            size *= 2;
        if (size > (uint32_t)rail->dev.max_cqe)
            size = (uint32_t)rail->dev.max_cqe;
        if (size < want)
            return -ENOSPC;
        int rc = rail->lib->resize_cq(rail->cq, (int)size);
        if (rc)
            return -abs(rc);
        rail->armed = VB_NOT;
    }
    *step = "calloc";
    if (gr_ready_room(&rail->ready, want) != 0)
        return -ENOMEM;
    for (*number = 0; *number < rail->slots && rail->slot[*number].qp; ++*number)
        ;
    if (*number == rail->slots) {
        uint32_t n = rail->slots ? rail->slots * 2 : 16;
        vb_slot *slot = n <= SLOTS_MAX ? realloc(rail->slot, n * sizeof(*slot)) : NULL;
        if (!slot)
            return -ENOMEM;
        memset(slot + rail->slots, 0, (n - rail->slots) * sizeof(*slot));
        rail->slot = slot;
        rail->slots = n;
    }
    return 0;
}

/* What the queue pair reports counts. A provider that knows no inline data leaves what we asked for, and ignores IBV_SEND_INLINE
 * (mana, vmw_pvrdma): so every request has a key, and its bytes stay until it has completed. */
static int create(vb_qp *qp, const char **step)
{
    vb_rail *rail = qp->rail;
    struct ibv_qp_init_attr init = {
        .send_cq = rail->cq, .recv_cq = rail->cq, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = vb_at_most(rail->dev.max_qp_wr, VB_SEND_DEPTH), .max_recv_wr = vb_at_most(rail->dev.max_qp_wr, VB_RECV_DEPTH),
                 .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = INLINE },
    };
    uint32_t asked = INLINE;
    *step = "ibv_create_qp";
    errno = 0;
    qp->qp = rail->lib->create_qp(rail->pd, &init);
    if (!qp->qp && errno == EINVAL) { /* a device without inline data */
        asked = init.cap.max_inline_data = 0;
        qp->qp = rail->lib->create_qp(rail->pd, &init);
    }
    if (!qp->qp)
        return errno ? -errno : -EIO;
    qp->inline_max = init.cap.max_inline_data <= INLINE_MOST ? init.cap.max_inline_data : asked;
    qp->sq_size = vb_at_most((int)init.cap.max_send_wr, VB_SEND_DEPTH);
    qp->rq_size = vb_at_most((int)init.cap.max_recv_wr, VB_RECV_DEPTH);
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .pkey_index = rail->opt.pkey_index, .port_num = rail->port,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
    };
    int mask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | (rail->iwarp ? 0 : IBV_QP_PKEY_INDEX | IBV_QP_PORT);
    *step = "ibv_modify_qp (INIT)";
    return -abs(rail->lib->modify_qp(qp->qp, &attr, mask));
}

/* Every request of a failed queue pair is a completion, signalled or not. */
static uint32_t promise(const vb_qp *qp)
{
    return qp->sq_size + qp->rq_size;
}

static void free_qp(vb_qp *qp)
{
    if (qp->qp)
        (void)qp->rail->lib->destroy_qp(qp->qp);
    free(qp->sent);
    free(qp->recv);
    free(qp);
}

static int path_mtu(const vb_rail *rail)
{
    int mtu = 128 << rail->attr.active_mtu;
    return rail->opt.mtu && rail->opt.mtu < mtu ? rail->opt.mtu : mtu;
}

/* Gives the queue pair its place on the rail. */
static int enter(vb_qp *qp, const char **step)
{
    vb_rail *rail = qp->rail;
    struct ibv_port_attr port;
    memset(&port, 0, sizeof(port));
    *step = "ibv_query_port";
    int rc = rail->lib->query_port(rail->ctx, rail->port, &port);
    if (rc)
        return -abs(rc);
    gr_rail_lock(&rail->base);
    rail->attr = port; /* a new subnet manager may have given another LID */
    rc = make_room(rail, promise(qp), &qp->number, step);
    if (!rc) {
        rail->slot[qp->number].qp = qp;
        rail->slot[qp->number].generation++;
        rail->cq_promised += promise(qp);
        rail->open_eps++;
    }
    gr_rail_unlock(&rail->base);
    return rc;
}

/* The first packet's number. RoCE has no authentication: who can guess it, the queue pair's number and a key, can forge requests. */
static int draw_psn(vb_qp *qp, const char **step)
{
    *step = "getrandom";
    ssize_t n = getrandom(&qp->psn, sizeof(qp->psn), 0); /* so few bytes are not interrupted */
    if (n != (ssize_t)sizeof(qp->psn))
        return n < 0 ? -errno : -EIO;
    qp->psn &= 0xffffff;
    return 0;
}

int vb_ep_open(vb_rail *rail, int gid_index, const uint8_t gid[16], vb_qp **out, vb_addr *addr, const char **step)
{
    vb_qp *qp = calloc(1, sizeof(*qp));
    int rc = -ENOMEM;
    *step = "calloc";
    if (!qp)
        return rc;
    qp->rail = rail;
    qp->gid_index = rail->ethernet ? gid_index : rail->opt.gid_index;
    if ((qp->sent = calloc(VB_SEND_DEPTH, sizeof(*qp->sent))) && (qp->recv = calloc(VB_RECV_DEPTH, sizeof(*qp->recv))))
        rc = create(qp, step);
    if (!rc)
        rc = draw_psn(qp, step);
    if (!rc)
        rc = enter(qp, step);
    if (rc) {
        free_qp(qp);
        return rc;
    }
    *addr = (vb_addr){ .qpn = qp->qp->qp_num, .psn = qp->psn, .lid = rail->attr.lid, .ethernet = rail->ethernet,
                       .reads = (uint8_t)vb_at_most(rail->dev.max_qp_rd_atom, rail->opt.max_reads), .mtu = (uint16_t)path_mtu(rail) };
    memcpy(addr->gid, gid, 16);
    *out = qp;
    return 0;
}

static enum ibv_mtu mtu_code(int bytes)
{
    return bytes >= 4096 ? IBV_MTU_4096 : bytes >= 2048 ? IBV_MTU_2048 : bytes >= 1024 ? IBV_MTU_1024
         : bytes >= 512 ? IBV_MTU_512 : IBV_MTU_256;
}

/* Without the rail's lock: nothing is posted yet, and a route may have to be found first. */
int vb_ep_connect(vb_rail *rail, vb_qp *qp, const vb_addr *peer, const char **step)
{
    const vb_opts *opt = &rail->opt;
    int own = path_mtu(rail);
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = mtu_code(peer->mtu < own ? peer->mtu : own), .dest_qp_num = peer->qpn,
        .rq_psn = peer->psn, .max_dest_rd_atomic = (uint8_t)vb_at_most(rail->dev.max_qp_rd_atom, rail->opt.max_reads), .min_rnr_timer = 12,
        .ah_attr = { .dlid = peer->lid, .sl = opt->sl, .port_num = rail->port },
    };
    if (qp->gid_index >= 0) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh = (struct ibv_global_route){ .sgid_index = (uint8_t)qp->gid_index, .hop_limit = 64, .traffic_class = opt->tc };
        memcpy(attr.ah_attr.grh.dgid.raw, peer->gid, 16);
    }
    if (qp->connected)
        return -EISCONN;
    *step = "ibv_modify_qp (RTR)";
    int rc = rail->lib->modify_qp(qp->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (rc)
        return -abs(rc);
    uint32_t reads = vb_at_most(rail->dev.max_qp_init_rd_atom, rail->opt.max_reads);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = opt->timeout, .retry_cnt = opt->retry_cnt, .rnr_retry = opt->rnr_retry,
        .sq_psn = qp->psn, .max_rd_atomic = (uint8_t)vb_at_most(peer->reads, reads),
    };
    *step = "ibv_modify_qp (RTS)";
    rc = rail->lib->modify_qp(qp->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                                 IBV_QP_MAX_QP_RD_ATOMIC);
    if (rc)
        return -abs(rc);
    gr_rail_lock(&rail->base);
    qp->connected = 1;
    gr_rail_unlock(&rail->base);
    return 0;
}

static int posted(const vb_qp *qp)
{
    return qp->sent_head != qp->sent_tail || qp->recv_head != qp->recv_tail;
}

/* Everything posted is flushed to the completion queue, which is emptied before the queue pair goes: on some devices its
 * entries stay, on others they vanish with it. Unsignalled requests that were executed already say nothing by themselves. */
static void flush(vb_qp *qp)
{
    vb_rail *rail = qp->rail;
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    struct timespec t0, t;
    struct ibv_wc wc[32];
    vb_close_tail(qp);
    vb_unpost(qp, ECANCELED);
    int failed = rail->lib->modify_qp(qp->qp, &attr, IBV_QP_STATE) != 0;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    while (posted(qp)) {
        int n = ibv_poll_cq(rail->cq, 32, wc);
        for (int i = 0; i < n; i++)
            vb_take(rail, &wc[i]);
        if (n > 0)
            continue;
        vb_close_tail(qp);
        clock_gettime(CLOCK_MONOTONIC, &t);
        if (n < 0 || failed || (t.tv_sec - t0.tv_sec) * 1000 + (t.tv_nsec - t0.tv_nsec) / 1000000 >= FLUSH_MS)
            return;
        sched_yield();
    }
}

void vb_ep_leave(vb_rail *rail, vb_qp *qp)
{
    gr_rail_lock(&rail->base);
    flush(qp);
    vb_give_up(qp);
    rail->slot[qp->number].generation++;
    gr_rail_unlock(&rail->base);
}

int vb_ep_close(vb_rail *rail, vb_qp *qp)
{
    gr_rail_lock(&rail->base);
    flush(qp);
    int rc = rail->lib->destroy_qp(qp->qp);
    vb_give_up(qp); /* also when it could not be destroyed: what comes late is told by its generation */
    rail->slot[qp->number].generation++;
    if (rc == 0) {
        rail->slot[qp->number].qp = NULL;
        rail->cq_promised -= promise(qp);
        rail->open_eps--;
        qp->qp = NULL;
    }
    gr_rail_unlock(&rail->base);
    if (rc)
        return -abs(rc);
    free_qp(qp);
    return 0;
}
