/* The names of all switches, counters and calls that tests may change, read or make fail. */
#ifndef VT_SWITCHES_H
#define VT_SWITCHES_H

/* name, initial value, effect */
#define VT_SWITCHES(X) \
    X(devices, 1, "number of devices, at most 4: hca0, hca1, ...") \
    X(ports, 1, "ports of each device, at most 4") \
    X(ethernet, 1, "link layer: 1 Ethernet (RoCE), 0 InfiniBand") \
    X(iwarp, 0, "1: the devices are iWARP devices, which are not used") \
    X(state, 4, "enum ibv_port_state of all ports; 4 is ACTIVE") \
    X(gids, 4, "entries of a port's GID table") \
    X(gid_holes, 0, "a bit for each empty entry of the GID table, which cannot be the source of a route") \
    X(max_qp_wr, 16384, "most requests of a send or receive queue") \
    X(max_cq, 1 << 16, "most completion queues; more fail with ENOMEM") \
    X(max_cqe, 1 << 20, "most entries of a completion queue") \
    X(resize, 1, "what ibv_resize_cq does to requests for events and to the size: 1 it ends the former, 0 it keeps both and reports success (qedr)") \
    X(max_inline, 220, "most bytes of inline data; a queue pair that asks for more is refused with EINVAL") \
    X(report_inline, -1, "bytes of inline data that a queue pair reports; it accepts as many, if at most max_inline; -1: as many as requested") \
    X(ignore_inline, 0, "1: the device reads inline data later, by its key, like other data (mana, vmw_pvrdma)") \
    X(rd_atomic, 16, "most outstanding READs, as initiator and as responder") \
    X(mr_max, 1 << 20, "most regions; more fail with ENOMEM") \
    X(mr_size, 0, "most bytes of a region; a larger one fails with EINVAL; 0: no limit") \
    X(dmabuf, 0, "1: dmabufs (any file that can be mapped) can be registered; 0: the kernel does not support them") \
    X(remove, 0, "1: destroying a queue pair removes its completions from the completion queue (mlx5); 0: they stay (rxe)") \
    X(hold_destroy, 0, "1: ibv_destroy_qp does not return, and the queue pair lives on") \
    X(hold_rtr, 0, "a bit for each device whose ibv_modify_qp to RTR does not return, as while the kernel looks for a neighbour") \
    X(async, 0, "1: a device thread executes requests; 0: the posting call does") \
    X(delay, 0, "number of polls of the completion queue after which a posted request is executed or flushed; 0 flushes at once") \
    X(partial, 0, "the n-th send request from now is refused; earlier requests of its chain are accepted; 0: none") \
    X(partial_err, 12, "the errno of partial; 12 is ENOMEM") \
    X(lose_event, 0, "the n-th completion event from now is lost; 0: none") \
    X(break_wr, 0, "the n-th request executed from now fails and breaks its connection; 0: none") \
    X(apart, 0, "1: devices of different numbers do not reach each other, whatever their addresses; requests fail as to a host that is off. " \
             "2: those of the same number do not") \
    X(mute, 0, "1: all completion events are lost") \
    X(oldest, 0, "1: a failed request's completion names the oldest request without a completion; the others up to it are flushed (bnxt_re); " \
                 "2: those others get no completion") \
    X(lose_cqe, 0, "the n-th completion with an error from now is lost; 0: none")

#define VT_COUNTERS(X) \
    X(lists, "device lists not freed") \
    X(contexts, "open devices") \
    X(pds, "open protection domains") \
    X(mrs, "open regions") \
    X(dmabufs_pcie, "registered dmabufs of the path past C2C") \
    X(channels, "open completion channels") \
    X(cqs, "open completion queues") \
    X(qps, "open queue pairs") \
    X(held, "calls that a switch holds now") \
    X(writes, "WRITE requests accepted") \
    X(empty_writes, "accepted WRITE requests of 0 bytes") \
    X(reads, "READ requests accepted") \
    X(sends, "SEND requests accepted") \
    X(recvs, "receives accepted") \
    X(signaled, "signaled requests accepted") \
    X(inlined, "requests accepted with inline data") \
    X(chains, "calls of ibv_post_send that accepted requests") \
    X(longest, "most requests that one call of ibv_post_send accepted") \
    X(refused, "calls of ibv_post_send that returned an error") \
    X(cqes, "completions") \
    X(flushed, "flushed completions") \
    X(removed, "completions removed with their queue pair") \
    X(events, "completion events") \
    X(lost, "completion events and completions lost by a switch") \
    X(arms, "calls of ibv_req_notify_cq") \
    X(polls, "calls of ibv_poll_cq")

/* Calls that a test can make fail. modify_STATE is ibv_modify_qp to that state. */
#define VT_CALLS(X) \
    X(get_device_list) X(open_device) X(close_device) X(query_device) X(query_port) X(alloc_pd) X(dealloc_pd) X(reg_mr) \
    X(reg_dmabuf_mr) X(dereg_mr) X(create_comp_channel) X(destroy_comp_channel) X(create_cq) X(resize_cq) X(destroy_cq) X(create_qp) \
    X(modify_init) X(modify_rtr) X(modify_rts) X(modify_err) X(destroy_qp) X(post_send) X(post_recv) X(poll_cq) X(req_notify_cq)

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
