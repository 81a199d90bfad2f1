// Package actor plays an agent in a process of its own, by a seeded schedule, and writes its history (package history).
//
// Each actor is initiator and target. As a target it has a region for each initiator and each of that initiator's two
// latest lives, in an arena that all processes map. So an initiator sees at once whether its bytes are in place, and
// the memory outlives a SIGKILL. A region has one slot for each size and direction. Who writes where:
//
//	slot of WRITEs  a WRITE of its initiator; and a constant pattern, the canary: by the initiator after an end, by the
//	                target after deregisterMem. Both write the same bytes, so they need no lock.
//	slot of READs   the target alone, after deregisterMem: a pattern for each time that it is registered (generation).
//
// The generation of a region is odd from before deregisterMem until it is registered again. A success whose bytes are
// gone counts as right if the target saw them in place as deregisterMem returned (history.Taken).
//
// What has ended is quiet: a slot must have its last bytes when it is used next, and at the end. A slot of a WRITE that
// was released in flight is not used until the target has taken it back: what was posted may still drain.
//
// The schedule follows from seed, name, life and step. The interleaving does not.
package actor
