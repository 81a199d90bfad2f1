// Package ipc has the means by which processes of one host connect: sockets in the abstract namespace and in a folder,
// the credentials of the process at the other end, shared-memory segments, the handshake of two endpoints, and a server of descriptors. A wait
// for a peer ends at a deadline or by Close.
//
// # A socket's order of checks
//
// An end accepts in these steps:
//
//  1. The kernel's credentials (SO_PEERCRED): our effective user, not the overflow user unless all users are mapped.
//     With local_peers=any-with-token any user.
//  2. The token, within 100 ms. 16 connections wait at a time; one more evicts the oldest. Handshake:
//     TestSilentCallers, TestOldestEvicted, TestSecondCaller.
//  3. The process itself, as a pidfd (SO_PEERPIDFD; before Linux 6.5 pidfd_open, start time and a second look). Ipc:
//     TestNumberReused. Before Linux 6.5 a process of a sibling pid namespace has none. Its end then shows at the
//     closed socket. Ipc: TestSiblingPids.
//  4. Then the socket takes descriptors (SO_PASSRIGHTS, Linux 6.16), once. Four must come in one message, sealed and
//     of the right size.
//
// Before Linux 6.16 GORAIL closes connections that have not passed step 4 aside, 16 at a time: the last descriptor of
// a TCP socket that lingers may hold up who closes it (ipc TestLingeringDescriptors).
//
// # The folder
//
// A socket in local_dir passes the same checks. GORAIL demands that only root, our user and the socket's owner can
// replace it (ipc TestFolderRules). The folder is opened once, and names are looked up in it (TestFolderStays). Files
// are removed only if they are sockets of our user that refuse connections (TestSweep, TestSweepBesideListen).
//
// # Handshake
//
// A handshake (handshake.go) connects two endpoints of one host. Each endpoint dials the socket of the peer's rail and shows
// the token of the peer's endpoint. Then it sends the descriptors of its segment, its table, its shares and its ring:
//
//	dialer                                          listener
//	connect                                         accept, check credentials, wait 100 ms at most for:
//	checks the listener's credentials
//	hello: magic, size of a segment, token,
//	numbers of its namespaces                --->   finds the endpoint, identifies the process
//	                                         <---   one byte: the token was right; from here on descriptors are taken
//	magic, with four descriptors             --->   maps the segments; polls the socket as its own doorbell
//	the socket is the peer's doorbell
//
// When both have done that, the end with the greater token tells the other one over its connection that it rings over the other's connection now,
// and its own is closed.
//
// An endpoint is connected when both directions are complete. Any process of the network namespace can connect, and in
// the folder any process that the socket's mode admits. An
// unauthenticated connection is one of a few pending ones and lasts a moment. Nothing of it is opened or mapped
// before it shows the token of a waiting endpoint. A peer holds some of our descriptors, too. A read or write that
// waits on such a descriptor runs in a goroutine that Close ends.
//
// # Descriptors of memory
//
// A DescriptorServer passes file descriptors between processes of one host: of VMM memory (of GPUs), and of host memory that is a
// file. The owner of the memory makes them when a peer maps the memory, and sends them over sockets of its rail. Peers read the sockets' names
// and a token from the table of shares. Any process of the host may connect: processes of users that may not be peers
// are refused, and no caller can hold up the others.
package ipc
