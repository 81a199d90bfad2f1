// Package core is the C core of an engine and its Go interface. The core posts, polls, counts transfers down, and sends and
// receives notifications, all without the Go scheduler. gr_policy.h and base.h describe the C side. Lifetime says who may still call it while its
// engine ends.
//
// Go decides policy (peers, keys, errors, replays) and learns of events through Events. C owns the memory that both share;
// Go reads and writes it through the types of this package.
//
// # Striping
//
// Work is split by measured rail speed, not in advance. A transfer's operations are a work queue (xfer.queue). Each
// link that works on the transfer has a sub-transfer. The sub-transfer takes batches of up to 256 KiB or 64 operations
// from the queue as its window has room (core/ops.c, wr.c).
//
//   - A single operation is taken whole, whatever its size. A transfer on one link is taken whole.
//   - A stalled rail holds back only what it has in flight. When the last batch is taken, sub-transfers that have
//     posted nothing are told to leave.
//   - A sub-transfer is active while its link holds batches or may claim more. The data is done when the last
//     sub-transfer has left.
//
// # Chunks
//
// A long descriptor is cut into chunks of 128 KiB to 1 MiB:
//
//   - several links: a 64th of a link's fair share
//   - one link: half of the descriptor at most
//   - between processes of one host, tcp: the descriptor stays whole up to 1 MiB, with several threads up to 512 KiB
//     (Caps.PreferUnsplit)
//
// # Acknowledgements
//
// On some rails a completion proves everything that was posted before it on the endpoint (gr_rail.is.chained: both
// kinds of tcp, verbs). There WRITEs are acknowledged once for up to half a megabyte. Most WRITEs are unsignaled: they
// are posted without asking for proof. A WRITE that asks is the last of several. Its completion proves the unsignaled
// ones before it. A link that gives up in between posts a WRITE of nothing that asks. With several links the
// notification does not go out behind the data. Then the asking WRITEs ask for proof that holds beyond the link
// (flushed). On InfiniBand and RoCE that is a READ of a byte behind them.
//
// # Small first
//
// Small transfers (up to 128 KiB) go before large ones on a link. While small ones come, large ones keep 192 KiB in
// flight, in pieces of 96 KiB.
//
// # Errors
//
// An error stops the link and raises an event. Go decides. By itself the core ends a transfer only in these cases:
//
//   - a region of the transfer is gone
//   - the same operations were the first to fail on four endpoints
//   - 200 links have failed under the transfer
//   - its data is in place, and its notification was the first to fail 17 times
//   - memory is exhausted
//   - the rail cannot copy the transfer's GPU memory (ENOTSUP); Go then stages the transfer
//
// A revocation aborts a transfer unless all of it is posted.
//
// The slot says "in progress" until Go has given the final status (transfer/finalize.go). Go gives it when two
// conditions hold: no work request of the transfer is posted any more, and none that failed can still land. A batch
// with a failed operation stays with its link until the target has answered the fence (batch.failed), also after an
// abort. A session that we end asks for these fences before its goodbye (session/initiator_leave.go). Releases and local
// deregistrations ask about this side alone (inUse).
//
// # Notifications
//
// A message has a 40-byte header and up to 2 KiB. The header names the receiver's link, because peers may share an
// endpoint.
//
// # Credits
//
// The receiver always has 32 receives posted for a peer. The sender holds that many credits, and gets them back in
// batches of 8 and more.
//
//   - Each message that takes a credit has a slot: a number of its link's. A CREDIT tells how many slots the receiver
//     has taken in, all together.
//   - A SEND that failed keeps its slot for the next message, so that shared endpoints lose no credit
//     (core/link.c).
//   - A slot beyond the credits that the sender was told of ends the link. Free receives that are held back are no
//     credits.
//
// # Numbers
//
// A notification gets its number when it is first posted (core/session.c).
//
//   - A notification waits for a number while the oldest unacknowledged notification is more than 16,384 numbers or 48
//     MiB behind. A notification that is stuck on its rail holds later ones back.
//   - A notification without a number moves along when another link becomes the notification link.
//
// # Waking
//
// A target that sleeps is not woken by each notification. Only getNotifs waits there, and it looks for itself.
//
//   - A message wakes if it takes the 16th or the 32nd of the credits, or if it is a part of a longer notification. It
//     uses send's wake: solicited events on InfiniBand and RoCE, the segment's doorbell on one host.
//   - A SKIP, a probe and a CREDIT always wake.
//   - Messages that wake nothing are taken in by the next poll: within 250 ms, later while nothing happens. A control
//     frame of the peer makes that soon. A peer rings for each message to an endpoint that dozes.
//
// # Order
//
// C hands whole notifications that arrive in order to the application. With fragments or a gap, Go puts them in order
// (notify) and hands them back.
//
// # Backpressure
//
// A receiver whose application takes nothing in holds credits back from notif_queue bytes on. While all peers together
// have notif_memory, it does so from 64 KiB on (core/session.c sess_full). Then a transfer's notification keeps the
// transfer in progress, at most until xfer_timeout. genNotif is refused (GR-1072, NIXL_ERR_BACKEND) once notif_queue
// bytes wait on the sender's side (core/post.c, session/initiator_outbox.go). A message that does not match
// wire/header.go ends its link.
//
// # The progress thread
//
// It polls the rails that name it (gr_rail.worker) while there is work and 20 us longer, then blocks on completion
// events. Work is a completion. On four processors and more it is also a small request of a peer over tcp
// (gr_rail.soon, option/threads.go SpinsForPeers). An engine has one from the start. Shards of the TCP rail add up to
// seven (core/thread.c, docs/tcp.md). The application's calls assist the first thread only. The events are
// edge-triggered. libfabric 1.17's net leaves data in its sockets after a poll, so arm looks at them first.
//
//   - While the application itself polls, eight times a millisecond, the first thread stands back
//     (core/thread.c). It looks in once a millisecond, and once in four milliseconds when that goes on.
//   - A post counts as a poll if it leaves nothing under way and no other rail has links. An example is a caller whose
//     transfers are copied in their post and who never checks.
//   - A call that copied counts as four polls.
//
// # The inbox
//
// Work for a rail goes through the rail's inbox. The holder of the rail's lock runs the inbox. So post, check and
// notify never wait for a poll in progress. Release, deregistration and fences do.
//
// # The rail's lock
//
// One lock per rail covers registration, endpoints, posts and polls: net 1.17 needs that.
//
//   - Go holds the lock to open or close an endpoint of libfabric's, and to break a connection (provider/ofi/rail.go
//     hold). No poll may come between.
//   - Other set-up takes the lock in C (libfabric/setup.c).
//   - A provider may gather posts until the lock is let go (gr_rail_leave calls flush). A transfer and its
//     notification are then one doorbell.
//
// # Inside the core
//
// The C files are layers. Each layer has a header, which includes the header of the layer below. A file includes its own
// layer's header and no other. So a file sees nothing above. TestLayers checks this, and also that no files call each
// other in a circle.
//
//	what Go and the shim call: gr_policy.h, gr_core.h                 core, link_life, post, app
//	control.h   polls, takes completions in, runs inboxes             progress, thread
//	transfer.h  sub-transfers, batches of operations, work requests   xfer, ops, wr, subxfer
//	link.h      an endpoint of a session: state, window, credits,     link, message, receive
//	            contexts; notifications, probes and credits
//	base.h      one device, sessions and their queues, limits, time,  base, session
//	            counters, regions; the list of locks
//
// A lower layer calls an upper one in these ways. None is for each work request:
//
//   - by name: the functions at the end of base.h. A link that stops tells its sub-transfers, a message its transfer.
//   - cmd.run: set by the code that pushes work into a rail's inbox; the holder of the rail's lock calls it.
//   - gr_rail.kick: providers call it as they unlock, if work was pushed meanwhile.
package core
