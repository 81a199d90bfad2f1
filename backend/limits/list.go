package limits

import (
	_ "embed"
	"fmt"
	"strings"
)

// The rows of List.
const (
	Sessions Limit = iota
	SourceSessions
	IdentitySessions
	OlderSessions
	Lingering
	HalfOpen
	Sources
	WaitingHandshakes
	Handshakes
	SourceHandshakes
	Endpoints
	IdentityEndpoints
	LinksPerPair
	Opening
	Fences
	Connects
	KeyRequests
	Holders
	Revocations
	ControlFrames
	SessionFrames
	FrameBody
	Notifications
	SessionNotifications
	Credits
	Reassembly
	SenderReassembly
	Progress
	ProgressBytes
	StagingRings
	IdentityStagingRings
	StagedCopies
	StagingScratch
	Drains
	Snapshots
	LogLines
	LogQueue
	EndedSessions
	ControlAddresses
	EarlyRevokes
	ShmCallers
	ShmPending
	ShmDoorbells
	ShmStale
	ShmViews
	ShmAnswers
	ShmLooks
	TCPOpenings
	TCPSegments
	TCPReads
	TCPEarly
	TCPOpened
	TCPPacked
	TCPUnpacking
	TCPSealed
	TCPRest
	TCPSpill
	numLimits
)

