// Package stream provides a stream of control frames in both directions. A stream survives the loss of its
// connection. The package performs no handshake: the user of a stream provides its connections, handles its frames
// (Handle), and finds another connection on demand (Reconnect). The package knows nothing about listeners,
// addresses to dial, tokens or the meaning of a frame.
//
// # Connections
//
// A stream uses one connection at a time, and survives the connection's loss; handlers do not notice a change.
// Numbered frames (all but Ping, Pong and Bye) are counted in each direction. The sender keeps the frames that the
// other side has not acknowledged. An acknowledgement is a count in a Ping or Pong. It also travels with other
// frames, and the sender asks for one after every 256 KiB of frames. In a Resume each side sends the count of frames
// that it has received. It receives nothing more from the previous connection. It then sends the missing frames
// again, in order. Of several Resumes the one with the highest Try wins.
//
// # States
//
// A stream begins in Dialing or Hello, and is Ready after Start. Lost and Closed are final.
//
// # Threads
//
// Run reads and calls the handler, so the calls of a stream come one at a time and in order. Another goroutine
// writes; it runs while there is something to write. A slow handler delays its own stream only: the writer still sends pings, and the connection can be
// replaced. Frames to send go into a queue. The stream is lost when queued and unacknowledged frames exceed
// Env.QueueLimit. Keys requests wait in the queue while the answers to about 2048 ranges are outstanding
// (maxPendingKeys).
//
// Stream.mu guards the state and the connection. It is locked before the locks of the queue, of the writing and of the monitor, in this order.
// Reconnect is called with it held.
package stream
