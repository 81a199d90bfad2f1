// Package region holds the memory of an engine. It has the table of regions that the core reads, the local registrations on the
// rails (in slices for large ranges), and the peers that hold their keys. Regions of peers are in the same table; their
// sessions fill them in.
//
// # Slices
//
// The public metadata of a region is a pure function of range and engine. A range may have more bytes than the rails
// want to register at once (Caps.MaxMR, option mr_max). Then it is several regions, called slices, and one more region
// that names them. The agent knows only that one.
//
//   - Each slice is registered, keyed, revoked and planned as any region is. So no work request lies in two slices
//     (region/slices.go, transfer/prep.go).
//   - The places of slices follow from the range and the size that the connection blob tells (wire/slice.go). Each
//     registration has slices of its own, also where another has equal ones; the registration cache shares what rails
//     pin.
//   - Lists with slices take as long to prepare as lists without (go test ./backend/engine -run NONE -bench Prep).
//
// # Registration
//
// It does not wait for rails that need nothing of the memory itself (Rail.Later of package provider: tcp; shared memory, for ranges of
// a mapping that it knows to be private). registerMem enters the range, and checks all that can fail it. It returns
// the region and the blob for peers in one call into Go. The rails get the range with others when Registry.Settle is
// called: before a transfer is prepared, before a peer gets keys, before the range is deregistered, before a rail
// joins, at the end, or 1 ms later (region/settle.go). If one open rail needs something of the memory itself, or the
// range is larger than a slice, all rails get it at once. A rail's refusal of host memory fails no registration in
// either case.
//
// What a registration on a rail takes for peers alone may wait until a peer first asks for its keys (provider.Enterer: tcp enters memory in its
// table), 512 regions a call (holders.go enter): on eight rails of tcp that took 17 us a region, and most regions of an initiator are never asked for.
// If the table is full then, the peer gets no key of that rail, and the log says so.
//
// # Keys
//
// Keys are pulled. An initiator asks for the keys of the ranges that it has loaded, 512 a request and three requests
// at a time. It asks at once for the keys that a transfer waits for (session/initiator_keys.go). The target notes the holders.
//
//   - A request names memory by a claim: a range, with the capability from the registration's blob (wire/cap.go). It
//     is an AES-CMAC of the range, under a secret that never leaves the engine. So a peer that only knows or guesses
//     where memory is gets no key of it, no bounce buffers and no copies.
//   - A capability opens its own range alone, while that is registered. A slice takes the capability of its
//     registration.
//   - A claim without the right capability is answered as if nothing were registered, and counted (caps_refused;
//     region/registry.go claimed).
//   - On one host any process that may connect can read and write our memory without a key: there a capability is
//     advice.
//   - A key that we choose is random, over all bits of the fabric's keys (rails/mr_cache.go). A peer that knows some keys can
//     guess no other.
//   - In a message a key takes 4 or 8 bytes and a capability 16, once for all slices of a registration. Everything
//     else takes a few (wire/keys.go, claims.go).
//
// # Revocation
//
// deregisterMem at the target asks the holders to stop (REVOKE). A holder answers when it has nothing in flight on the
// region. Only then does the target let the memory go.
//
//   - A transfer that is completely posted may complete. Others are aborted. Their error waits for the peer's goodbye:
//     0.6 s after the last such error, and 2 s after the first at most (transfer/revoked.go).
//   - They do not wait once the target stays. An agent's destructor deregisters, unloads and ends without a pause, and
//     registers nothing. So the target stays when it has registered memory since its last deregistration, or when six
//     timers of 100 ms have fired one after the other without such a call. In a process that was stopped all timers
//     are due at once, so one long interval proves nothing (region/destroyed.go). Each answer to a key request says
//     it.
//   - A holder that does not answer within cancel_timeout loses its session.
//   - Over a failed link the answer goes behind a FENCE.
//   - An idle holder gives up all keys with its answer. So a burst of deregistrations costs one round trip.
package region
