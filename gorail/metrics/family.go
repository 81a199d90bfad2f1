// Package metrics shows the running engines of a host to Prometheus. docs/stats.md lists the metrics.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"gorail/backend/stats"
)

// base are the labels of everything that an engine shows. engine is unique: processes of two containers may have the same
// agent name and process id.
var base = []string{"agent", "pid", "engine"}

// family is one metric name.
type family struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

// all are the descriptions of all families, for Describe.
var all []*prometheus.Desc

func describe(name, help string, labels []string) *prometheus.Desc {
	d := prometheus.NewDesc("gorail_"+name, help, labels, nil)
	all = append(all, d)
	return d
}

func gauge(name, help string, labels ...string) family {
	return family{describe(name, help, append(base[:len(base):len(base)], labels...)), prometheus.GaugeValue}
}

func counter(name, help string, labels ...string) family {
	return family{describe(name+"_total", help, append(base[:len(base):len(base)], labels...)), prometheus.CounterValue}
}

// Of the exporter.
var (
	leftOut  = family{describe("engines_left_out", "Engines beyond the most that one scrape shows.", nil), prometheus.GaugeValue}
	duration = family{describe("scrape_duration_seconds", "How long it took to ask all engines.", nil), prometheus.GaugeValue}
)

// Of engines.
var (
	up         = gauge("engine_up", "1: the engine has answered. 0: its process is stopped, has no CPU time, or belongs to another user.")
	info       = gauge("engine_info", "The process of the engine. The value is 1.", "version", "command", "host")
	started    = gauge("engine_start_time_seconds", "When the engine was created, since the epoch.")
	inFlight   = gauge("transfers_in_flight", "Transfers that were posted and have not ended.")
	oldest     = gauge("oldest_transfer_age_seconds", "Time since the post of the oldest transfer in flight. 0: there is none.")
	oldestIdle = gauge("oldest_transfer_idle_seconds", "Time since the oldest transfer in flight has moved bytes. 0: there is none.")
	sessions   = gauge("sessions", "Sessions with peers that have not ended.", "direction", "state")
	limitHits  = counter("limit_hits", "How often a bound of what peers take took effect (docs/limits.md).", "limit")

	staged        = counter("staged_transfers", "Transfers through bounce buffers that began.")
	stagedBytes   = counter("staged_bytes", "Bytes of transfers through bounce buffers that succeeded.")
	stagedCopies  = counter("staged_copies", "Copies that peers requested.")
	stagedPacked  = counter("staged_compressed_bytes", "Bytes that this process's GPUs compressed.")
	stagedTo      = counter("staged_compressed_to_bytes", "What they became.")
	stagedSeconds = gauge("staged_transfer_seconds", "How long transfers through bounce buffers took. The sum is an estimate from the buckets.", "size_class")

	capsRefused   = counter("caps_refused", "Ranges of registered memory that peers named without its capability.")
	nameConflicts = counter("name_conflicts", "Sessions of peers that began under the name of another engine.")
	versions      = counter("peers_refused_version", "Connection metadata of another wire version that was loaded.")
)

// named is a counter of an engine by its name in stats.Live.
type named struct {
	key string
	family
	labels []string // values
}

var ofCore = []named{
	{"transfers_done", counter("transfers", "Transfers that ended with success."), nil},
	{"transfers_failed", counter("transfers_failed", "Transfers that ended with an error."), nil},
	{"notifs_sent", counter("notifications_sent", "Notifications sent."), nil},
	{"notifs_received", counter("notifications_received", "Notifications received."), nil},
	{"notif_duplicates", counter("notification_duplicates", "Notifications that arrived again and were dropped."), nil},
	{"bad_messages", counter("bad_messages", "Messages of peers that break the protocol."), nil},
	{"replayed_batches", counter("replayed_batches", "Batches of failed links that were posted again."), nil},
}

var refused = counter("handshakes_refused", "Connections of peers that got no session, by the reason.", "reason")

var ofControl = []named{
	{"Established", counter("sessions_established", "Sessions that began here and became ready."), nil},
	{"Accepted", counter("sessions_accepted", "Sessions that peers began and that became ready."), nil},
	{"Lost", counter("sessions_lost", "Sessions that ended because the peer is dead."), nil},
	{"Resumed", counter("sessions_resumed", "Connections that replaced another one in their session."), nil},
	{"Refused", refused, []string{"busy"}},
	{"BadToken", refused, []string{"token"}},
	{"BadFrame", refused, []string{"frame"}},
	{"BadVersion", refused, []string{"version"}},
	{"WrongEngine", refused, []string{"engine"}},
	{"BadTLS", refused, []string{"tls"}},
	{"BadIdentity", refused, []string{"identity"}},
	{"TimedOut", refused, []string{"timeout"}},
	{"MadeRoom", refused, []string{"evicted"}},
}

