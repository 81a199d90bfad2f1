// Package peer is the control channel between engines: sessions over TCP. A session agrees on endpoints, carries
// keys, revocations and fences, and detects the death of a peer. The package is pure Go and knows nothing of fabrics
// or memory.
//
// A session has a direction. The initiator's engine dials the target's control address (Node.Dial returns an Out).
// The target serves the session (its TargetHandler gets an In). The target does not need the initiator's metadata:
// the token in the target's connection blob authorizes the connection. Two agents that transfer both ways have two
// sessions. An engine that transfers to itself has a session with its own listener.
//
//	initiator (Out)                         target (In)
//	    connect ------------------------------> accept
//	            <------------ Challenge (nonce)
//	    Offers
//	    Hello (nonce, offers, MAC) ------------> check version, engine, MAC; TargetHandler.Hello
//	            <----------- Welcome (offers, MAC) or Reject (code, text)
//	    Ready
//	    KeysReq, Fence, Revoked, RingReq, Copy, Drain ->
//	    ...                                      the connection breaks, or is silent
//	    connect, another address ------------> accept
//	    ...                                      the connection breaks, or is silent
//	    connect, elsewhere -------------------> accept
//	            <------------ Challenge (nonce)
//	    Resume (nonce, got, MAC) --------------> check version, engine, MAC, session, count
//	            <------------ Resumed (got, MAC) or Reject (code, text)
//	    the same session goes on <------------->
//
// # States
//
//	            connected         Welcome
//	Dialing ------------> Hello ----------> Ready
//	   ^  |                | | |              | |
//	   |  |  next address, | | |              | |   dead or silent on all paths, Bye of the peer,
//	   |  |  or busy       | | |              | |   bad frame, queue overflow, handler failed
//	   +--+----------------+ | +------------+ | +--------------------------------------------> Lost
//	      |                  |   refused    | |
//	      +------------------+--------------+-+----------------------------------------------> Closed
//
// An In starts in Hello. Lost and Closed are final. A peer that comes back gets a new session.
//
// An In starts in Hello. Lost and Closed are final; a peer that comes back has a new session.
//
// A session uses one connection at a time, and survives its loss; see package stream. A Resume gives the session
// another connection. Package liveness has the signs of life. Package limiter bounds the handshakes of
// unauthenticated connections.
// A session runs over one connection at a time, and outlives it; package stream has how. A Resume gives it another. Package liveness has the
// The initiator looks for another connection when its own breaks, when that is silent for a third of
// Config.heartbeat, and when Out.Suspect is called. It tries all addresses of the peer at short intervals, the last
// connection's address at the end. A connection that still works is kept until another address has sent its
// challenge. In.Suspect closes the connection, so that the initiator looks for another.
// Out.Suspect says so. It tries all addresses of the peer at short intervals, that of the last connection at the end, and keeps one
// The peer is dead and the session Lost in two cases:
//
//   - The target proves by a MAC that the session has ended.
//   - The peer has hung up without a Bye. For 600 ms every address where it has answered before refuses connections or has another engine,
//     and no other address answers.
//
// A Reject without a MAC, a reset and a refused connection are hints, because anybody can cause them. Hints end a
// session or a dial only after all addresses have given them for 600 ms. The errors of a dead peer wrap ErrDead.
//
// While the peer is only unreachable, PeerTimeout decides. A target also waits for PeerTimeout for an initiator to
// resume. After a connection that was closed without a Bye the target waits for 1.2 s only, because the initiator has
// almost always died then.
// neither a session nor a dial before all addresses have said so for 600 ms. The errors of a peer that is dead wrap ErrDead. While it just can't be reached, PeerTimeout decides. A target that waits for an initiator to resume gives up after
// PeerTimeout too, but 1.2 s after a connection that was closed without a Bye: nearly always the initiator has died then.
//
// Every connection to a listener gets its challenge, regardless of earlier connections from its address: a bad and an
// honest peer may share the address. There are 256 places for handshakes. When all are taken, each new connection
// evicts a random handshake of one source. That source has failed too often, or else has the most handshakes. A proof
// takes a round trip. An evicted initiator tries again within ConnectTimeout.
// There are 256 places for handshakes. When all are taken a random one is evicted for each newcomer, of the source that has failed
// too often or has the most. A proof takes a round trip; an initiator that was evicted tries again within ConnectTimeout.
//
// Each session has the two goroutines of its stream, so its calls come one at a time and in order. A search for a
// connection has one goroutine for each address, and one more. All methods of Node, Out and In are safe for
// concurrent use, also inside a handler. None waits for the network, except Node.Close: its wait is bounded.
// Node, Out and In are safe for concurrent use, also from inside a handler, and none waits for the network (Node.Close
// The order of the locks: first the lock of an Out's keysRequests, then the stream's (which also guards a search),
// then the group's. Connections are closed under the stream's and the limiter's lock, which takes the lock of
// Descriptors. No lock is taken under the registry's.
// Locks: that of an Out's asks, the stream's (a search is guarded by it, too), the group's. Under the stream's and the
// limiter's connections are closed, which takes that of Descriptors; under the registry's none is taken.
//
// Silence does not prove death. A side pings when it has sent or heard nothing for a quarter of Config.heartbeat.
// After PeerTimeout without data on any connection, it checks other signs of life (Stream.alive): the peer's process
// runs, if it is visible on this host; the peer's kernel acknowledges our pings. The session is lost without any
// sign.
//
// A process that was stopped itself notices a timer that fires late. It then gives its peer another half of
// PeerTimeout, so that data in the socket count. A target that was stopped after its initiator hung up starts the
// wait for it again. If the target only lacked CPU time, that time is not counted.
// by a timer that fires late, and gives its peer half a PeerTimeout more, from what is in the socket on. A target that was stopped after its
// The end of a visible process ends the session at once, even if another process has inherited its sockets
// (Stream.WatchProcess).
//
// The end of a visible process ends the session at once, whoever has inherited its sockets (Stream.WatchProcess).
package peer
