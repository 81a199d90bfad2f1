package wire

// Frame is one message of the control channel: a pointer to one of the structures below.
type Frame interface {
	Type() FrameType
	check() error // ErrLimit or ErrFormat
}

// Challenge is the acceptor's first frame. Its encoding never changes, so that engines of other versions can say what is
// wrong.
type Challenge struct {
	_       struct{} `cbor:",toarray"`
	Version uint32
	Nonce   Nonce
}

// Open is the dialer's answer to a Challenge. TLS follows at once, unless the blob of the target says that it uses none.
// Nobody without the token can make the target compute a signature.
type Open struct {
	_       struct{} `cbor:",toarray"`
	Version uint32
	Target  EngineID // the engine that the dialer wants to reach
	Mac     Mac      // trust.OpenMac
}

// Identity proves who operates an engine, if the operator gave it the means (package identity). It holds for one
// connection.
type Identity struct {
	_         struct{} `cbor:",toarray"`
	Chain     [][]byte // certificates in DER, the engine's first; empty: none
	Algorithm uint16   // of Signature, as tls.SignatureScheme
	Signature []byte   // by the certificate's key
	Secret    []byte   // a Mac under a line of the operator's secret_file; empty: none
}

// Hello begins a session.
type Hello struct {
	_        struct{} `cbor:",toarray"`
	Mac      Mac      // trust.HelloMac
	Engine   EngineID // the dialer's
	Agent    string   // the dialer's
	Session  uint64   // the dialer's number of this session; a higher number replaces a lower one
	After    uint64   // the dialer's previous session, whose notifications may be missing; 0: none
	Boot     string   // boot id of the dialer's host
	Process  Process  // the dialer's
	Offers   []EndpointOffer
	Identity Identity // the dialer's
}

// EndpointOffer describes an endpoint that its sender has opened for the receiver.
type EndpointOffer struct {
	_    struct{} `cbor:",toarray"`
	Rail uint8    // the target's rail
	Own  uint8    // the dialer's rail; a Welcome repeats both numbers
	ID   uint64   // the sender's number of the link; messages to the link carry it
	Addr []byte   // provider.Endpoint.Addr
}

// Welcome ends a successful handshake.
type Welcome struct {
	_        struct{} `cbor:",toarray"`
	Agent    string   // the acceptor's
	Session  uint64   // the Hello's
	NextSeq  uint64   // the acceptor has received all notifications of session Hello.After below it,
	Have     []uint16 // and those at these distances above it; ascending. The new session continues these numbers
	Offers   []EndpointOffer
	Identity Identity // the acceptor's
}

// Reject ends a refused handshake. Inside TLS it comes from the intended engine; before, anybody may have sent it.
type Reject struct {
	_    struct{} `cbor:",toarray"`
	Code Code
	Text string
}

// KeysReq asks the target for the keys of memory ranges.
type KeysReq struct {
	_      struct{} `cbor:",toarray"`
	ID     uint64
	Ranges Claims
}

// Keys answers a KeysReq, entry by entry.
type Keys struct {
	_       struct{} `cbor:",toarray"`
	ID      uint64
	Entries KeyEntries
	Stays   bool // the target's agent is not being destroyed: no goodbye follows because of unknown ranges
}

// Revoke says that the target deregisters the regions; the initiator posts no more work requests to them.
type Revoke struct {
	_       struct{} `cbor:",toarray"`
	ID      uint64
	Regions []uint64
	Renewed bool // the regions stay registered, with new keys: the application has mapped other memory there, or none
}

// Revoked answers a Revoke as soon as the initiator has nothing in flight on the regions.
type Revoked struct {
	_   struct{} `cbor:",toarray"`
	ID  uint64
	All bool // the initiator dropped all its other keys of the target too; the target need not revoke those until it is asked for them again
}

// Ping asks for a Pong with the same number.
type Ping struct {
	_   struct{} `cbor:",toarray"`
	Seq uint64
	Got uint64 // as Pong
	Moves
}

// Pong answers a Ping. With number 0 it is only an acknowledgement.
type Pong struct {
	_   struct{} `cbor:",toarray"`
	Seq uint64
	Got uint64 // frames of the receiver that the sender has taken in since the session began: see Numbered
	Moves
}

// Moves are the bytes that the sender's WRITEs and READs of the session have moved. A target's are 0. They are for counters alone.
type Moves struct{ Written, Read uint64 }

// Fence asks the target to close the initiator's access through one endpoint, and to open another endpoint.
type Fence struct {
	_     struct{} `cbor:",toarray"`
	ID    uint64
	Rail  uint8  // the link's number: its index in the Hello's offers
	Epoch uint32 // the link's new epoch
	Addr  []byte // the initiator's new endpoint address
	New   []Pair // one: begin the link first, over this pair. Its number follows the last link's. The target ignores the pair of a link that it has
}

// Pair is what the target of a session needs to begin a link.
type Pair struct {
	_    struct{} `cbor:",toarray"`
	Rail uint8    // the target's rail
	Own  uint8    // the initiator's rail
	ID   uint64   // the initiator's number of the link
}

// Fenced answers a Fence: the target has closed the old endpoint.
type Fenced struct {
	_       struct{} `cbor:",toarray"`
	ID      uint64
	Rail    uint8
	Epoch   uint32
	Addr    []byte   // the target's new endpoint; empty: none was opened
	NextSeq uint64   // the next notification that the target expects: all lower ones are proved
	Have    []uint64 // and these later ones have arrived too; ascending
	Link    uint64   // the target's number of a link that was never up; 0: it was
}

// Drain asks the target to report when all notifications below Next have arrived. The initiator then ends the
// session.
type Drain struct {
	_    struct{} `cbor:",toarray"`
	Next uint64
}

// Drained answers a Drain.
type Drained struct {
	_    struct{} `cbor:",toarray"`
	Next uint64   // as in the Drain
}

// Bye ends a session on purpose.
type Bye struct {
	_    struct{} `cbor:",toarray"`
	Text string
	Gone bool // the engine itself ends; else only this session ends, and another may follow
}

// Wider says that the target's host memory is registered on more rails than before: the initiator may ask for their keys.
type Wider struct {
	_     struct{} `cbor:",toarray"`
	Rails []Rail
}

// Rail is the number of a rail.
type Rail struct {
	_      struct{} `cbor:",toarray"`
	Number uint8
}

// Moved says that the sender's engine has other control addresses than its connection blob says. The receiver dials those from now on.
type Moved struct {
	_       struct{} `cbor:",toarray"`
	Control []string // as in ConnBlob
}

// Resume gives a session that has lost its connection another one.
type Resume struct {
	_        struct{} `cbor:",toarray"`
	Mac      Mac      // trust.Secret.ResumeMac: only the session's dialer has the secret
	Engine   EngineID // the dialer's
	Session  uint64   // the dialer's number of the session
	Try      uint64   // increases with each Resume of the session; a lower number is outdated
	Got      uint64   // as Pong
	Identity Identity // the dialer's
}

// Resumed answers a Resume: the session uses this connection from now on.
type Resumed struct {
	_        struct{} `cbor:",toarray"`
	Mac      Mac      // trust.Secret.ResumedMac
	Got      uint64   // as Pong
	Identity Identity // the acceptor's
}

// Numbered reports whether a frame counts in Got. The sender keeps a numbered frame until it is acknowledged. The
// receiver gets numbered frames once and in order, also when the connection changes. Frames of the handshake do not
// occur here.
func Numbered(f Frame) bool {
	switch f.Type() {
	case TypePing, TypePong, TypeBye:
		return false
	}
	return true
}
