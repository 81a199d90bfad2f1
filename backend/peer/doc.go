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
// # Lines
//
// A session runs over one connection at a time, its line, and outlives it: handlers notice nothing. Numbered frames (all but
// Ping, Pong and Bye) are counted by their order in each direction. The sender keeps what the other side has not acknowledged;
// acknowledgements are counts, and travel in Ping and Pong, which also go out along with other frames and for every 256 KiB
// of them. Each side of a Resume says how many frames it has taken in, takes in nothing more from the line before, and sends
// again, in order, what the other has not got. Of several Resumes the one with the highest try counts.
//
// The initiator looks for another line when its line breaks, when it is silent for a third of Config.heartbeat, and when
// Out.Suspect says so. It tries all addresses of the peer at short intervals, that of the last line at the end, and keeps a line
// that still works until another address has sent its challenge. In.Suspect closes the line, so that the initiator looks.
//
// The peer is dead, and the session Lost, when it has hung up without a Bye, every address where it has answered
// before refuses connections or has another engine for 600 ms, and no other address answers meanwhile; and at once when the target proves by
// a MAC that the session has ended. A Reject without that, a reset and a refused connection are hints, which anybody can give: they end
// neither a session nor a dial before all addresses have said so for 600 ms. The errors of a peer that is dead wrap ErrDead. While it just can't be reached, PeerTimeout decides. A target that waits for an initiator to resume gives up after
// PeerTimeout too, but 1.5 s after a connection that was closed without a Bye: nearly always the initiator has died then.
//
// # Unauthenticated connections
//
// Every connection to a listener gets its challenge, whatever others from its address have done: a bad one and an honest peer may share it.
// There are 256 places for handshakes. When all are taken a random one is thrown out for each newcomer, of the source that has failed
// too often or has the most. A proof takes a round trip; an initiator that was thrown out tries again within ConnectTimeout.
//
// # Threads
//
// Each session has one goroutine that reads and calls the handler, so the calls of a session come one at a time and in
// order, and one that writes; an initiator that looks for a line has one for each address, and one more. A handler that is
// slow delays its own session only; the writer's pings go on meanwhile, and a line can be replaced. All methods of
// Node, Out and In are safe for concurrent use, also from inside a handler, and none waits for the network (Node.Close
// waits, bounded). What is to be sent goes into the session's queue; above Config.QueueLimit, with what is not acknowledged,
// the session is lost. Requests for keys wait in it while the answers to 8192 ranges are due.
//
// # Liveness
//
// Silence is not death. A side pings when it has sent or heard nothing for a quarter of Config.heartbeat. When it has heard nothing for
// PeerTimeout, on whatever line, it looks for other signs of life (evidence.go): the peer's process runs, where it is on this host
// and visible; the peer's kernel acknowledges our pings. Without any the session is lost. A process that was stopped itself notices
// by a timer that fires late, and gives its peer half a PeerTimeout more, from what is in the socket on.
//
// The end of a visible process ends the session at once, whoever has inherited its sockets (process.go).
package peer
