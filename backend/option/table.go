package option

import (
	"fmt"
	"log/slog"
	"time"
)

// row is one option: what it is called and how it is set.
type row struct {
	Info
	example string // for messages, where the default is empty
	set     func(o *Options, value string) error
}

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// maxCopyThreads is LC_THREADS of provider/shm.
const maxCopyThreads = 15

var table = []row{
	text("provider", "auto", "tcp", "list", "`auto`, or a comma list of `local`, `verbs`, `tcp`, `efa`, `cxi` and other libfabric provider names",
		func(o *Options, v string) error { return setProviders(&o.Provider, v) },
		"Fabrics to use, best first. `auto` takes RDMA hardware (EFA and CXI through libfabric, InfiniBand, RoCE and iWARP through libibverbs), and tcp only on a machine that has none, and besides them memory for peers of the same host; `verbs` is libibverbs, `local` that memory, `tcp` whichever native tcp provider libfabric has. A named fabric without a device is a warning while another one has some. A libfabric provider must offer `FI_DELIVERY_COMPLETE`."),
	text("devices", "", "eth0,!lo", "list", "a comma list of globs over device or interface names; `!` or `^` before a glob excludes, `#2` is the third in order",
		func(o *Options, v string) error { return setGlobs(&o.Devices, v) },
		"Devices to use. Empty: all that fit: interfaces that are down, bridges and their ports, tunnels, management interfaces and those much slower than the rest are left out (`log=info` says why). A name or glob brings them back, but for what is down: a network interface with an address, or that is named here, joins as a rail when it comes up. The loopback interface serves agents of one network namespace."),
	text("libfabric_path", "libfabric.so.1", "", "path", "a file name that dlopen finds, or a path",
		func(o *Options, v string) error { o.LibfabricPath = v; return nil },
		"The libfabric library to load."),
	duration("xfer_timeout", "30s", 100*time.Millisecond, time.Hour, func(o *Options) *time.Duration { return &o.XferTimeout },
		"A transfer that makes no progress for so long is aborted. When the peer does not answer, the error comes cancel_timeout (READ) or peer_timeout (WRITE) later: nothing may touch the memory of a request that has failed."),
	duration("peer_timeout", "60s", 100*time.Millisecond, time.Hour, func(o *Options) *time.Duration { return &o.PeerTimeout },
		"A session ends when its peer has shown no sign of life for so long: nothing heard, nothing acknowledged by its host, no process of it to be seen on this host. The next post or notification connects again. The default is above the 44 s for which starved hosts were seen to be silent; the death of a peer is told by other signs, within two seconds."),
	duration("rail_timeout", "1s", 10*time.Millisecond, time.Hour, func(o *Options) *time.Duration { return &o.RailTimeout },
		"A rail on which nothing moves for so long while others to the same peer make progress is fenced, and they take over its work."),
	duration("connect_timeout", "30s", 100*time.Millisecond, time.Hour, func(o *Options) *time.Duration { return &o.ConnectTimeout },
		"Connecting to a peer fails after so long, and transfers that wait for it fail, too; notifications are tried again for peer_timeout. A host has 5 s of it to accept a connection. The rest is for peers that are starved of CPU, which were seen to answer after tens of seconds."),
	duration("release_wait", "50ms", 0, 10*time.Second, func(o *Options) *time.Duration { return &o.ReleaseWait },
		"Releasing a request in flight waits so long for it to drain; then the endpoints of a READ are closed, and a WRITE drains behind the call."),
	duration("cancel_timeout", "2s", 10*time.Millisecond, 10*time.Minute, func(o *Options) *time.Duration { return &o.CancelTimeout },
		"A cancelled transfer that has not drained after so long is ended by a fence at the peer; deregisterMem waits no longer than this, and a second for the fence."),
	integer("max_sessions", "4096", 1, 1<<20, func(o *Options) *int { return &o.MaxSessions },
		"Sessions of peers that are served at a time. For one more the session gives way whose peer has been silent for longest; where none is silent the newcomer is told to come back."),
	limit("max_sessions_per_source", 1, 1<<20, func(o *Options) *int { return &o.SourceSessions },
		"Of these, those of peers behind one address (IPv6: of one /64). 0: three quarters of `max_sessions`, so that peers of other addresses always find room."),
	limit("max_endpoints", 1, 1<<20, func(o *Options) *int { return &o.MaxEndpoints },
		"Endpoints that are open at a time for peers' sessions, three quarters of them for peers behind one address; a peer takes one on each pair of rails, times `qps_per_rail`. For one more it is told to come back. 0: 16384, and no more than half of the process's file descriptors (`ulimit -n`) suffice for."),
	size("control_memory", "256MiB", 8*mib, 64*gib, func(o *Options) *uint64 { return &o.ControlMemory },
		"Bytes of control frames, not read whole or not acknowledged, of all peers' sessions together. Beyond it the session ends that has the most."),
	size("notif_memory", "256MiB", mib, 64*gib, func(o *Options) *uint64 { return &o.NotifMemory },
		"Bytes of incoming notifications that the application has not taken, of all peers together. Beyond it a peer may send only while 64 KiB of its own wait, and of notifications that miss a part those of the peer with the most are given up, with its session."),
	size("notif_queue", "16MiB", 64*kib, 16*gib, func(o *Options) *uint64 { return &o.NotifQueue },
		"Bytes of notifications that wait for a peer who does not take them; beyond that genNotif fails."),
	size("chunk_min", "128KiB", 4*kib, gib, func(o *Options) *uint64 { return &o.ChunkMin },
		"Descriptors of this size and more are cut into chunks, none smaller than this if it can be helped. Between processes of one host, 1 MiB and less is left whole where chunk_max allows."),
	size("chunk_max", "1MiB", 4*kib, gib, func(o *Options) *uint64 { return &o.ChunkMax },
		"The largest chunk; a fabric's own limit goes before."),
	size("window_min", "256KiB", 4*kib, 64*gib, func(o *Options) *uint64 { return &o.WindowMin },
		"The least number of bytes in flight to a peer that is allowed on a link."),
	size("window_max", "64MiB", 4*kib, 64*gib, func(o *Options) *uint64 { return &o.WindowMax },
		"The greatest number of bytes in flight to a peer on a link."),
	duration("window_time", "4ms", 100*time.Microsecond, 10*time.Second, func(o *Options) *time.Duration { return &o.WindowTime },
		"The window in flight is what the measured rate moves in this time; a healthy peer drains within it."),
	limit("inflight_ops", 1, 1<<20, func(o *Options) *int { return &o.InflightOps },
		"The most WRITE and READ requests in flight on a rail, for all its peers together, who take turns; messages don't count. 0: as many as queues and windows take."),
	integer("max_rails", "8", 1, 32, func(o *Options) *int { return &o.MaxRails },
		"The most rails to use, besides the loopback interface and the memory of this host; of more, fast ones are taken, spread over NUMA nodes and PCI switches, the same in every process of a host, and a warning says so."),
	integer("qps_per_rail", "1", 1, 8, func(o *Options) *int { return &o.QPsPerRail },
		"Queue pairs, or connections on tcp, on a pair of rails for a peer; the smaller of both sides' numbers. Each has receives, credits and a window of its own, and fails alone. No effect where one endpoint serves all peers (EFA, CXI)."),
	text("mr_max", "0", "", "size", "`0`, or a size from 1MiB to 1024GiB (bytes, or with KiB, MiB, GiB), rounded down to 64 KiB",
		func(o *Options, v string) error { return setLimit(&o.MRMax, v, mib, 1024*gib) },
		"Memory of more bytes is registered in several pieces, each with keys of its own. 0: the fabrics' own: 3.5 GiB on verbs, where one region of more than 4 GiB was seen at 6.0 GB/s and slices of 3.5 GiB at 9.2 (mlx5, 4 KiB pages, IOMMU on), elsewhere none."),
	text("ibverbs_path", "libibverbs.so.1", "", "path", "a file name that dlopen finds, or a path",
		func(o *Options, v string) error { o.IbverbsPath = v; return nil },
		"verbs: the libibverbs library to load."),
	text("rdmacm_path", "librdmacm.so.1", "", "path", "a file name that dlopen finds, or a path",
		func(o *Options, v string) error { o.RdmacmPath = v; return nil },
		"verbs: the librdmacm library to load where there are iWARP devices."),
	integer("gid_index", "-1", -1, 255, func(o *Options) *int { return &o.IB.GIDIndex },
		"verbs: the entry of a port's GID table to use. -1: on RoCE the best of version 2 (an IPv4 address before a global IPv6 one before others), on InfiniBand none within a subnet."),
	integer("ib_service_level", "0", 0, 15, func(o *Options) *int { return &o.IB.ServiceLevel },
		"verbs: service level of connections; on RoCE the priority of VLAN tags."),
	integer("ib_traffic_class", "0", 0, 255, func(o *Options) *int { return &o.IB.TrafficClass },
		"verbs: traffic class of the global route; on RoCE the DSCP is its upper six bits (104 is DSCP 26)."),
	integer("ib_pkey_index", "0", 0, 127, func(o *Options) *int { return &o.IB.PKeyIndex },
		"verbs: entry of the port's partition key table."),
	limit("ib_mtu", 256, 4096, func(o *Options) *int { return &o.IB.MTU },
		"verbs: the most bytes of a packet. 0: what both ports have."),
	integer("ib_timeout", "14", 8, 22, func(o *Options) *int { return &o.IB.Timeout },
		"verbs: a packet without answer is sent again after 4.096 us times 2 to this power (14: 67 ms)."),
	integer("ib_retry_count", "6", 0, 7, func(o *Options) *int { return &o.IB.RetryCount },
		"verbs: how often a packet is sent again before the connection has failed; with the default timeout it takes about half a second. Soft RoCE takes 7 for without end."),
	integer("ib_rnr_retry", "6", 0, 6, func(o *Options) *int { return &o.IB.RNRRetry },
		"verbs: how often a message is sent again to a peer that has no receive posted; it always has."),
	integer("ib_max_reads", "16", 1, 128, func(o *Options) *int { return &o.IB.MaxReads },
		"verbs: READs outstanding on a connection, initiated and accepted; less where a device or the peer takes less. 1 throttles READ."),
	text("cuda_path", "libcuda.so.1", "", "path", "a file name that dlopen finds, or a path",
		func(o *Options, v string) error { o.CUDAPath = v; return nil },
		"The CUDA driver's library. It is looked for when an agent is made (the default one where there is a GPU's device file), and initialised once memory of a GPU is registered."),
	size("stage_size", "64MiB", mib, 4*gib, func(o *Options) *uint64 { return &o.StageSize },
		"Bytes of a staging ring. This side has one in pinned host memory for its own transfers, and for each peer's session, where that needs it, up to two for each of its GPUs: in pinned host memory, and on that GPU. Transfers are staged where no rail moves memory of GPUs by itself; the log says so (`log=info`)."),
	limit("gpu_blocks", 1, 1024, func(o *Options) *int { return &o.GPUBlocks },
		"local: the most blocks of 256 threads that a copy of scattered blocks between GPUs may take; the initiator's GPU runs it beside the application's work. Fewer leave more of the GPU to that. 0: a quarter of the GPU's SMs, 32 at most, between two GPUs, and as many as SMs within one; docs/gpu.md has what that is worth."),
	text("fi_hmem", "auto", "", "word", "`auto`, `on` or `off`",
		func(o *Options, v string) error { return setWord(&o.HMEM, v, "auto", "on", "off") },
		"libfabric's hardware (EFA, CXI): devices are asked to know memory of GPUs (`FI_HMEM`). That alone may make libfabric create a CUDA context, on the first GPU where none is current; `auto` asks where this process has a context already when the agent is made. Without it memory of GPUs does not go over such a device."),
	integer("copy_threads", "-1", -1, maxCopyThreads, func(o *Options) *int { return &o.CopyThreads },
		"local: threads that copy large transfers between processes of one host; those who poll help. They run near the NUMA node of the memory here, where it has as many processors that this process may use. -1: a quarter of the processors that this process may use, by its affinity mask and its cgroup's quota, one to four. 0: only those who poll."),
	text("copy_for_peers", "on", "", "word", "`on` or `off`",
		func(o *Options, v string) error { return setSwitch(&o.CopyForPeers, v) },
		"local: while this application polls all the time (16 polls within 2 ms that found nothing to do), its polls copy a part of what peers of this host write here or read from here: up to 512 KiB a poll, 50 to 150 us. Two cores copy nearly twice as fast as one. Off: nothing is copied for peers here; they may still copy for this engine."),
	text("ptracer", "off", "", "word", "`on` or `off`",
		func(o *Options, v string) error { return setSwitch(&o.Ptracer, v) },
		"local: lets every process of this user read and write this one's memory where Yama's scope 1 would let only its ancestors (`PR_SET_PTRACER_ANY`; a process has one such setting, a crash handler's would be replaced). Off: the next best way serves peers of this host, and a warning says so."),
	text("ib_odp", "off", "", "word", "`on` or `off`",
		func(o *Options, v string) error { return setSwitch(&o.IB.ODP, v) },
		"verbs: memory is registered by on-demand paging: nothing is pinned, and the first access to a page waits for it. A device without it for RC WRITE, READ and SEND is an error."),
	duration("spin_time", "20us", 0, 10*time.Millisecond, func(o *Options) *time.Duration { return &o.SpinTime },
		"The engine's thread polls so long before it sleeps."),
	limit("tx_depth", 32, 1<<20, func(o *Options) *int { return &o.TxDepth },
		"Depth of an endpoint's transmit queue (`tx_attr.size`). 0: the fabric's own."),
	limit("rx_depth", 64, 1<<20, func(o *Options) *int { return &o.RxDepth },
		"Depth of an endpoint's receive queue (`rx_attr.size`); 40 receives are posted for each peer. 0: the fabric's own."),
	limit("cq_depth", 64, 1<<20, func(o *Options) *int { return &o.CQDepth },
		"Depth of a rail's completion queue. 0: as deep as the fabric makes it, up to 65536."),
	text("traffic_class", "", "low_latency", "word", "`best_effort`, `low_latency`, `dedicated_access`, `bulk_data`, or nothing",
		func(o *Options, v string) error { return setTrafficClass(&o.TrafficClass, v) },
		"What libfabric is told of the traffic (`FI_TC_*`). EFA: `low_latency` is service level 8. CXI: the class of that name. Empty: the fabric's own."),
	text("cxi_auth_key", "", "5:234", "list", "a comma list of `service:vni`, of `device=service:vni`, or nothing",
		func(o *Options, v string) error { return setCXIKeys(&o.CXIAuthKey, v) },
		"CXI service id and VNI to open devices with. Empty: libfabric's choice (`SLINGSHOT_SVC_IDS`, `SLINGSHOT_VNIS`, else a service of the user's)."),
	text("threading", "safe", "", "word", "`safe` or `domain`",
		func(o *Options, v string) error { return setWord(&o.Threading, v, "safe", "domain") },
		"The threading model that libfabric is asked for. `domain` lets it leave out locks: GORAIL has one of its own round all calls of a rail."),
	text("log", "warn", "", "word", "`error`, `warn`, `info` or `debug`",
		func(o *Options, v string) error { return setLevel(&o.Log, v) },
		"What is logged, to standard error."),
	text("stats_file", "", "/tmp/gorail.json", "path", "a path in a folder that exists, `/dev/stderr`, or nothing",
		func(o *Options, v string) error { o.StatsFile = v; return nil },
		"The engine's counters are written to this file, as JSON, when it closes. A folder that is not there, or not to be written to, is an error when the agent is made."),
	text("control_port", "0", "", "ports", "`0` (the system chooses), a port, or a range of ports such as `7000-7100`",
		func(o *Options, v string) error { return setPorts(&o.ControlPort, v) },
		"TCP ports to listen on for control connections; each engine takes one. With data_port these are the lines of a firewall."),
	text("data_port", "0", "", "ports", "`0` (the system chooses), a port, or a range of ports such as `7200-7999`",
		func(o *Options, v string) error { return setPorts(&o.DataPort, v) },
		"TCP ports to listen on for data: of the fabric tcp, where each link to or from a peer takes one on its rail's address, and of iWARP, one a device. Engines that share an address need ports for all of them. Where none is free the peer can't be connected, and the error says so. A firewall has to let these and control_port through towards a target."),
	text("data_sources", "", "192.0.2.0/24", "list", "a comma list of networks or addresses, or nothing",
		func(o *Options, v string) error { return setNetworks(&o.DataSources, v) },
		"tcp: networks from which a peer's data connections are taken while it connects, besides the addresses that it names and the one that its control connection comes from. For translated addresses (NAT); `0.0.0.0/0,::/0` lets all in, and a stranger among them can end the process."),
	text("control_devices", "", "eth0", "list", "a comma list of globs over interface names; `!` or `^` before a glob excludes",
		func(o *Options, v string) error { return setGlobs(&o.ControlDevices, v) },
		"Interfaces on whose addresses control connections are taken, and no others. Empty: the addresses of the rails; where RDMA hardware has none (EFA, CXI), of all networks of the machine that are up, but bridges and tunnels."),
}

