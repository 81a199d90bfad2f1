/* Failpoints: allocations and system calls that tests make fail. With the build tag failpoints each pass of a point is
 * counted, and a test may let one pass fail (package failpoint). Without the tag GR_FAIL is 0, and nothing is compiled in.
 * This list names them all; `go test ./backend/failpoint` says that each is used, and that no other name is.
 */
#ifndef GORAIL_FAILPOINT_H
#define GORAIL_FAILPOINT_H

#define GR_FAILPOINTS(X)                                                                                                                             \
    /* the C core */                                                                                                                                 \
    X(core_new)                                                                                                                                      \
    X(core_event_fd)                                                                                                                                 \
    X(core_wake_fd)                                                                                                                                  \
    X(core_epoll_fd)                                                                                                                                 \
    X(core_thread)                                                                                                                                   \
    X(core_rail)                                                                                                                                     \
    X(core_rail_shared)                                                                                                                              \
    X(core_rail_epoll)                                                                                                                               \
    X(core_region)                                                                                                                                   \
    X(core_session)                                                                                                                                  \
    X(core_link)                                                                                                                                     \
    X(core_slab)                                                                                                                                     \
    X(core_slab_bufs)                                                                                                                                \
    X(core_slab_mem)                                                                                                                                 \
    X(core_slab_register)                                                                                                                            \
    X(core_ctx)                                                                                                                                      \
    X(core_batch)                                                                                                                                    \
    X(core_ops)                                                                                                                                      \
    X(core_slots)                                                                                                                                    \
    X(core_subs)                                                                                                                                     \
    X(core_bulk)                                                                                                                                     \
    X(core_bulk_places)                                                                                                                              \
    X(core_bulk_regions)                                                                                                                             \
    X(core_xfer_notif)                                                                                                                               \
    X(core_notif_out)                                                                                                                                \
    X(core_notif_skip)                                                                                                                               \
    X(core_notif_detached)                                                                                                                           \
    X(core_notif_in)                                                                                                                                 \
    X(core_notif_part)                                                                                                                               \
    X(core_event_nodes)                                                                                                                              \
    X(core_event)                                                                                                                                    \
    X(core_event_msg)                                                                                                                                \
    X(core_trace)                                                                                                                                    \
    X(core_held_fd)                                                                                                                                  \
    /* the engine in Go */                                                                                                                           \
    X(engine_events_fd)                                                                                                                              \
    X(engine_endpoint)                                                                                                                               \
    X(engine_connect)                                                                                                                                \
    X(engine_register)                                                                                                                               \
    /* the control channel */                                                                                                                        \
    X(peer_listen)                                                                                                                                   \
    X(peer_accept)                                                                                                                                   \
    X(peer_dial)                                                                                                                                     \
    X(peer_send)                                                                                                                                     \
    X(peer_read)                                                                                                                                     \
    X(peer_pidfd)                                                                                                                                    \
    /* providers */                                                                                                                                  \
    X(ready_ring)                                                                                                                                    \
    X(ofi_calls)                                                                                                                                     \
    X(ofi_cxi_key)                                                                                                                                   \
    X(ofi_rail)                                                                                                                                      \
    X(ofi_endpoint)                                                                                                                                  \
    X(tcp_gpu)                                                                                                                                       \
    X(tcp_spill)                                                                                                                                     \
    X(tcp_rest)                                                                                                                                      \
    X(tcp_timerfd)                                                                                                                                   \
    X(tcp_rail)                                                                                                                                      \
    X(tcp_epoll)                                                                                                                                     \
    X(tcp_eventfd)                                                                                                                                   \
    X(tcp_attach)                                                                                                                                    \
    X(tcp_conn)                                                                                                                                      \
    X(tcp_regions)                                                                                                                                   \
    X(tcp_op)                                                                                                                                        \
    X(tcp_answer)                                                                                                                                    \
    X(tcp_segments)                                                                                                                                  \
    X(tcp_early)                                                                                                                                     \
    X(tcp_pack_rail)                                                                                                                                 \
    X(tcp_packed)                                                                                                                                    \
    X(tcp_paces)                                                                                                                                     \
    X(tcp_unpacking)                                                                                                                                 \
    X(tcp_head)                                                                                                                                      \
    X(tcp_bulk)                                                                                                                                      \
    X(tcp_import)                                                                                                                                    \
    X(tcp_imports)                                                                                                                                   \
    X(tcp_job)                                                                                                                                       \
    X(tcp_job_here)                                                                                                                                  \
    X(tcp_job_imports)                                                                                                                               \
    X(tcp_job_ranges)                                                                                                                                \
    X(tcp_vram)                                                                                                                                      \
    X(tcp_record_rail)                                                                                                                               \
    X(tcp_records)                                                                                                                                   \
    X(tcp_sealed)                                                                                                                                    \
    X(tcp_opened)                                                                                                                                    \
    X(verbs_calls)                                                                                                                                   \
    X(verbs_rail)                                                                                                                                    \
    X(verbs_qp)                                                                                                                                      \
    X(verbs_qp_sent)                                                                                                                                 \
    X(verbs_qp_recv)                                                                                                                                 \
    X(verbs_cq)                                                                                                                                      \
    X(verbs_slots)                                                                                                                                   \
    X(shm_memfd)                                                                                                                                     \
    X(shm_memfd_size)                                                                                                                                \
    X(shm_ring)                                                                                                                                      \
    X(shm_mmap)                                                                                                                                      \
    X(shm_map)                                                                                                                                       \
    X(shm_epoll)                                                                                                                                     \
    X(shm_eventfd)                                                                                                                                   \
    X(shm_socket)                                                                                                                                    \
    X(shm_pidfd)                                                                                                                                     \
    X(cma_rail)                                                                                                                                      \
    X(cma_rights)                                                                                                                                    \
    X(cma_endpoint)                                                                                                                                  \
    X(cma_job)                                                                                                                                       \
    X(cma_worker)                                                                                                                                    \
    X(cma_thread)                                                                                                                                    \
    X(cma_imports)                                                                                                                                   \
    X(cma_import)                                                                                                                                    \
    X(cma_view)                                                                                                                                      \
    X(cma_views)                                                                                                                                     \
    X(cma_stream)                                                                                                                                    \
    X(cma_pair)                                                                                                                                      \
    X(cma_bulk_here)                                                                                                                                 \
    X(cma_bulk_imports)                                                                                                                              \
    X(cma_bulk_ranges)                                                                                                                               \
    X(cma_known)                                                                                                                                     \
    X(cma_desc)                                                                                                                                      \
    /* GPUs */                                                                                                                                       \
    X(gpu_driver)                                                                                                                                    \
    X(gpu_block)                                                                                                                                     \
    X(gpu_owned)                                                                                                                                     \
    X(gpu_marks)                                                                                                                                     \
    X(gpu_table)                                                                                                                                     \
    X(gpu_stream)                                                                                                                                    \
    X(gpu_scratch)                                                                                                                                   \
    X(gpu_job)

#ifdef GR_FAILPOINTS_ON

#define GR_FAILPOINT_NUMBER(name) GR_FAILPOINT_##name,
enum { GR_FAILPOINTS(GR_FAILPOINT_NUMBER) GR_FAILPOINT_COUNT };

/* Counts a pass. 1: this pass fails, and errno says why. Any thread. Weak: C programs of tests have none. */
int gr_failpoint(int point) __attribute__((weak));

#define GR_FAIL(name) (gr_failpoint && gr_failpoint(GR_FAILPOINT_##name))

#else
#define GR_FAIL(name) 0
#endif

/* An allocation, and a call that fails with -1, behind a failpoint. */
#define GR_ALLOC(name, call) (GR_FAIL(name) ? NULL : (call))
#define GR_CALL(name, call) (GR_FAIL(name) ? -1 : (call))

#endif
