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
//
// # Key schedule
//
// All of it is over SHA-256 (TestSchedule). All parts have their length in front, and each label has its own values.
// R, of one connection, is HKDF(L; nonces, index).
//
//   - binding X: TLS exporter over both pins and the nonce; every proof on that connection
//   - Open, Hello: HMAC(token; nonce and target), HMAC(token; X); above
//   - session secret S: HKDF(token as salt, X); made once, kept over Resumes
//   - Resume, Resumed: HMAC(S; X of the new connection, session, try, frames received); only who began the session
//     resumes it, once
//   - salt of keys: HKDF(S); keys of regions that differ between sessions (MR.Key of package provider)
//   - link secret L: HKDF(S; fabric, both rails, both link ids, epoch, a ticket); data connections of a provider that
//     makes them itself (provider.Listener)
//   - openings: HMAC(L); as the provider's protocol says
//   - record keys: HKDF(R; direction, generation), where R = HKDF(L; nonces, index) is of one connection; as above
package trust
