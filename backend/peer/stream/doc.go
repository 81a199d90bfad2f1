// Package stream is a stream of control frames in both directions that outlives its connections. It handshakes no hands: who opens a stream
// gives it connections and takes its frames (Handler), and looks for another connection when it asks (Reconnector). It knows nothing of
// listeners, addresses to dial, tokens or what a frame means.
//
// # Connections
//
// A stream runs over one connection at a time, and outlives it: handlers notice nothing. Numbered frames (all but
// Ping, Pong and Bye) are counted by their order in each direction. The sender keeps what the other side has not acknowledged;
// acknowledgements are counts, and travel in Ping and Pong, which also go out along with other frames and for every 256 KiB
// of them. Each side of a Resume says how many frames it has taken in, takes in nothing more from the connection before, and sends
// again, in order, what the other has not got. Of several Resumes the one with the highest try counts.
//
// # States
//
// A stream begins in Dialing or Hello and is Ready from Start on. Lost and Closed are final.
//
// # Threads
//
// Run reads and calls the handler, so the calls of a stream come one at a time and in order; a goroutine of its own writes. A handler that
// is slow delays its own stream only; the writer's pings go on meanwhile, and a connection can be replaced. What is to be sent goes into the
// queue; above Env.QueueLimit, with what is not acknowledged, the stream is lost. Requests for keys wait in it while the answers to about
// 2048 ranges are due (maxAsked).
//
// Stream.mu guards the state and the connection. It comes before the locks of the queue and the monitor; Reconnector.Reconnect is called with it held.
package stream