func text(name, def, example, kind, allowed string, set func(*Options, string) error, doc string) row {
	return row{
		Info:    Info{Name: name, Env: env(name), Type: kind, Default: def, Range: allowed, Doc: doc},
		example: example,
		set:     set,
	}
}

func duration(name, def string, least, most time.Duration, field func(*Options) *time.Duration, doc string) row {
	allowed := fmt.Sprintf("a duration from %s to %s (`500ms`, `30s`; a plain number means milliseconds)", shortDuration(least), shortDuration(most))
	return text(name, def, "", "duration", allowed, func(o *Options, v string) error {
		d, err := ParseDuration(v)
		if err == nil && (d < least || d > most) {
			err = errRange
		}
		*field(o) = d
		return err
	}, doc)
}

func size(name, def string, least, most uint64, field func(*Options) *uint64, doc string) row {
	allowed := fmt.Sprintf("a size from %s to %s (bytes, or with KiB, MiB, GiB)", FormatSize(least), FormatSize(most))
	return text(name, def, "", "size", allowed, func(o *Options, v string) error {
		n, err := ParseSize(v)
		if err == nil && (n < least || n > most) {
			err = errRange
		}
		*field(o) = n
		return err
	}, doc)
}

func integer(name, def string, least, most int, field func(*Options) *int, doc string) row {
	return text(name, def, "", "number", fmt.Sprintf("a whole number from %d to %d", least, most), func(o *Options, v string) error {
		n, err := parseInt(v)
		if err == nil && (n < least || n > most) {
			err = errRange
		}
		*field(o) = n
		return err
	}, doc)
}

// limit is a number of which 0 means that there is none.
func limit(name string, least, most int, field func(*Options) *int, doc string) row {
	return text(name, "0", "", "number", fmt.Sprintf("`0`, or a whole number from %d to %d", least, most), func(o *Options, v string) error {
		n, err := parseInt(v)
		if err == nil && n != 0 && (n < least || n > most) {
			err = errRange
		}
		*field(o) = n
		return err
	}, doc)
}

// levels of the option log.
var levels = map[string]slog.Level{"error": slog.LevelError, "warn": slog.LevelWarn, "info": slog.LevelInfo, "debug": slog.LevelDebug}
