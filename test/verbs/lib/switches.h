/* Everything that tests may change, count or break, by name. */
#ifndef VT_SWITCHES_H
#define VT_SWITCHES_H

/* name, value at first, what it does */
#define VT_SWITCHES(X) \
    X(devices, 1, "devices there are, up to 4: hca0, hca1, ...") \
    X(ports, 1, "ports of each, up to 4") \
    X(ethernet, 1, "link layer: 1 Ethernet (RoCE), 0 InfiniBand") \
    X(iwarp, 0, "the devices are of iWARP") \
    X(state, 4, "enum ibv_port_state of all ports; 4 is ACTIVE") \
    X(gids, 4, "entries of a port's GID table") \
    X(gid_holes, 0, "a bit for each entry of it that is empty, as a source of routes") \
    X(max_qp_wr, 16384, "requests of a queue") \
    X(max_cqe, 1 << 20, "entries of a completion queue") \
    X(max_inline, 220, "bytes of inline data; 0: a queue pair that asks for some is refused with EINVAL") \
    X(report_inline, -1, "bytes of inline data that a queue pair reports, and takes unless that is above max_inline; -1: what was asked for") \
    X(ignore_inline, 0, "1: inline data is not copied: the device reads it by its key, as any other (mana, vmw_pvrdma)") \
    X(rd_atomic, 16, "READs under way, both ways") \
    X(mr_max, 1 << 20, "regions, then ENOMEM") \
    X(mr_size, 0, "bytes of a region, then EINVAL; 0: any") \
    X(odp, 0, "on-demand paging: enum ibv_odp_transport_cap_bits of RC; 0: none") \
    X(dmabuf, 0, "1: regions of dmabufs (any file that can be mapped); 0: the kernel knows none") \
    X(remove, 0, "destroying a queue pair removes its completions from the queue (as mlx5 does); else they stay (rxe)") \
    X(async, 0, "a thread of the device executes requests; else posting does") \
    X(delay, 0, "requests are executed, or flushed, when their completion queue was polled so often since") \
    X(partial, 0, "the n-th send request from now is refused, those before it in its chain are taken; 0 = none") \
    X(partial_err, 12, "with this errno; 12 is ENOMEM") \
    X(late, 0, "iWARP: WRITEs are told of before they are in place; what comes behind them on the connection brings them there") \
    X(cm_unreachable, 0, "no way is found to any address") \
    X(cm_silent, 0, "requests for connections get lost") \
    X(cm_block, 0, "rdma_connect does not come back") \
    X(lose_event, 0, "the n-th completion event from now is lost; 0 = none") \
    X(break_wr, 0, "the n-th request from now that is executed fails, and its connection with it; 0 = none") \
    X(mute, 0, "all completion events are lost") \
    X(oldest, 0, "1: the completion of a request that fails names the oldest not told of yet, those up to it are flushed (bnxt_re); " \
                 "2: nothing is told of those") \
    X(lose_cqe, 0, "the n-th completion from now of a request flushed or failed is lost; 0 = none")

#define VT_COUNTERS(X) \
    X(lists, "device lists not freed") \
    X(contexts, "open devices") \
    X(pds, "open protection domains") \
    X(mrs, "open regions") \
    X(on_demand, "regions registered on demand") \
    X(dmabufs_pcie, "dmabufs registered that are of the way past C2C") \
    X(channels, "open completion channels") \
    X(cqs, "open completion queues") \
    X(qps, "open queue pairs") \
    X(cm_channels, "open event channels of rdma_cm") \
    X(cm_ids, "open ids of rdma_cm") \
    X(writes, "WRITE requests taken") \
    X(empty_writes, "those of them without bytes") \
    X(reads, "READ requests taken") \
    X(sends, "SEND requests taken") \
    X(recvs, "receives taken") \
    X(signaled, "requests taken that are signaled") \
    X(inlined, "requests taken that are inline") \
    X(chains, "calls of ibv_post_send that took requests") \
    X(longest, "requests of the longest chain") \
    X(refused, "calls of ibv_post_send that did not take all, for whatever reason") \
    X(cqes, "completions") \
    X(flushed, "those of them that are flushed") \
    X(removed, "completions removed with their queue pair") \
    X(events, "completion events") \
    X(lost, "completion events and completions that were lost on demand") \
    X(arms, "calls of ibv_req_notify_cq") \
    X(polls, "calls of ibv_poll_cq") \
    X(cm_connects, "calls of rdma_connect") \
    X(cm_rejects, "requests for connections that were refused")

/* Calls that can be made to fail. modify_* are ibv_modify_qp by the state that is asked for. */
#define VT_CALLS(X) \
    X(get_device_list) X(open_device) X(close_device) X(query_device) X(query_port) X(alloc_pd) X(dealloc_pd) X(reg_mr) \
    X(reg_dmabuf_mr) X(dereg_mr) X(create_comp_channel) X(destroy_comp_channel) X(create_cq) X(resize_cq) X(destroy_cq) X(create_qp) \
    X(modify_init) X(modify_rtr) X(modify_rts) X(modify_err) X(destroy_qp) X(post_send) X(post_recv) X(poll_cq) X(req_notify_cq) \
    X(cm_channel) X(cm_id) X(cm_bind) X(cm_listen) X(cm_resolve) X(cm_route) X(cm_connect) X(cm_accept)

#define VT_SW(name, value, what) SW_##name,
#define VT_CT(name, what) CT_##name,
#define VT_CL(name) CALL_##name,
enum { VT_SWITCHES(VT_SW) SW_COUNT };
enum { VT_COUNTERS(VT_CT) CT_COUNT };
enum { VT_CALLS(VT_CL) CALL_COUNT };

extern long vt_switch[SW_COUNT];
extern long vt_count[CT_COUNT];

#define SW(name) vt_switch[SW_##name]
#define COUNT(name) vt_count[CT_##name]

#endif
