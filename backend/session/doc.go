// Package session holds both sides of sessions. An Initiator is a session that we begin: with a peer whose connection blob the
// application has loaded, or with ourselves. It outlives the connections to its peer; conn is one of them. A Target is a session
// that a peer has begun with us. Each has Links; LinkState decides what becomes of a failed one, and an Assembler orders a
// peer's notifications: these two are pure.
//
// Locks of an Initiator, in the order in which they may be taken: Initiators.loads (by agent name), Initiator.mu, staging's,
// transfer.Peer.mu, Initiators.mu.
//
// # Sessions
//
// A session is one direction between two engines. The initiator dials the target's control address from the connection
// blob (docs/security.md has the handshake). Then both sides open one endpoint per rail pair: a link.
//
// docs/security.md says what each step proves, what it costs, and which answers are only hints.
//
//   - A link is used once its probe has been answered over the rail (session/initiator_path.go). A firewall may let only the
//     control port through.
//   - A session without a proved link within connect_timeout is lost.
//   - Two agents that write to each other have two sessions. A session with ourselves serves loopback. The target
//     needs no metadata of the initiator.
//   - A control connection that breaks or falls silent is redialled over the peer's other addresses, within the
//     session. Frames are kept until they are acknowledged, so that none is lost or doubled (peer/redial.go,
//     peer/resume.go, peer/stream_resume.go).
//   - A session belongs to an engine id, which its key proves. The agent's name is a label: several engines may use
//     one (session/target_sessions.go).
//   - When the session ends, the target closes its endpoints. That ends the peer's access where each peer has an
//     endpoint of its own. docs/security.md, "What the end of a session ends", has the others.
//
// # Notifications of a lost session
//
// Accepted notifications outlive a lost session (session/initiator_outbox.go).
//
//   - The initiator keeps them, dials again for peer_timeout, and sends them in the next session. Numbers go on from
//     session to session (Hello.After).
//   - The target freezes the older session. It says how far that session got and which notifications wait behind gaps
//     (Welcome.NextSeq, Have). It hands these to the new session (session/target_end.go, taken.go).
//   - The initiator fills the gaps first, with kept notifications or a SKIP.
//   - The initiator sends until it knows of the loss. So a target keeps a lost session on a shared endpoint open for
//     notifications: until the next session begins, for two peer_timeouts at most (a minute at least), and for the
//     last 256 lost sessions.
//   - Notifications behind gaps of ended sessions are bounded: notif_memory, 4096 engines, two peer_timeouts.
//   - An application that removes a peer and adds it again at once continues with the session that still delivers
//     (session/initiator_leave.go deliver).
//
// # Links of a rail pair
//
// A pair of rails has one link, or as many as both sides want (qps_per_rail, told in the connection blob). Each link
// has its own endpoints, receives, credits, windows and fences, so that a broken link is fenced alone. Transfers
// choose among links as among rails. Code that counts rails counts a rail once: names, the paths of a transfer,
// suspicion of a control connection, a device that goes down. Where peers share an endpoint, a pair has one link.
//
// # Phases of a link
//
// failover.go decides when a link has failed, and the next phase of each link. It is pure: it takes an event and the time, and
// returns once what to do (Actions). initiator_failover.go carries that out in order: it closes endpoints, asks the peer, moves
// work and sets timers. The change itself is between Peer.Pause and Peer.Publish: transfers see one finished View.
//
//	Probing -> Working -> Fencing -> Working                                        if no other link works
//	                      Fencing (Closed) -> Fencing -> BackingOff -> Probing  if others work
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
//     link works, it is fenced again after 1 to 500 ms instead (failover.go Opened,
//     GrowBackoff).
//   - A probe has a second, eight times what the peer took for its last answer on the control channel, and twice as much after each in vain; 30 s at most.
//     A peer that starves would only get more work by a fence (failover.go patience).
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
//   - Where the network is cut, nothing is healthy. When the control channel has another connection after that, links
//     whose TCP waits before it sends again are fenced at both ends' request (cut.go).
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
// of every link whose first FENCE was answered (session/initiator_failover.go handOver): nothing waits for a second FENCE.
// Failed transfers of such a link end with the first answer.
//
// # Connecting may take seconds
//
// On RoCE the kernel looks for the neighbour (ibv_modify_qp to RTR). So each side connects in a queue of its own for
// each link (Link.Connects): no lock is held, and other frames are read meanwhile. A target's connects have turns
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
