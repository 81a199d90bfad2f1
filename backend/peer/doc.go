// Package peer is the control channel between engines: sessions over TCP that agree on endpoints, carry keys, revocations
// and fences, and tell when a peer has died. It is pure Go and knows nothing of fabrics or of memory.
//
// A session has a direction. The initiator's engine dials the target's control address (Node.Dial gives an Out); the target
// serves (its TargetHandler gets an In). The target need not know the initiator's metadata: the token in the target's
// connection blob is the right to connect. Two agents that transfer both ways have two sessions, and an engine that talks to
// itself has a session with its own listener.
//
//	initiator (Out)                         target (In)
//	    connect ------------------------------> accept
//	            <------------ Challenge (nonce)
//	    Offers
//	    Hello (nonce, offers, MAC) ------------> check version, engine, MAC; TargetHandler.Hello
//	            <----------- Welcome (offers, MAC) or Reject (code, text)
//	    Ready
//	    KeysReq, Fence, Revoked, RingReq, Copy, Drain ->
//	            <---- Keys, Fenced, Revoke, Ring, Copied, Drained
//	    Ping, Pong, Bye <---------------------->
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
//	                                            Out.Close, In.Close, Node.Close
//
// An In starts in Hello. Lost and Closed are final; a peer that comes back has a new session.
//
// # Connections
//
// A session runs over one connection at a time, and outlives it; package stream has how. A Resume gives it another. Package liveness has the
// signs of life, package limiter what bounds the handshakes of connections that have proved nothing.
//
// The initiator looks for another connection when its own breaks, when it is silent for a third of Config.heartbeat, and when
// Out.Suspect says so. It tries all addresses of the peer at short intervals, that of the last connection at the end, and keeps one
// that still works until another address has sent its challenge. In.Suspect closes the connection, so that the initiator looks.
//
// The peer is dead, and the session Lost, when it has hung up without a Bye, every address where it has answered
// before refuses connections or has another engine for 600 ms, and no other address answers meanwhile; and at once when the target proves by
// a MAC that the session has ended. A Reject without that, a reset and a refused connection are hints, which anybody can give: they end
// neither a session nor a dial before all addresses have said so for 600 ms. The errors of a peer that is dead wrap ErrDead. While it just can't be reached, PeerTimeout decides. A target that waits for an initiator to resume gives up after
// PeerTimeout too, but 1.2 s after a connection that was closed without a Bye: nearly always the initiator has died then.
//
// # Unauthenticated connections
//
// Every connection to a listener gets its challenge, whatever others from its address have done: a bad one and an honest peer may share it.
// There are 256 places for handshakes. When all are taken a random one is evicted for each newcomer, of the source that has failed
// too often or has the most. A proof takes a round trip; an initiator that was evicted tries again within ConnectTimeout.
//
// # Threads
//
// Each session has the two goroutines of its stream: the calls of a session come one at a time and in order. An initiator that looks for a
// connection has one for each address, and one more. All methods of
// Node, Out and In are safe for concurrent use, also from inside a handler, and none waits for the network (Node.Close
// waits, bounded).
//
// Locks: that of an Out's asks, the stream's (a search is guarded by it, too), the group's. Under the stream's and the
// limiter's connections are closed, which takes that of Descriptors; under the registry's none is taken.
//
// # Liveness
//
// Silence is not death. A side pings when it has sent or heard nothing for a quarter of Config.heartbeat. When it has heard nothing for
// PeerTimeout, on whatever connection, it looks for other signs of life (Stream.alive): the peer's process runs, where it is on this host
// and visible; the peer's kernel acknowledges our pings. Without any the session is lost. A process that was stopped itself notices
// by a timer that fires late, and gives its peer half a PeerTimeout more, from what is in the socket on. A target that was stopped after its
// initiator hung up waits as long again for it; where it was only starved of CPU, that time is not counted.
//
// The end of a visible process ends the session at once, whoever has inherited its sockets (Stream.WatchProcess).
package peer
