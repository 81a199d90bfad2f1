// Package mover plays an agent whose memory changes under its registration, in a process of its own, by a seeded schedule. It writes its
// history (package history). Package actor plays the other promises.
//
// Each mover is initiator and target. As a target it has pieces of memory (kinds), of GPUs and of the host. A piece has generations: the
// owner takes the memory away, deregistered or not, and puts other memory under the same addresses, registered anew or not. It tells
// no peer. A piece is half for READs, which have the pattern of the generation, and half for WRITEs, with a slot for each initiator.
//
// All processes map the board of an agent, which outlives it. It has the generation of each piece, the files that are its memory, and
// a box for each initiator: a WRITE that has ended with success, until the owner has looked for its bytes.
//
// The owner notes each change before it begins and after it has ended (history.Altered), and whether peers hold memory that it has taken
// away (history.Held, package held). The initiator notes the oldest generation among the bytes of a READ. The rest is the checker's.
//
// The schedule follows from seed, name, life and step. The interleaving does not.
package mover
