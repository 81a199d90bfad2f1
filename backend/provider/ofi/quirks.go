package ofi

// protoXNET is FI_PROTO_XNET, the wire protocol of libfabric's own tcp provider: "net" in 1.17, "tcp" in 2.x.
const protoXNET = 25

// quirks are properties of a provider that libfabric's attributes do not show.
type quirks struct {
	// perPeer: an endpoint is cheap (22 KiB, one descriptor, 0.02 ms). Closing a peer's endpoint ends that peer's
	// access cleanly, 40 of 40 times in mid-stream. For other providers an endpoint is a hardware queue or takes 70 MiB
	// (rxm). Closing one in mid-stream crashes (rxm) or is untested. They have one shared endpoint for all peers, and
	// no fence.
	perPeer bool
	// noTrywait: fi_trywait never resets the queue's signal, so waiting uses 100 % of a CPU core.
	noTrywait bool
}

// quirkTable is searched in order; the first match counts. Matching uses the wire protocol if possible.
var quirkTable = []struct {
	reason string
	match  func(*entry) bool
	quirks quirks
}{
	{
		"net of libfabric 1.17: fi_trywait leaves the signal set; an edge-triggered wait after an empty poll works",
		func(e *entry) bool { return e.Protocol == protoXNET && e.Provider == "net" },
		quirks{perPeer: true, noTrywait: true},
	},
	{
		"tcp of libfabric 2.x: the same protocol, fi_trywait fixed",
		func(e *entry) bool { return e.Protocol == protoXNET && e.Provider == "tcp" },
		quirks{perPeer: true},
	},
}

func quirksOf(e *entry) quirks {
	for _, q := range quirkTable {
		if q.match(e) {
			return q.quirks
		}
	}
	return quirks{}
}
