// Package transfer handles the requests of an application: it prepares, plans, posts, watches and releases them. Transfers use
// the session with a peer through one interface (Session). The session publishes its state to transfers as one View (Peer.Publish).
//
// Lock order: Transfer.mu, the session's lock, Peer.mu. The locks of the table and of the core come last.
//
// # A transfer
//
//  1. prepXfer makes one call from C to Go and one from Go to C. It reads the descriptor lists where the agent has
//     them (gr_desc has nixlMetaDesc's layout). One loop checks each pair against both regions, merges pairs that
//     touch, and writes 32-byte operations into C memory. Long runs of pairs of the same two regions are a loop in C.
//     From 100,000 pairs on a few goroutines share the lists with the caller (plan_share.go). None of them looks at a
//     list after the call. Regions are pinned until release.
//  2. postXfer makes one call from C to Go and one from Go to C.
//     - If the peer is connected and all keys are present, the transfer starts on links of the session that have all of
//     its memory. It takes one link for each 256 KiB, the least busy links first. The caller posts a bounded window.
//     Completions post the rest, in any thread that polls.
//     - Otherwise the transfer is queued in Go. The control channel's answer starts it.
//  3. postXfer again makes no call between C and Go. A post that Go made itself gives the transfer a cached post.
//     - With a cached post, and after a run that ended well, the shim's gr_repost posts the transfer over the links of
//     the last run, without Go.
//     - Some actions drop the cached post first: a change of what a post looks at (links, keys, the peer's state:
//     Peer.Pause), an abort, a release, and Go's own post. They wait while a thread posts from it, for the time of
//     one post.
//     - A transfer with a cached post stays on the active list, where deadlines and deregistrations find it. The sweeper
//     takes it off, with its cached post, when the transfer has not run for xfer_timeout.
//     - If the log takes debug lines, each sweep withdraws the cached post for a moment, and logs the last of the posts
//     without Go.
//  4. checkXfer makes no call between C and Go. It reads the slot's state word and makes one bounded step of progress.
//  5. The last completion of the last sub-transfer sends the notification. On an ordered link the notification went
//     out behind the data already. The transfer ends when its data is proved in place and the last fragment of its
//     notification is posted. From then on the message belongs to the link, which sends it again after a fence. C sets
//     the state to success with one atomic exchange. That is C's last touch of the slot.
//
// # The plan
//
// A plan (plan.go) turns descriptor pairs into operations. It has no state, and allocates nothing for a pair. Several threads may share a
// long list; the plan is that of one. The resolver (prep.go) writes each piece once, into the memory of the operations: planWriter.Pairs
// takes most pairs, and Add what is not inside known windows. Then Count says how much memory the operations take, and Cut cuts.
//
//   - Merging: consecutive pieces of the same regions that touch on both sides become one.
//   - Chunks: a piece above ChunkMin bytes is cut into chunks of about clamp(length/2, ChunkMin, ChunkMax). For several links the size is
//     clamp(length/(64*links), ChunkMin, ChunkMax). A chunk is never above MaxMsg. Chunks of a piece are about equal, and start on
//     multiples of 4 KiB of the piece.
//   - The plan does not assign operations to links. The core's links take batches of operations as fast as they complete them, so that
//     shares follow the rates. Chunks are small enough for that: a 64th of a link's fair share of the piece, within the limits.
package transfer
