package errcode

// Codes of peers and their metadata.
var (
	UnknownPeer = row(1031, ErrNotFound, Code{
		Meaning: "No metadata of that agent is loaded",
		Cause:   "The application names an agent whose metadata was not loaded, or was removed.",
		Look:    "The agent's name in the message, and the order of the application's calls.",
		Remedy:  "Load the agent's metadata first.",
		Test:    "backend/engine TestCodesOfPeers"})
	ForeignBlob = row(1032, ErrMismatch, Code{
		Meaning: "The metadata is not GORAIL's",
		Cause:   "The peer uses another backend under the same name, such as another UCX or Mooncake plugin.",
		Look:    "Which plugin the peer loads, and its NIXL_PLUGIN_DIR.",
		Remedy:  "Use GORAIL at both sides.",
		Test:    "backend/engine TestCodesOfPeers"})
	BadBlob = row(1033, ErrMismatch, Code{
		Meaning: "The peer's connection info cannot be read",
		Cause:   "It is damaged, or of a GORAIL release with another wire version.",
		Look:    "The message: it names the versions if they differ.",
		Remedy:  "Use releases with the same wire version: see [upgrade.md](upgrade.md). Else find where the bytes were changed.",
		Test:    "backend/engine TestCodesOfPeers"})
	PeerOptions = row(1034, ErrMismatch, Code{
		Meaning: "The peer's options do not fit ours",
		Cause:   "The identity, or the name in the certificate differs between the two engines.",
		Look:    "The option in the message, at both engines.",
		Remedy:  "Give both engines the same value.",
		Test:    "backend/engine TestCodesOfPeers"})
	BadMetadata = row(1035, ErrMismatch, Code{
		Meaning: "The metadata of a memory range is damaged or of another range",
		Cause:   "The bytes were changed, or the descriptor does not belong to this metadata.",
		Look:    "How the application carries metadata from one agent to the other.",
		Remedy:  "Pass the metadata on as it is.",
		Test:    "backend/engine TestCodesOfPeers"})
	StaleMetadata = row(1036, ErrMismatch, Code{
		Meaning: "The metadata of a memory range is of an earlier engine",
		Cause:   "The peer was restarted. Its connection info is new, and its memory's metadata is old, or the reverse.",
		Look:    "When the peer was started, and when the metadata was fetched.",
		Remedy:  "Load the agent's new metadata.",
		Test:    "backend/engine TestCodesOfPeers"})
	PeerUnreachable = row(1037, ErrNotSupported, Code{
		Meaning: "No rail of ours reaches a rail of the peer",
		Cause:   "The two agents have no fabric and network in common.",
		Look:    "The rails of both in the message: a fabric, a device and a network each.",
		Remedy:  "Give both a common fabric by options `provider` and `devices`.",
		Test:    "backend/engine TestCodesOfPeers"})
	PeerGone = row(1038, ErrRemoteDisconnect, Code{
		Meaning: "The peer is gone",
		Cause:   "Its process or its host has ended, or it was restarted. The reason is in the message.",
		Look:    "The peer's log and its exit status.",
		Remedy:  "Start the peer again, and load its new metadata.",
		Test:    "backend/engine TestCodesOfPeers"})
	PeerRemoved = row(1039, ErrNotFound, Code{
		Meaning: "The application has removed the peer",
		Cause:   "The peer was disconnected, or replaced by new metadata, or the engine closes.",
		Look:    "The order of the application's calls.",
		Remedy:  "Load the peer's metadata again before you use the peer.",
		Test:    "backend/engine TestCodesOfPeers"})
	BadPeerRange = row(1040, ErrInvalidParam, Code{
		Meaning: "The peer's range has too many slices",
		Cause:   "The peer's option `mr_max` is small for its registration.",
		Look:    "The length in the message, and the peer's `mr_max`.",
		Remedy:  "Raise `mr_max` at the peer.",
		Test:    "backend/engine TestCodesOfPeers"})
	SessionLost = row(1041, ErrBackend, Code{
		Meaning: "The session with a peer was lost, and the peer may be alive",
		Cause:   "The peer was not reached within `connect_timeout`, showed no sign of life for `peer_timeout`, or refused us.",
		Look:    "The reason in the message, the peer's log, and firewalls for `control_port` and `data_port`.",
		Remedy:  "Repair the network and post again: the next post connects again.",
		Test:    "backend/engine TestCodesOfPeers"})
)
