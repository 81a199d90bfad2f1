// Package initiator holds the sessions that we begin: with peers whose connection blob the application has loaded, and
// with ourselves. A Session outlives the connections to its peer; conn is one of them.
//
// Locks, in the order in which they may be taken: Sessions.loads (by agent name), Session.mu, staging's,
// transfer.Peer.mu, Sessions.mu.
//
// # Sessions
//
// A session is one direction between two engines. The initiator dials the target's control address from the connection
// blob (docs/security.md has the handshake). Then both sides open one endpoint per rail pair: a link.
//
// docs/security.md says what each step proves, what it costs, and which answers are only hints.
//
//   - A link is used once its probe has been answered over the rail (initiator/proof.go). A firewall may let only the
//     control port through.
//   - A session without a proved link within connect_timeout is lost.
//   - Two agents that write to each other have two sessions. A session with ourselves serves loopback. The target
//     needs no metadata of the initiator.
//   - A control connection that breaks or falls silent is redialled over the peer's other addresses, within the
//     session. Frames are kept until they are acknowledged, so that none is lost or doubled (peer/redial.go,
//     resume.go, stream/resume.go).
//   - A session belongs to an engine id, which its key proves. The agent's name is a label: several engines may use
//     one (target/names.go).
//   - When the session ends, the target closes its endpoints. That ends the peer's access where each peer has an
//     endpoint of its own. docs/security.md, "What the end of a session ends", has the others.
//
// # Notifications of a lost session
//
// Accepted notifications outlive a lost session (initiator/outbox.go).
//
//   - The initiator keeps them, dials again for peer_timeout, and sends them in the next session. Numbers go on from
//     session to session (Hello.After).
//   - The target freezes the older session. It says how far that session got and which notifications wait behind gaps
//     (Welcome.NextSeq, Have). It hands these to the new session (target/end.go, taken.go).
//   - The initiator fills the gaps first, with kept notifications or a SKIP.
//   - The initiator sends until it knows of the loss. So a target keeps a lost session on a shared endpoint open for
//     notifications: until the next session begins, for two peer_timeouts at most (a minute at least), and for the
//     last 256 lost sessions.
//   - Notifications behind gaps of ended sessions are bounded: notif_memory, 4096 engines, two peer_timeouts.
//   - An application that removes a peer and adds it again at once continues with the session that still delivers
//     (initiator/leave.go deliver).
//
// # Links of a rail pair
//
// A pair of rails has one link, or as many as both sides want (qps_per_rail, told in the connection blob). Each link
// has its own endpoints, receives, credits, windows and fences, so that a broken link is fenced alone. Transfers
// choose among links as among rails. Code that counts rails counts a rail once: names, the paths of a transfer,
// suspicion of a control connection, a device that goes down. Where peers share an endpoint, a pair has one link.
package session
