package wire

import (
	"math"

	"gorail/backend/option"
)

// sampleConn is a blob with a value in every field.
func sampleConn() ConnBlob {
	return ConnBlob{
		Version: Version, Engine: EngineID{1, 2, 3}, Pin: Pin{1, 2, 3}, TLS: true, Agent: "agent_0", Boot: "7f1c", NetNS: 4026531840, Process: Process{PID: 4711, NS: 4026531836, Start: 99}, Slice: 7 << 29, Links: 2, Token: Token{9, 8},
		Control: []string{"192.0.2.1:7000", "[2001:db8::1]:7001"},
		Rails: []RailOffer{
			{Index: 0, Fabric: "tcp", Subnet: "192.0.2.0/24", Name: "eth0", Mbps: 100000},
			{Index: 3, Fabric: "tcp", Name: "lo", Loopback: true, Proof: []byte{1, 2}},
		},
	}
}

func sampleRegion() RegionBlob {
	return RegionBlob{Version: Version, Engine: EngineID{1}, Addr: 0x7f0000000000, Len: 64 << 30, Dev: 3, Mem: -1, Cap: Cap{7, 15: 9}}
}

// sampleFrames returns one frame of every type, some with the largest numbers.
func sampleFrames() []Frame {
	offers := []EndpointOffer{{Rail: 1, Own: 2, Addr: []byte("addr")}, {Addr: []byte{}}}
	identity := Identity{Chain: [][]byte{{1, 2}, {3}}, Algorithm: 0x0807, Signature: []byte{4}, Secret: make([]byte, len(Mac{}))}
	none := Identity{Chain: [][]byte{}, Signature: []byte{}, Secret: []byte{}}
	return []Frame{
		&Challenge{Version: 1, Nonce: Nonce{1}},
		&Hello{Mac: Mac{3}, Engine: EngineID{4}, Agent: "a\xffb", Session: math.MaxUint64, After: 5, Boot: "7f1c", Process: Process{PID: 1, NS: 2, Start: 3}, Offers: offers, Identity: identity},
		&Welcome{Agent: "", Session: 6, NextSeq: 7, Have: []uint16{1, math.MaxUint16}, Offers: offers, Identity: none},
		&Reject{Code: CodeToken, Text: "who are you"},
		&KeysReq{ID: 1, Ranges: []Claim{{Range: Range{Addr: 1, Len: 2, Dev: math.MaxUint64, Mem: math.MinInt32}, Cap: Cap{1, 15: 2}}, {Range: Range{Addr: 3, Len: 2}, Cap: Cap{1, 15: 2}}, {}}},
		&Keys{ID: 1, Entries: []KeyEntry{{Rails: []RailKey{}}, {Known: true, Region: 2, Gen: 3, Access: option.PeersRead, Rails: []RailKey{{Rail: 0}, {Rail: MaxKeyRails - 1, Key: math.MaxUint64, Base: 5}}}}, Stays: true},
		&Revoke{ID: 2, Regions: []uint64{0, 1, math.MaxUint64}},
		&Revoked{ID: 2, All: true},
		&Ping{Seq: 3, Got: math.MaxUint64, Moves: Moves{1 << 40, math.MaxUint64}},
		&Pong{Seq: 3, Got: 4},
		&Fence{ID: 4, Rail: 1, Epoch: math.MaxUint32, Addr: []byte("new"), New: []Pair{{Rail: 9, Own: 2, ID: math.MaxUint64}}},
		&Fenced{ID: 4, Rail: 1, Epoch: 2, Addr: []byte{}, NextSeq: 9, Have: []uint64{11, 12}, Link: 7},
		&Bye{Text: "closing", Gone: true},
		&Resume{Mac: Mac{3}, Engine: EngineID{4}, Session: 6, Try: 8, Got: math.MaxUint64, Identity: identity},
		&Resumed{Mac: Mac{3}, Got: 9, Identity: none},
		&RingReq{ID: math.MaxUint64, Mem: 1, For: Claim{Range: Range{Addr: 1 << 40, Len: 8, Dev: math.MaxInt32, Mem: 1}, Cap: Cap{3}}},
		&Ring{ID: math.MaxUint64, Range: Claim{Range: Range{Addr: 1 << 40, Len: 64 << 20, Dev: 7, Mem: 1}, Cap: Cap{4}}, Slot: 4 << 20, Text: "why", Code: CodeBusy},
		&Copy{ID: 3, Out: true, At: 1 << 40, Regions: []Claim{{Range: Range{Addr: 1 << 30, Len: 1 << 20, Dev: 7, Mem: 1}, Cap: Cap{5}}, {}}, Pieces: CopyPieces{{Addr: 1 << 30, Len: 8 << 10}, {Region: 1, Addr: 9, Len: MaxRing}}},
		&Copied{ID: 3, Text: "why not", Code: CodeUnmapped},
		&Drain{Next: math.MaxUint64},
		&Drained{Next: 7},
		&Open{Version: 1, Target: EngineID{5}, Mac: Mac{3}},
		&SnapshotReq{ID: math.MaxUint64},
		&Snapshot{ID: 7, State: SnapshotServing, Uptime: maxAgo, Late: 1, Sessions: 3, Transfers: math.MaxUint32, NextSeq: 9, Waiting: 1, Rings: 2, Copies: 3,
			Links: []LinkView{{State: LinkUp, Ops: 1, Bytes: math.MaxUint64, Credits: 32, Received: 5, Completions: 6, Progress: 7}, {Number: MaxRails - 1, State: LinkStopped, Queued: 4, Errors: 2}}},
		&Moved{Control: []string{"192.0.2.1:7000", "[2001:db8::1]:7001"}},
		&Wider{Rails: []Rail{{Number: 3}, {Number: 63}}},
		&HandlesReq{ID: math.MaxUint64, Rail: 3, Key: 5, Base: 1 << 60, First: 512},
		&Handles{ID: 5, Share: []byte{1, 2}, List: make([]byte, 3*HandleSize), Why: 7},
		&PackedCopy{Copy: Copy{ID: 3, At: 1 << 40, Regions: []Claim{{Range: Range{Addr: 1 << 30, Len: 1 << 20, Dev: 7, Mem: 1}}}, Pieces: CopyPieces{{Addr: 1 << 30, Len: 8 << 10}}}, Packed: 4711},
		&PackedCopied{Copied: Copied{ID: math.MaxUint64}, Packed: 1 << 20},
	}
}