// List has the bounds, in the order of the constants.
var List = [numLimits]Row{
	Sessions: {Name: "sessions", Resource: "sessions: a goroutine, another one while it writes, 20 KiB and what the rows below add", Where: "peer/sessions.go",
		Bound: "4096 of an engine", Option: "max_sessions", Beyond: "refused as busy; the session whose peer has missed its heartbeats longest ends",
		Counter: "limits.sessions", Test: "peer TestMaxSessions"},
	SourceSessions: {Name: "source_sessions", Resource: "sessions from one address (IPv6: one /64)", Where: "peer/sessions.go",
		Bound: "three quarters of `max_sessions`", Option: "max_sessions", Beyond: "as above, among the sessions of that address",
		Counter: "limits.source_sessions", Test: "peer TestSessionsOfASource"},
	IdentitySessions: {Name: "identity_sessions", Resource: "sessions whose certificates have the same names", Where: "peer/sessions.go",
		Bound: "three quarters of `max_sessions`, and of those of one address; more is lent while no other identity asks", Option: "max_sessions",
		Beyond:  "as above, among the sessions of that identity; what was lent ends when another identity needs it",
		Counter: "limits.identity_sessions", Test: "peer TestSessionsOfAnIdentity"},
	OlderSessions: {Name: "older_sessions", Resource: "sessions of one engine: over shared endpoints older ones stay for a moment", Where: "session/target_handler.go",
		Bound: "4 of an engine id", Why: "an engine needs two; each Hello looks at all of them", Beyond: "refused as busy",
		Counter: "limits.older_sessions", Test: "engine TestRefusals"},
	Lingering: {Name: "lingering_sessions", Resource: "lost sessions over shared endpoints that still take notifications: 70 KiB of receives each", Where: "session/target_end.go",
		Bound: "256 of an engine, each for two `peer_timeout`s, a minute at least", Why: "a peer that comes back ends its older session itself",
		Beyond: "the session that was lost first ends", Counter: "limits.lingering_sessions", Test: "engine TestLingeringIsBounded"},
	HalfOpen: {Name: "half_open", Resource: "connections that have not shown the token: a goroutine and at most 2 KiB each", Where: "peer/limiter.go",
		Bound:  "256 of an engine; while fewer than a quarter of the process's descriptors are free, a sixteenth of the limit, 64 at most",
		Why:    "a proof takes one round trip, and an initiator tries again; the last descriptors are the host's",
		Beyond: "a random one, older than 20 ms (of fewer places, less), of the worst sources ends; the best with half of the places are spared", Counter: "control.MadeRoom", Test: "peer TestSlowLoris"},
	Sources: {Name: "failed_sources", Resource: "sources of failed handshakes that are remembered", Where: "peer/limiter.go",
		Bound: "4096 of an engine", Why: "a forgotten source only loses its bad name", Beyond: "one is forgotten; not counted", Test: "peer TestPrefersTheRare"},
	WaitingHandshakes: {Name: "handshakes_waiting", Resource: "connections that have shown the token, and have sent no Hello: a goroutine each, at most 4 KiB before their turn, what TLS needs after it, and twice 30 s, or `connect_timeout`", Where: "peer/prove.go",
		Bound: "256 of an engine", Why: "four for each turn: a proof takes one round trip, and an initiator tries again", Beyond: "a random one, older than 20 ms, of the worst sources ends, and tries again; the best with half of the places are spared",
		Counter: "limits.handshakes_waiting", Test: "peer TestTokenHoldersFlood"},
	Handshakes: {Name: "handshakes", Resource: "turns of such connections in TLS: 0.4 ms of processor time each", Where: "peer/limiter_turns.go",
		Bound: "64 at a time of an engine, and 625 a second after the first 64", Why: "a quarter of a core", Beyond: "waits for its turn among the connections of the row handshakes_waiting",
		Counter: "limits.handshakes", Test: "peer TestTurnsOfAll"},
	SourceHandshakes: {Name: "handshakes_per_source", Resource: "such turns of one address", Where: "peer/limiter_turns.go",
		Bound: "16 at a time of an engine", Why: "a quarter of all: other addresses find turns", Beyond: "as above", Counter: "limits.handshakes_per_source", Test: "peer TestTurnsOfASource"},
	Endpoints: {Name: "endpoints", Resource: "endpoints: 32 receives each; on sm 3 descriptors and 32 MiB of addresses", Where: "session/target_handler.go",
		Bound: "16384 of an engine, half of the process's descriptors, three quarters for one address", Why: "the other half of `ulimit -n` is the host's",
		Beyond: "refused as busy, which also ends the most silent session; a session that wants more than one address may have is refused for good", Counter: "limits.endpoints", Test: "engine TestEndpointsAreBounded"},
	IdentityEndpoints: {Name: "identity_endpoints", Resource: "endpoints of sessions whose certificates have the same names", Where: "session/target_sessions.go",
		Bound: "three quarters of all, and of those of one address; more is lent while no other identity asks", Why: "another operator's engines find room",
		Beyond:  "refused as busy; what was lent ends with its session when another identity needs it",
		Counter: "limits.identity_endpoints", Test: "engine TestIdentityEndpoints"},
	LinksPerPair: {Name: "links_per_pair", Resource: "links of a session on one pair of rails, and in all", Where: "session/target_sessions.go",
		Bound: "1 of a pair; 240 of a session", Option: "qps_per_rail", Beyond: "the Hello is refused, or the link that would begin later", Counter: "limits.links_per_pair", Test: "engine TestRefusals"},
	Opening: {Name: "hellos", Resource: "threads and processor time for Hellos, which open endpoints", Where: "session/target_sessions.go",
		Bound: "2 at a time of an engine, a pace of an eighth of a core", Why: "opening holds a lock of the rail", Beyond: "waits for its turn, and up to half a second for the pace",
		Counter: "limits.hellos", Test: "limits TestTurns"},
	Fences: {Name: "fences", Resource: "threads and processor time for fences, which close and open endpoints, without the connects", Where: "session/target_sessions.go",
		Bound: "16 at a time of an engine, a pace of a quarter of a core of a session", Why: "a healthy link is hardly ever fenced", Beyond: "waits for its turn, and up to half a second for the pace",
		Counter: "limits.fences", Test: "limits TestTurns"},
	Connects: {Name: "connects", Resource: "threads that connect the endpoints of fences: on RoCE the kernel may look for a neighbour for 3 s", Where: "session/target_sessions.go",
		Bound: "128 at a time of an engine, 32 of a session", Why: "a link has one at a time", Beyond: "waits for its turn; fences that only close do not",
		Counter: "limits.connects", Test: "session TestConnectsTakeTurns"},
	KeyRequests: {Name: "key_requests", Resource: "processor time for requests for keys and rings, and the lock of the registrations", Where: "session/target_sessions.go",
		Bound: "one at a time of an engine; a pace of a quarter of a core of a session, half of a core of an engine", Why: "an honest peer asks once for each region",
		Beyond:  "waits for its turn, and up to half a second for the pace",
		Counter: "limits.key_requests", Test: "engine TestKeyRequestsTakeTurns"},
	Holders: {Name: "holders", Resource: "notes of who holds which keys", Where: "region/holders.go",
		Bound: "one bit for each session and place in the table of regions", Why: "both have bounds of their own", Beyond: "cannot be exceeded",
		Test: "region TestHolders"},
	Revocations: {Name: "revocations", Resource: "the time that a deregistration, or memory mapped anew on a device, waits for silent peers", Where: "region/holders.go",
		Bound: "`cancel_timeout` for all peers together", Option: "cancel_timeout", Beyond: "the silent peer's session ends",
		Counter: "limits.revocations", Test: "engine TestSilentHolders"},
	ControlFrames: {Name: "control_frames", Resource: "bytes of control frames that are not completely read or not acknowledged", Where: "peer/sessions.go",
		Bound: "256 MiB of an engine", Why: "a frame has 1 MiB at most: room for hundreds of peers in the middle of one", Beyond: "the session with the most ends", Counter: "control.Overflows", Test: "peer TestHalfFramesOfAllPeers"},
	SessionFrames: {Name: "session_frames", Resource: "bytes of control frames that one peer does not take", Where: "peer/stream_queue.go",
		Bound: "64 MiB of a session", Why: "sixteen of the largest answers", Beyond: "the session ends", Counter: "control.Overflows", Test: "peer TestQueueOverflow"},
	FrameBody: {Name: "frame_body", Resource: "bytes of one control frame, and the entries of its lists", Where: "wire/frame_io.go",
		Bound: "1 MiB, and as wire.go says", Why: "larger lists go in several frames", Beyond: "the session ends", Counter: "control.Lost", Test: "wire TestFrameLimits"},
	Notifications: {Name: "notifications", Resource: "bytes of notifications that the application has not taken", Where: "core/session.c",
		Bound: "256 MiB of an engine", Option: "notif_memory", Beyond: "a peer with 64 KiB waiting gets no credits", Counter: "core.credits_held", Test: "engine TestNotificationsOfAllPeers"},
	SessionNotifications: {Name: "session_notifications", Resource: "such bytes of one peer", Where: "core/session.c",
		Bound: "16 MiB of a session", Option: "notif_queue", Beyond: "the peer gets no credits", Counter: "core.credits_held", Test: "core TestCredits"},
	Credits: {Name: "credits", Resource: "messages that a peer sends at a time, whatever it was granted", Where: "core/link.c",
		Bound: "32 of a link", Why: "as many receives are posted", Beyond: "the link fails", Counter: "core.bad_messages", Test: "core TestHostileMessages"},
	Reassembly: {Name: "reassembly", Resource: "bytes of notifications that wait for a part or for an earlier one", Where: "session/target_order.go",
		Bound: "256 MiB of an engine", Option: "notif_memory", Beyond: "the session with the most ends", Counter: "limits.reassembly", Test: "session TestPendingIsBounded"},
	SenderReassembly: {Name: "sender_reassembly", Resource: "such bytes of one peer, and numbers beyond the next one", Where: "session/assembler.go",
		Bound: "64 MiB and 65,536 numbers of a session", Why: "an honest peer stays below 48 MiB and 16,384", Beyond: "the session ends",
		Counter: "limits.sender_reassembly", Test: "session TestErrors"},
	Progress: {Name: "notif_progress", Resource: "engines whose notification numbers outlive their session", Where: "session/target_order.go",
		Bound: "4096 of an engine", Why: "only an engine that comes back within its `peer_timeout` needs its entry", Beyond: "an entry of the identity with the most is forgotten, and there of the source with the most",
		Counter: "limits.notif_progress", Test: "session TestProgressBounded"},
	ProgressBytes: {Name: "notif_progress_bytes", Resource: "bytes of notifications that outlive their session", Where: "session/target_order.go",
		Bound: "256 MiB of an engine", Option: "notif_memory", Beyond: "these notifications are given up, with a warning", Counter: "limits.notif_progress_bytes", Test: "session TestProgressBytes"},
	StagingRings: {Name: "staging_rings", Resource: "bounce buffers: pinned host memory and memory of GPUs", Where: "staging/server.go",
		Bound: "64 sets of `stage_size` for each GPU with registered memory, three quarters for one address", Option: "staging_memory",
		Beyond: "the peer's transfer fails with NIXL_ERR_NOT_SUPPORTED and may be posted again", Counter: "limits.staging_rings", Test: "engine TestStagingMemory"},
	IdentityStagingRings: {Name: "identity_staging_rings", Resource: "bounce buffers of sessions whose certificates have the same names", Where: "staging/room.go",
		Bound: "three quarters of all, and of those of one address; more is lent while no other identity asks", Option: "staging_memory",
		Beyond: "as above; what was lent ends with its session when another identity needs it", Counter: "limits.identity_staging_rings", Test: "engine TestIdentityStagingMemory"},
	StagedCopies: {Name: "staged_copies", Resource: "goroutines and streams of copies that peers ask for", Where: "staging/server.go",
		Bound: "16 for each ring of a session", Why: "one for each slot", Beyond: "the session ends", Counter: "limits.staged_copies", Test: "engine TestCopiesWithoutRing"},
	StagingScratch: {Name: "staging_scratch", Resource: "memory of GPUs in which chunks are compressed for peers and for us (option compression)", Where: "staging/packed.go",
		Bound: "two bounce buffers (`stage_size`/8) of each GPU, until the last engine of the process ends", Why: "a stream's jobs run one after the other", Beyond: "cannot be exceeded", Test: "staging TestPackRoom"},
	Drains: {Name: "drains", Resource: "goroutines that wait to answer a Drain", Where: "session/target_end.go",
		Bound: "one of a session; it looks ever more rarely, each 50 ms at last", Why: "an honest peer leaves once", Beyond: "cannot be exceeded", Test: "session TestDrainLooksRarely"},
	Snapshots: {Name: "snapshots", Resource: "goroutines and processor time for snapshots of sessions, which a peer asks for when a transfer times out", Where: "session/target_snapshot.go",
		Bound: "4 at once, then one a second, of a session, and one at a time; 64 a second of an engine", Why: "an honest peer asks once a second at most",
		Beyond: "answered without counters", Counter: "limits.snapshots", Test: "engine TestSnapshotsAreBounded"},
	LogLines: {Name: "log_lines", Resource: "warnings that peers cause", Where: "limits/quota.go",
		Bound: "20 at once, then one a second, of an engine", Why: "the next line says how many were left out", Beyond: "left out", Counter: "limits.log_lines", Test: "limits TestFewLines"},
	LogQueue: {Name: "log_queue", Resource: "bytes of log lines that standard error does not take", Where: "host/logqueue.go",
		Bound: "1 MiB of the process", Why: "a log without a reader blocks no caller", Beyond: "dropped; a line says how many", Test: "host TestStuck"},
	EndedSessions: {Name: "ended_sessions", Resource: "what ended sessions leave: their counters, 3 KiB each. Their connections, keys and buffers go at once", Where: "session/link_view.go",
		Bound: "64 of an engine", Why: "rails count them all", Beyond: "the oldest is forgotten; not counted", Test: "session TestHistory"},
	ControlAddresses: {Name: "control_addresses", Resource: "addresses that the metadata of a peer, or its session, has us dial", Where: "wire/check.go",
		Bound: "64 of a peer: one after the other, and all at once when a session looks for another path", Why: "an engine listens on at most 32", Beyond: "loading the metadata fails with NIXL_ERR_MISMATCH", Test: "wire TestBlobErrors"},
	EarlyRevokes: {Name: "early_revokes", Resource: "regions that a target revokes while it owes us keys", Where: "session/initiator_keys.go",
		Bound: "1 Mi of a session", Why: "a target has at most as many regions as its table", Beyond: "the session ends", Counter: "limits.early_revokes", Test: "engine TestEarlyRevokesAreBounded"},
	ShmCallers: {Name: "shm_callers", Resource: "connections to the server of GPU descriptors", Where: "provider/shm/ipc/descriptors_server.go",
		Bound: "64 of a rail", Why: "a peer asks once for each mapping", Beyond: "the longest silent one ends; a peer connects again", Counter: "limits.shm_callers", Test: "provider/shm/ipc TestCallers"},
	ShmPending: {Name: "shm_pending", Resource: "connections of one host that have shown no token", Where: "provider/shm/ipc/handshake_listener.go",
		Bound: "16 of a rail, for 100 ms", Why: "the token comes with the connection", Beyond: "the oldest ends", Counter: "limits.shm_pending", Test: "provider/shm/ipc TestOldestEvicted"},
	ShmDoorbells: {Name: "shm_doorbells", Resource: "bytes of doorbells and messages that a peer does not read", Where: "provider/shm/ipc/conn.go",
		Bound: "the socket's buffer, of a connection", Why: "the kernel's", Beyond: "dropped: one doorbell is enough", Test: "provider/shm/ipc TestSendNeverWaits"},
	ShmStale: {Name: "shm_stale", Resource: "peers' sockets in `local_dir` whose processes may be dying: a goroutine and a descriptor each", Where: "provider/shm/folder.go",
		Bound: "64 of a rail, for 5 s", Why: "a sweep of the next engine removes the others", Beyond: "not removed", Test: "provider/shm TestStaleMost"},
	ShmViews: {Name: "shm_views", Resource: "mappings of peers' shared memory: a mapping, page tables and 200 bytes each", Where: "provider/shm/cma/view.c",
		Bound: "256 of an endpoint; 4096 and 4 TiB of a rail", Why: "an application registers few large regions", Beyond: "the ring serves", Test: "provider/shm/cma TestProcesses"},
	ShmAnswers: {Name: "shm_answers", Resource: "time of polling threads that answer whether memory is still what a peer has mapped", Where: "provider/shm/cma/answer.c",
		Bound: "8192 handles of a GPU, or 1024 mappings of files, in a turn of an endpoint: a millisecond", Why: "an honest question mostly takes one turn",
		Beyond: "the answer goes on in the next turn, after those of other peers", Test: "provider/shm/cma TestProcesses"},
	ShmLooks: {Name: "shm_looks", Resource: "looks at all registered memory, when a peer says that some is not what it has mapped", Where: "engine/recheck.go",
		Bound: "one each 10 ms of an engine, and a tenth of a processor", Why: "there is a regular look each 250 ms", Beyond: "one look for all that ask meanwhile",
		Test: "engine TestLooksOfPeers"},
	TCPOpenings: {Name: "tcp_openings", Resource: "connections to a tcp rail that have sent a part of their opening, or nothing: a descriptor, a goroutine and 80 bytes each", Where: "provider/tcp/listener.go",
		Bound: "64 of an interface, for a second, or a sixteenth of the limit of descriptors, 16 at most, as above; besides, 8 with a whole opening for each ticket that is waited for", Why: "an honest opening comes with the connection, and an initiator tries again",
		Beyond: "the oldest of the source with the most is reset; a source is an IPv4 address or an IPv6 /64", Counter: "limits.tcp_openings", Test: "provider/tcp TestSilentConnections"},
	TCPSegments: {Name: "tcp_segments", Resource: "addresses of a frame that comes in over a tcp rail", Where: "provider/tcp/sock/frames.c",
		Bound: "256 of a connection, 6 KiB", Why: "one frame at a time", Beyond: "the connection ends", Test: "provider/tcp TestBrokenRules"},
	TCPReads: {Name: "tcp_reads", Resource: "READs of a peer over a tcp rail that are to be answered", Where: "provider/tcp/sock/frames.c",
		Bound: "64 of a connection, 4 MiB together", Why: "an honest initiator holds more back", Beyond: "the connection ends", Test: "provider/tcp TestBrokenRules"},
	TCPEarly: {Name: "tcp_early", Resource: "messages over a tcp rail that came before their receives", Where: "provider/tcp/sock/frames.c",
		Bound: "32 of a connection, 8 KiB each", Why: "as many as a sender has credits", Beyond: "the connection ends", Test: "provider/tcp TestBrokenRules"},
	TCPOpened: {Name: "tcp_opened", Resource: "a record over a tcp rail that is half received (`encryption=on`)", Where: "provider/tcp/sock/record.c",
		Bound: "16 KiB of a connection", Why: "longer ones are inside a body, and go into place", Beyond: "the connection ends", Test: "provider/tcp TestForgedRecords"},
	TCPPacked: {Name: "tcp_packed", Resource: "compressed bytes that a peer does not receive over a tcp rail (option compression)", Where: "provider/tcp/sock/packed.c",
		Bound: "1 MiB of a connection, 64 MiB of a rail", Why: "nothing more is compressed while some wait", Beyond: "bodies go in clear", Test: "provider/tcp TestPackedIsBounded"},
	TCPUnpacking: {Name: "tcp_unpacking", Resource: "a compressed body over a tcp rail that is half received", Where: "provider/tcp/sock/packed.c",
		Bound: "128 KiB of a connection, and 512 KiB of a rail that it keeps", Why: "one frame at a time, a block at a time", Beyond: "the connection ends", Test: "provider/tcp TestBrokenRulesPacked"},
	TCPSealed: {Name: "tcp_sealed", Resource: "sealed bytes that a peer does not receive over a tcp rail (`encryption=on`)", Where: "provider/tcp/sock/seal.c",
		Bound: "256 KiB of a connection", Why: "nothing more is sealed while some wait", Beyond: "they wait", Test: "provider/tcp TestPeerThatDoesNotReceive"},
	TCPRest: {Name: "tcp_rest", Resource: "received bytes that wait for a bounce buffer of a GPU, or packed ones for the next turn, over a tcp rail", Where: "provider/tcp/sock/bounce.c",
		Bound: "16 KiB of a connection, with `encryption=on` 144 KiB", Why: "nothing more is received while some wait", Beyond: "the peer waits", Test: "provider/tcp/sock TestStuckGPUs"},
	TCPSpill: {Name: "tcp_spill", Resource: "bytes of GPUs that a peer has asked for over a tcp rail and does not receive", Where: "provider/tcp/sock/gpu.c",
		Bound: "those of `tcp_reads`, 4 MiB of a connection", Why: "bounce buffers serve others meanwhile", Beyond: "as `tcp_reads`", Test: "provider/tcp/sock TestStuckGPUs"},
}

//go:embed page.md
var page string

// Markdown returns the text of docs/limits.md: page.md with the table.
func Markdown() []byte {
	var rows strings.Builder
	for _, r := range List {
		set := r.Why
		if r.Option != "" {
			set = "[`" + r.Option + "`](options.md)"
		}
		counter := "-"
		if r.Counter != "" {
			counter = "`" + r.Counter + "`"
		}
		fmt.Fprintf(&rows, "| `%s` | %s | %s | %s | %s | %s | %s | %s |\n", r.Name, r.Resource, r.Bound, set, r.Beyond, counter, r.Where, r.Test)
	}
	return []byte(strings.Replace(page, "{{rows}}\n", rows.String(), 1))
}
