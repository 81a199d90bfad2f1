package errcode

// Codes of warnings on which an operator may act. No call fails.
var (
	RailNotUsed = row(2001, Success, Code{
		Meaning: "A device did not open: its rail is not used",
		Cause:   "The library or the kernel refused the device.",
		Look:    "The error in the line, and the rights of /dev/infiniband.",
		Remedy:  "Correct the reason, or take the device out by option `devices`.",
		Test:    "backend/engine TestCodesOfWarnings"})
	MemoryNotOnRail = row(2002, Success, Code{
		Meaning: "Memory is not registered on a rail",
		Cause:   "The device refused the registration. The usual reason is the limit of locked memory.",
		Look:    "The error in the line, and `ulimit -l`.",
		Remedy:  "Raise RLIMIT_MEMLOCK. Transfers of this memory use the other rails.",
		Test:    "backend/engine TestCodesOfWarnings"})
	RailDown = row(2003, Success, Code{
		Meaning: "A rail to a peer is down",
		Cause:   "Operations on the rail failed, or nothing moved for `rail_timeout`. Other rails carry its work if there are any.",
		Look:    "The error in the line, `ip -s link`, and the switch.",
		Remedy:  "Repair the rail. GORAIL probes the rail and uses it again by itself.",
		Test:    "backend/engine TestCodesOfWarnings"})
	RailNotConnected = row(2004, Success, Code{
		Meaning: "A rail did not connect to a peer, and other rails did",
		Cause:   "No message came over the rail: a firewall, a wrong route, or a device that is down.",
		Look:    "Both ends in the line, and the firewall's rules for `data_port`.",
		Remedy:  "Admit the ports of option `data_port`. GORAIL tries the rail again by itself.",
		Test:    "backend/engine TestCodesOfWarnings"})
	NotifsLost = row(2005, Success, Code{
		Meaning: "Accepted notifications were lost with their session",
		Cause:   "The peer died, or did not take them within `peer_timeout`.",
		Look:    "The reason in the line, and the peer's log.",
		Remedy:  "Let the application send again what the peer needs after its restart.",
		Test:    "backend/engine TestCodesOfWarnings"})
	PeerRefused = row(2006, Success, Code{
		Meaning: "A peer was refused",
		Cause:   "The peer's proof, name, options or wire version does not fit, or a limit is reached.",
		Look:    "The address and the reason in the line.",
		Remedy:  "Correct the peer's identity or options. An unknown address may be an attack: see [security.md](security.md).",
		Test:    "backend/engine TestCodesOfWarnings"})
)
