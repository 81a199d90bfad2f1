// Package peer is the control channel between engines: sessions over TCP. A session agrees on endpoints, carries
// keys, revocations and fences, and detects the death of a peer. The package is pure Go and knows nothing of fabrics
// or memory.
//
// A session has a direction. The initiator's engine dials the target's control address (Node.Dial returns an Out).
// The target serves the session (its TargetHandler gets an In). The target does not need the initiator's metadata:
// the token in the target's connection blob authorizes the connection. Two agents that transfer both ways have two
// sessions. An engine that transfers to itself has a session with its own listener. secure.go has the handshake up
// to TLS; docs/security.md says what each step proves.
//
//	initiator (Out)                         target (In)
//	    connect ------------------------------> accept
//	            <------------ Challenge (version, nonce)
//	    Open (version, engine, MAC) -----------> check them; a turn for TLS
//	    TLS, with the target's pin <----------->
//	    Offers
//	    Hello (offers, MAC, identity) ---------> check MAC, engine, identity; TargetHandler.Hello
//	            <----------- Welcome (offers, identity) or Reject (code, text)
//	    Ready
//	    KeysReq, Fence, Revoked, RingReq, Copy, PackedCopy, Drain, SnapshotReq ->
//	            <---- Keys, Fenced, Revoke, Ring, Copied, PackedCopied, Drained, Snapshot, Wider
//	    Ping, Pong, Bye <---------------------->
//	    ...                                      the connection breaks, or is silent
//	    connect, another address ------------> accept
//	            <------------ Challenge (version, nonce)
//	    Open, TLS <---------------------------->
//	    Resume (got, MAC, identity) -----------> check engine, session, identity, MAC, count
//	            <------------ Resumed (got, MAC, identity) or Reject (code, text)
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
// An In starts in Hello. Lost and Closed are final. A peer that comes back gets a new session.
//
// # Streams
//
// A Stream (stream*.go) carries control frames in both directions, uses one connection at a time, and survives the connection's
// loss; handlers do not notice a change. It makes no handshake: its user provides connections, handles frames (Handle) and finds
// another connection on demand (Reconnect). Numbered frames (all but Ping, Pong and Bye) are counted in each direction. The
// sender keeps those that the other side has not acknowledged. An acknowledgement is a count in a Ping or Pong. It also travels
// with other frames, and the sender asks for one after every 256 KiB of frames. In a Resume each side sends the count of
// frames that it has received, and receives nothing more from the previous connection. It then sends the missing frames again,
// in order. Of several Resumes the one with the highest Try wins.
//
// Frames to send go into a queue. The stream is lost when queued and unacknowledged frames exceed streamEnv.QueueLimit. Keys
// requests wait in the queue while the answers to about 2048 ranges are outstanding (maxPendingKeys). A slow handler delays its
// own stream only: the writer still sends pings, and the connection can be replaced.
//
// # Connections
//
// A Resume gives a session another connection. A livenessMonitor (liveness_monitor.go) collects the signs of life: the time of the last
// frame, the peer's process if it is visible, the acknowledgements of its kernel. A handshakeLimiter bounds the connections in their
// handshake: those without the token, those with it, and the turns of TLS.
//
// The initiator looks for another connection when its own breaks, when that is silent for a third of
// Config.heartbeat (two thirds, but a third of PeerTimeout at most, and paced, while the peer's kernel acknowledges our pings: its process starves or is stopped), when Out.Suspect is called, and when something is overdue and our kernel sends again without an
// acknowledgement (cut.go). It asks for connections again and again, because TCP would do so after a second only. It tries all addresses of the peer at short intervals, the last
// connection's address at the end. A connection that still works is kept until another address has sent its
// challenge. It is given up then, with a Bye that it may hold: so an engine that ends says so in its Reject, too. It stays open, as does
// a connection whose Resume had no answer in time, until there is another one (stream.park): its end would be the end of our process to the target. In.Suspect closes the connection, so that the initiator looks for another.
//
// The session is Lost at once when the target rejects a Resume inside TLS, unless it is only busy. It is also Lost
// when, for 600 ms, every address where the peer has answered before refuses and no other address answers. A Reject
// always counts as a refusal. A refused connection counts only if the peer has hung up without a Bye. An
// address that accepts the connection and then says nothing refuses nothing: its process may be stopped or starved. The
// peer is dead, and the error wraps ErrDead, if no address knows the session.
//
// A Reject outside TLS, a wrong key, a reset and a refused connection are hints, because anybody can cause them. Hints
// end a session or a dial only after all addresses have given them for 600 ms.
//
// While the peer is only unreachable, PeerTimeout decides. A target also waits for PeerTimeout for an initiator to
// resume. After a connection that was closed without a Bye the target waits for 1.2 s only, because the initiator has
// almost always died then.
//
// # Unauthenticated connections
//
// Every connection to a listener gets its challenge, regardless of earlier connections from its address: a bad and an
// honest peer may share the address. There are 256 places for handshakes. When all are taken, each new connection
// evicts a random handshake of one source. That source has failed too often, or else has the most handshakes. A proof
// takes a round trip. An evicted initiator tries again within ConnectTimeout.
//
// # Threads
//
// Each session has a goroutine, so its calls come one at a time and in order, and another one while it writes. A reconnect has
// one goroutine for each address, and one more. All methods of Node, Out and In are safe for
// concurrent use, also inside a handler. None waits for the network, except Node.Close: its wait is bounded.
//
// The order of the locks: first the lock of an Out's keysRequests, then stream.mu (which guards its state and the connection, and also a
// reconnect), then those of its queue, of its writing and of its monitor, then the group's. reconnectFunc is called with stream.mu
// held. Connections are closed under the stream's and the limiter's lock, which takes the lock of
// Descriptors. No lock is taken under the session table's.
//
// # Liveness
//
// Silence does not prove death. A side pings when it has sent or heard nothing for a quarter of Config.heartbeat.
// After PeerTimeout without data on any connection, it checks other signs of life (stream.alive): the peer's process
// runs, if it is visible on this host; the peer's kernel acknowledges our pings. The session is lost without any
// sign.
//
// Only the initiator looks for another path, and only when it hears nothing. If a path is silent towards the target
// alone, the initiator still hears the target's pings, and the session ends after the target's PeerTimeout.
//
// A process that was stopped itself notices a timer that fires late. It then gives its peer another half of
// PeerTimeout, so that data in the socket count. A target that was stopped after its initiator hung up starts the
// wait for it again. If the target only lacked CPU time, that time is not counted.
//
// The end of a visible process ends the session at once, even if another process has inherited its sockets
// (stream.WatchProcess).
//
// # Idle peers
//
// A session is quiet when no frame and no transfer was outstanding for 10 s and the peer has answered
// (liveness_monitor.go quiet). A quiet peer of this host gets no pings: its pidfd and the end of its socket tell
// of its death. Another one gets a ping in 15 s, or in a quarter of peer_timeout. So a host that goes without a word
// is noticed within peer_timeout, as ever; a path that fails under an idle session is replaced after 17 s instead of
// 1.7 s, or when work begins. A frame or a transfer makes the session brisk at once (stream.Busy). At a limit of
// sessions, quiet peers are asked whether they live (sessions.go). An engine without transfers and frames for 10 s
// ticks ever less often, each 64 s at last, all engines of a process together (engine/sweep.go), and gives memory back
// (engine/sweep.go giveBack). So does its progress thread (core/thread.c block): 64 s on rails that lose no event
// (is.sure: tcp, shared memory), 4 s on others. A frame, a transfer or an event ends the long sleep. One goroutine of
// a process watches the pidfds of all engines' peers (liveness_watch.go). Sessions that an engine begins are
// paced, so that handshakes leave processors to the application's calls (starts.go). Endpoints of one host whose
// peers do nothing are not polled (shm/cma/doze.c).
//
// So the session of a stopped peer is kept without limit. It is the first to give way when a bound of sessions
// or endpoints is reached (sessions.go, session/target_sessions.go).
// Children of fork close our control sockets (core/base.c). Otherwise they would hide our death from other hosts.
package peer
