// Package failover decides when a link has failed. It also decides the next phase of each link. It is pure: it takes events
// and the time, and returns what to do. Its callers close endpoints, ask the peer and set timers.
//
//	Probing -> Working -> Fencing -> Working                                        if no other link works
//	                      Fencing (CloseFirst) -> Fencing -> BackingOff -> Probing  if others work
//	                      Fencing -> BackingOff -> Fencing                          if an endpoint does not open
//
// A shared endpoint cannot be fenced: Draining replaces Fencing there.
//
// # Failover
//
// A link that fails is fenced ("Fence and replay"). Then its batches go back to the work queues, its notifications go
// to the session's notification link, and the working links join its transfers.
//
//   - If another link works, the fence closes first: the others have the link's work after one round trip, and only
//     then endpoints are opened.
//   - After a first failure, or after progress, the failed link is then probed at once. If its device went down it
//     waits 100 ms.
//   - After later failures it backs off for 100 ms to 2 s, or up to 10 s if nothing ever came over it. If no other
//     link works, it is fenced again after 1 to 500 ms instead (failover.go BackOff, GrowBackoff; resume.go
//     resumeLink).
//   - A probe is one message. Its answer makes the link work again, and the link joins the transfers in progress.
//   - A link counts as failed on a completion error.
//   - It also counts as failed when the system says that its device went down, if a link of another rail works. The
//     target asks for the fence when its own device went down: a switch between the hosts hides that from the
//     initiator.
//   - The kernel reports a lost carrier at once, but only one a second (linkwatch). So a rail that completes nothing
//     for 20 ms has its carrier read (engine/carrier.go). The carrier of a RoCE device is that of the interface below
//     it (provider.Device.Net).
//   - It also counts as failed when nothing moves on it for rail_timeout while another link is healthy: idle, or with
//     completions. The sweeper looks eight times within rail_timeout while there are transfers (engine/sweep.go).
//     Operations count from the first look after their post. Time in which it did not look does not count: a process
//     that was stopped finds the completions of one link before those of another. The idle links over the same rail
//     are fenced with it, unless one of them has completed something within half of rail_timeout, or a link of each
//     other rail is stuck too. Otherwise the shards of a silent rail would take the work one after the other, and the
//     control connection would stay on the rail.
//   - Every new link is probed before it carries anything, also a session's only one.
//   - Where peers share one endpoint (EFA, CXI, and libfabric's rxm and shm) there is no fence. The link drains.
//     Transfers with a failed operation end in an error. The rest goes on, over other links if there are any.
//
// # Fence and replay
//
// When a link fails and the control channel lives:
//
//  1. The initiator stops the link. It moves the notifications to another link that works (the notification link). It
//     closes its endpoint and takes in every completion. It sends FENCE.
//  2. The target closes its endpoint too: nothing older can land any more.
//  3. The target answers with the number of the next notification that it wants, and the numbers beyond that it has.
//  4. Those notifications have arrived. So has the data of each transfer whose notification went out behind its data.
//     Other links take everything else, and send it again.
//  5. The initiator opens another endpoint, and a second FENCE carries its address. The target opens another endpoint,
//     connects the two, and answers with its address. The initiator connects its own, and probes the link.
//
// If no other link works, one FENCE does both: it carries the address, and the answer has the target's. Then the link
// itself sends everything again.
//
// If the last working link fails before an answer comes, each keeps its work. When a link works again, it has the work
// of every link whose first FENCE was answered (initiator/resume.go handOver): nothing waits for a second FENCE.
// Failed transfers of such a link end with the first answer.
//
// # Connecting may take seconds
//
// On RoCE the kernel looks for the neighbour (ibv_modify_qp to RTR). So each side connects in a queue of its own for
// each link (link.LinkState.Connects): no lock is held, and other frames are read meanwhile. A target's connects have turns
// of their own, 128, and 32 of a session (limits row connects), so that fences that only close wait for none. The
// session's pace of fences does not count that time. An answer counts once, and an endpoint that another FENCE has
// replaced is not connected.
//
// # Destroying may take seconds
//
// On soft RoCE ibv_destroy_qp waits for packets of the queue pair, and those for a neighbour that a lost link has
// taken away. A queue pair in ERR that has reported all its requests, a receive among them, uses no memory any more.
// Then closing waits 5 ms for ibv_destroy_qp and goes on (verbs/queuepair.go close); else it waits for its end.
//
// The limits and special cases:
//
//   - A batch whose own operation was the first to fail gets three more tries, on this link or another.
//   - Operations that are cancelled along with it count once for their transfer. The limit of 200 only ends transfers
//     that never would.
//   - A target whose endpoint fails asks for a fence.
//   - A notification that got a number and was then given up goes out as a SKIP, so that the receiver does not wait
//     for it. Late duplicates are dropped by number.
//   - A link that keeps failing is fenced after a pause that doubles up to 0.5 s.
//
// # Why no byte lands after success
//
// A batch that a failed link had stays with its sub-transfer until both endpoints are closed. Only then another link
// posts it again. A transfer succeeds when every batch has completed. So no work request of an earlier try can still
// be on the wire at that time.
package session
