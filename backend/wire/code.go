package wire

// Code says why a Hello was rejected.
type Code uint32

// The reasons of a Reject.
const (
	CodeToken    Code = iota + 1 // wrong MAC
	CodeVersion                  // another version
	CodeEngine                   // the engine that was meant is not here
	CodeBusy                     // try again later
	CodeRails                    // no rail fits
	CodeInternal                 // see the text
	CodeSession                  // the session that was to be resumed is not here, or has ended
	CodeLimit                    // the dialer asks for more than an option allows
)
