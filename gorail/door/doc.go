// Package door is where callers on other hosts come in, to gorail bench --listen and gorail doctor --listen: who has the token, how many
// they may be, what they may ask for, and what of their text a terminal sees.
//
// A listener makes a token when it starts and prints it. Caller and listener prove to each other that they know it, by HMAC-SHA256 over
// two random numbers; nobody sends it. Before that proof a caller has one of few places for a short time, and 72 bytes of it are read.
// After it, the caller gets a process of its own. The connection is not encrypted: who can change packets on the way can send commands of
// his own, within what this package lets callers ask for.
package door
