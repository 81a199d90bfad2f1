package trust

// An identity proves who operates an engine, to engines of the same operator, and checks the proofs of peers. It
// reads the files of the options tls_ca, tls_cert, tls_key and secret_file, and uses no sockets.
//
//	tls_cert, tls_key --- signature ---.
//	                                    >--- statement {role, Binding, Pins} ---> wire.Identity in Hello, Welcome, Resume
//	secret_file ----------- HMAC ------'
//	tls_ca, tls_peers: which certificates are accepted
//
// The engine's own key (package trust) cannot be the operator's: metadata has the engine's key and never changes, while
// certificates are renewed, and engines of one pod share one. So the certificate signs the connection and both Pins.
//
// A certificate says which peer it is. A secret says only that the peer has the file. If both are set, peers must prove
// both. Nothing is looked up at a CA: a certificate counts until it expires (no CRL, no OCSP).
