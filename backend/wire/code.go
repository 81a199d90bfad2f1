package wire

// Code says why a Hello was rejected, or a request for a ring or a copy; and what a ring takes.
type Code uint32

// The reasons for a Reject.
const (
	CodeToken    Code = iota + 1 // wrong MAC
	CodeVersion                  // another version
	CodeEngine                   // the Hello names an engine that is not here
	CodeBusy                     // try again later
	CodeRails                    // no rail fits
	CodeInternal                 // the text has the reason
	CodeSession                  // the session to resume is unknown or has ended
	CodeLimit                    // the dialer asks for more than an option allows
	CodeMemory                   // the dialer names memory that is not registered, or without its capability
	CodeIdentity                 // the dialer's identity is not proved, or not the demanded one
	CodeUnmapped                 // nothing is mapped at registered addresses of GPU memory
	CodeGone                     // the engine ends, and its sessions with it
	CodePacks                    // of a Ring that was made: it takes a PackedCopy, too. Versions without PackedCopy ignore it
)
