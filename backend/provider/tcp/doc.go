// Package tcp is a rail over TCP sockets. It trusts no byte that it has not checked: connections prove that they belong to a
// link, and each address that a peer names is an offset into a region. docs/tcp.md has options and figures.
//
// This package finds devices, and makes the connections: the initiator of a link dials (dial.go), the target listens (listener.go), and
// both prove that they know the secret of the link (opening.go). A connection that has proved nothing gets no byte, and its place is
// bounded. Package sock has the data path in C.
//
// # Protocol
//
// Little endian. A connection carries frames in each direction, and nothing else after the opening.
//
// # Opening
//
//   - initiator: 80; magic, version, encrypted (0 or 1), ticket (16), nonce (16), MAC of the link's secret over all
//     before (trust.LinkSecret.OpeningMac)
//
//   - target: 48; nonce (16), MAC over opening and nonce (AcceptMac)
//
//   - The initiator sends no frame before it has checked the answer. The target reads no frame before it has checked
//     the MAC.
//
//   - The target draws the ticket. It is in the endpoint's address, which travels inside the control channel: in the
//     Welcome, and in Fenced for the next epoch. So the frames of the control channel have no field for it.
//
//   - The link's secret comes from the session's secret, the ticket, the rails, the links' ids and the epoch
//     (provider.Security, docs/security.md).
//
//   - A ticket works once. A connection that breaks is a fence: next epoch, next ticket, next connection.
//
//   - The listener always accepts. A whole opening is looked up at once, and needs no place. A part of one, or none,
//     takes one of 64 places; when all are taken, the oldest of the source with the most gives its own (an IPv6 /64 is
//     one source). An opening is whole within a second. Then, or when it is wrong, the socket is closed with a linger
//     of 0, without an answer. An initiator that starved dials again, for connect_timeout.
//
//   - An initiator has 4 openings at one target from one address at a time, so that none is reset: 1,000 links at once
//     take 0.3 s.
//
// # Frames
//
// All frames have one header of 32 bytes. An acknowledgement of 16 bytes is no faster than one of 64.
// Each line below has an offset, a field, and the frames that use it; the second list has frames, what is behind
// the header, and what answers them.
//
//   - 0: high half: magic (0xa); low half: kind of frame; all
//
//   - 1: flags: ASK 1 (acknowledge now); WRITE, SEND. PACKED 4: the body is packed, or the READ's answer may be; WRITE, ANSWER, READ
//
//   - 2: number of segments; WRITE (256 at most), READ (8 at most)
//
//   - 4: bytes of the body, 1 MiB at most; WRITE, SEND (8 KiB at most), ANSWER
//
//   - 8: number of the READ; of REFUSED: index of the segment; READ, ANSWER, REFUSED
//
//   - 12: status: EACCES, ESTALE, EFAULT; 0: success; ANSWER, REFUSED
//
//   - 16: number of the frame, from 1; WRITE, SEND, REFUSED
//
//   - 24: ack: all WRITEs and SENDs up to this number are placed or delivered; all
//
//   - WRITE: segments, then their bytes; ack
//
//   - SEND: a message of the core; ack
//
//   - READ: segments; ANSWER with the same number
//
//   - ANSWER: bytes; they go where the requester's own operation says; -
//
//   - ACK: -; -
//
//   - REFUSED: -; the end of the connection
//
//   - GOODBYE: -; -
//
// A segment has 24 bytes: key 8, address 8, length 4, zero 4. The address is the region's number (upper 20 bits) and
// an offset into it (lower 44 bits).
//
//   - The target accepts a segment if the region is registered, the key fits, the rights allow the direction, and
//     offset <= size && length <= size - offset. All segments of a frame are checked before its first byte is placed.
//   - The key belongs to a session: SipHash-2-4 of the region's 64 random bits and its number, under a salt of the
//     session. Another session's key opens nothing.
//   - Operations in a row become one WRITE while they fit.
//   - A WRITE that is refused ends the connection. Nothing behind it is taken in, since a message behind it would
//     prove what is not in place (gr_rail.is.ordered). REFUSED names the segment, so that the operation at fault fails
//     first. Then the link is fenced, and the rest is replayed. A refused READ has an ANSWER with a status, and the
//     connection goes on.
//   - A completion is the ack, so it proves placement. An unsignaled WRITE completes when the socket has its bytes.
//     Messages follow data on the stream, so a notification costs no round trip (gr_rail.is.ordered, chained).
//   - A requester has at most 64 READs and 4 MiB of answers outstanding on a connection. More ends the connection.
//   - Nothing comes after GOODBYE. A frame that is sent in part is not acknowledged. Any other status than the three
//     would have a meaning of its own at the other end. Fields that a frame does not use are ignored.
//     test/tcpmodel has all rules, and TestBrokenRules breaks them.
//   - A frame that breaks a rule ends the connection. The rail counts such connections, and the log says how many
//     there were, once a minute at most.
//
// # Packed bodies
//
// With option compression. An endpoint's address says whether what comes over its connection may be packed. A body is packed if both ends
// have said so. It is then a list of blocks, and the header's length is theirs. What they stand for has the length of the segments, or of
// the READ.
//
//   - A block stands for 64 KiB, the last one for the rest. Its form is that of sock/pack.h. Behind it is a byte without meaning: a receiver
//     takes it from the stream once the block is in place, so that a block may wait for a bounce buffer of a GPU.
//   - A body that does not gain 3 % goes as it is. So does any below 64 KiB.
//   - The initiator of a transfer decides: it packs its WRITEs, and asks for packed answers. sock/pace.c says when compression=auto does.
//   - A body is packed from a snapshot, when the socket has taken the frame before. It is sent to its end even if its memory changes or is
//     deregistered meanwhile.
//   - Records are made of what is packed.
//   - Nine bytes may stand for 64 KiB. So a connection's turn ends after 1 MiB of bytes or of what they stand for, both ways: the rest of
//     what was received is kept (TestZerosInTurns).
//
// # Records
//
// With option encryption every byte behind the opening is inside records, in both directions. A record is a head of 4
// bytes, the encrypted text, and a tag of 16.
//
//   - head: length of the text, little endian. Bit 31: the first record under the next key. Other bits are zero. The
//     head is authenticated with the text
//   - cipher: AES-256-GCM of OpenSSL's libcrypto, found by dlopen when the agent is made (1.1.1 to 3.x,
//     by the usual three names). It is tried with a known text first. Without it the agent is not made
//   - keys: HKDF from the link's secret, both nonces of the opening, direction and generation (trust.RecordSecret). No
//     key serves two connections or directions
//   - nonce: 12 derived bytes, and the number of the record under its key. A record that is repeated, left out, moved
//     or from another connection fails. So does an end without GOODBYE
//   - a new key: before 64 GiB or 2^22 records of one key, whichever is first. The receiver takes at most 2^24
//     (AES-GCM's bound is 2^24.5), and at least 1024: a key costs it 4 us under the rail's lock
//   - record inside a body: at most 128 KiB. It begins and ends inside the body of one frame, whose header and
//     segments were in verified records
//   - other record: at most 16 KiB: headers, segments, whole small frames. It is verified before any byte of it is
//     used
//   - a record that fails: the connection ends (EBADMSG), and the rest is replayed over another. The rail counts such
//     connections, and the log has a warning once a minute at most
//
// # Nobody waits for anybody
//
//   - Receiving depends on nothing: neither on room to send nor on an acknowledgement. A message that comes before its
//     receive was posted is kept, 32 at most.
//   - An ack is a counter: the newest replaces the one not yet sent. It is in each header. A frame of its own goes
//     only if nothing else goes.
//   - A READ's answer is made from its request when there is room to send. It is never copied into a queue.
//   - There is no other queue, except that an encrypted connection keeps at most 256 KiB of sealed bytes. Two ends
//     that write 64 MiB at each other finish (TestBothWays: "send all, then receive" stops at 4 MiB).
//
// # Memory of GPUs
//
// Transfers of GPU memory of up to 1 MiB go through bounce buffers of the rail (docs/gpu.md, "Small transfers over
// tcp"). On the wire nothing differs: an address names a region, and regions may be on a GPU. A connection counts what
// it has received (got_seq) and what is in place (placed_seq). The two differ while copies are in progress. An
// acknowledgement tells placed_seq.
//
// # Sockets
//
//   - The core's progress thread polls for 20 us after a completion, then sleeps in epoll. If the process may use
//     four processors and more, a receive of up to 68 KiB counts, too: a target's thread has no completions of WRITEs
//     and READs. Two connections are hot: those that gave bytes last. They are received from at once. All others come
//     by epoll_wait, edge-triggered, in every sixteenth poll. (A receive that finds nothing takes 0.4 us, an empty
//     epoll_wait 0.2 us.)
//   - Some things give no event of a socket: a connection that cannot be made, a message that came before its receive,
//     what a poll of the application has left over. They wake the thread by an eventfd in the rail's epoll, once an
//     arm (sock/conn.c tcp_wake).
//   - A connection that is left before EAGAIN stays on a list of ours: the edge does not come again. So does one that
//     has an end behind its last bytes.
//   - TCP_NODELAY. Never SO_RCVBUF: it caps the rate of a long link at a tenth. SO_SNDBUF of 512 KiB for a peer of
//     this host (64 MiB: 12 instead of 22 ms), else TCP_NOTSENT_LOWAT of 512 KiB.
//   - Never TCP_USER_TIMEOUT: it ends connections to stopped processes whose kernel answers. Keepalive after
//     peer_timeout/3; TCP_RTO_MAX_MS and TCP_RTO_MIN_US where the kernel has them. The control channel decides about
//     life, as for all rails, and finds the end of a cut before TCP sends again (session/cut.go).
//   - After EPOLLERR, EPOLLHUP or EPIPE a connection is read until it fails: what the peer has sent before its end
//     still counts.
//   - In clear, one send call has everything that fits. It is never cut below 512 KiB: pieces of 256 KiB cost half of
//     the rate.
//   - No io_uring: 20 % slower for small frames, nothing gained for large ones, forbidden in most containers. No
//     MSG_ZEROCOPY on loopback and veth: both copy.
package tcp
