// Package trust has the keys and proofs of the control channel, and the secrets that data connections get from it. It is
// pure: it neither reads files nor uses sockets. docs/security.md says what each proof is worth.
//
//	engine key --- Pin ---> connection blob --- EngineID (first half of the Pin)
//	TLS exporter, both Pins, nonce ---> Binding ---> proofs of a Hello
//	token, Binding ---> session secret ---> proofs of a Resume
//	                                   ---> salt of the keys of regions
//	                                   ---> link secret (with a ticket) ---> opening of a data connection, record keys
//
// All functions are safe for concurrent use.
package trust
