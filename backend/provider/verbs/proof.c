/* The READ behind WRITEs whose completion is to prove them. */
#include "verbs.h"

/* Reads a byte of what the last WRITE with bytes wrote: at the peer that pushes what was written before it into memory, past
 * any bridge or cache. Without bytes, the answer alone is wanted, unless the caller promises that the address is readable. */
struct ibv_send_wr vb_proof(const vb_qp *qp, struct ibv_sge *sge, int op, uint32_t n, const gr_seg *seg)
{
    const vb_rail *rail = qp->rail;
    const gr_seg *last = &seg[n - 1];
    for (uint32_t i = 0; i < n; i++)
        if (seg[i].len)
            last = &seg[i];
    *sge = (struct ibv_sge){ .addr = (uint64_t)(uintptr_t)rail->sink, .length = last->len || op == GR_WRITE_PROVEN, .lkey = rail->sink_mr->lkey };
    return (struct ibv_send_wr){
        .wr_id = vb_id(qp, qp->sent_tail, 0), .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = { .remote_addr = last->raddr, .rkey = (uint32_t)last->rkey },
    };
}
