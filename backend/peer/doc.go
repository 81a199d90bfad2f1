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
//	    KeysReq, Fence, Revoked --------------->
//	            <---------- Keys, Fenced, Revoke
//	    Ping, Pong, Bye <---------------------->
//
// # States
//
//	            connected         Welcome
//	Dialing ------------> Hello ----------> Ready
//	   ^  |                | | |              | |
//	   |  |  next address, | | |              | |   EOF, reset, silence, Bye of the peer,
//	   |  |  or busy       | | |              | |   bad frame, queue overflow, handler failed
//	   +--+----------------+ | +------------+ | +--------------------------------------------> Lost
//	      |                  |   refused    | |
//	      +------------------+--------------+-+----------------------------------------------> Closed
//	                                            Out.Close, In.Close, Node.Close
//
// An In starts in Hello. Lost and Closed are final; a peer that comes back has a new session.
//
// # Threads
//
// Each session has one goroutine that reads and calls the handler, so the calls of a session come one at a time and in
// order, and one that writes. A handler that is slow delays its own session only; the writer's pings go on meanwhile. All methods of
// Node, Out and In are safe for concurrent use, also from inside a handler, and none waits for the network (Node.Close
// waits, bounded). What is to be sent goes into the session's queue; above Config.QueueLimit the session is lost.
//
// # Liveness
//
// A side pings when it has sent or heard nothing for a quarter of PeerTimeout, and takes the peer for lost when it has heard
// nothing for PeerTimeout. A process that was stopped itself notices by a timer that fires late, and gives its peer half a
// PeerTimeout more, from what is in the socket on. EOF and reset end a session at once.
package peer