// Of rails.
var (
	railInfo     = gauge("rail_info", "The device of the rail. The value is 1.", "rail", "device", "fabric")
	railState    = gauge("rail_state", "1 for the state that the rail is in, else 0.", "rail", "state")
	railNominal  = gauge("rail_nominal_bytes_per_second", "Nominal speed of the device. Absent if unknown.", "rail")
	railIdle     = gauge("rail_idle_seconds", "Time since the last completion. Absent if there never was one.", "rail")
	railLinks    = gauge("rail_links", "Links of sessions, by their phase.", "rail", "phase")
	railSeconds  = gauge("rail_transfer_seconds", "How long transfers took. The rail that completed the last bytes counts them. The sum is an estimate from the buckets.", "rail", "size_class")
	railUntimed  = counter("rail_untimed_transfers", "Transfers whose time is not known to the microsecond. The histogram leaves them out.", "rail", "size_class")
	railWindow   = gauge("rail_window_bytes", "Bytes that may be in flight, over all links.", "rail")
	railOps      = gauge("rail_operations_in_flight", "Operations and messages posted and not completed.", "rail")
	railCredits  = gauge("rail_credits", "Messages that peers have receives for, over all links.", "rail")
	railNoCredit = gauge("rail_links_without_credits", "Links in use that have messages and no credits.", "rail")
	railMessages = gauge("rail_queued_messages", "Fragments of notifications that wait.", "rail")
	railQueued   = gauge("rail_queued_transfers", "Transfers that have operations to post.", "rail")
)

// ofRail are the counters and gauges with one value a rail.
var ofRail = []struct {
	family
	value func(*stats.Rail) uint64
}{
	{gauge("rail_in_flight_bytes", "Bytes posted and not proved.", "rail"), func(r *stats.Rail) uint64 { return r.InFlight }},
	{counter("rail_written_bytes", "Bytes of our own WRITEs.", "rail"), func(r *stats.Rail) uint64 { return r.BytesWritten }},
	{counter("rail_read_bytes", "Bytes of our own READs.", "rail"), func(r *stats.Rail) uint64 { return r.BytesRead }},
	{counter("rail_copied_for_peers_bytes", "Shared memory: bytes of peers' transfers that this process copied.", "rail"), func(r *stats.Rail) uint64 { return r.ForPeers }},
	{counter("rail_copied_by_peers_bytes", "Shared memory: bytes of our transfers that peers copied.", "rail"), func(r *stats.Rail) uint64 { return r.ByPeers }},
	{counter("rail_mapped_bytes", "Shared memory: bytes of our transfers that went through mappings of peers' memory.", "rail"), func(r *stats.Rail) uint64 { return r.Mapped }},
	{counter("rail_compressed_bytes", "tcp: bytes that went out compressed.", "rail"), func(r *stats.Rail) uint64 { return r.Packed }},
	{counter("rail_compressed_to_bytes", "tcp: what they became.", "rail"), func(r *stats.Rail) uint64 { return r.PackedBytes }},
	{counter("rail_work_requests", "RMA operations posted.", "rail"), func(r *stats.Rail) uint64 { return r.WorkRequests }},
	{counter("rail_completions", "Completions of work requests, messages and receives.", "rail"), func(r *stats.Rail) uint64 { return r.Completions }},
	{counter("rail_errors", "Completions with an error while the link was in use, and posts refused for good.", "rail"), func(r *stats.Rail) uint64 { return r.Errors }},
	{counter("rail_flushed", "Posted operations that ended unfinished with their endpoint or transfer: receives at the end of each session.", "rail"), func(r *stats.Rail) uint64 { return r.Flushed }},
	{counter("rail_retries", "Work requests and messages that were posted again.", "rail"), func(r *stats.Rail) uint64 { return r.Retries }},
	{counter("rail_eagain", "Posts that the provider could not take yet.", "rail"), func(r *stats.Rail) uint64 { return r.EAGAIN }},
	{counter("rail_messages_sent", "Fragments of notifications sent.", "rail"), func(r *stats.Rail) uint64 { return r.MessagesSent }},
	{counter("rail_messages_received", "Fragments of notifications received.", "rail"), func(r *stats.Rail) uint64 { return r.MessagesReceived }},
	{counter("rail_probes", "Messages that only test a link.", "rail"), func(r *stats.Rail) uint64 { return r.Probes }},
	{counter("rail_fences", "How often a link was taken out of use.", "rail"), func(r *stats.Rail) uint64 { return r.Fences }},
	{counter("rail_stalls", "Fences because nothing moved, or a probe was not answered.", "rail"), func(r *stats.Rail) uint64 { return r.Stalls }},
}

// Values of labels. Each has a series, also at 0.
var (
	railStates    = []stats.RailState{stats.Up, stats.Degraded, stats.Down, stats.Idle}
	phases        = []string{"connecting", stats.Working, "fencing", "draining", "backing off", "probing"}
	directions    = []stats.Direction{stats.Initiator, stats.Target}
	sessionStates = []string{"connecting", "ready", "suspended"}
)
