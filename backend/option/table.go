package option

import (
	"fmt"
	"strconv"
	"time"
)

// row is one option and its setter.
type row struct {
	Info
	example string // for messages, where the default is empty
	set     func(o *Options, value string) error
}

var table = []row{
	text("provider", "auto", "tcp", "list", "`auto`, or a comma list of `sm`, `verbs`, `tcp`, `nvlink`, `efa`, `cxi` and other libfabric provider names",
		func(o *Options, v string) error { return setProviders(&o.Provider, v) },
		"Fabrics to use, best first. `auto` takes RDMA hardware, or tcp on a machine without RDMA hardware, and in both cases shared memory for peers of the same host. See [Providers](#providers).",
		"a missing fabric must be an error and not tcp, or a fabric must not be used"),
	text("devices", "", "eth0,!lo", "list", "a comma list of globs over device or interface names; `!` or `^` before a glob excludes, `#2` is the third in order",
		func(o *Options, v string) error { return setGlobs(&o.Devices, v) },
		"Devices to use. Empty: all that fit. A name or a glob also brings back devices that GORAIL leaves out by default. See [Devices](#devices).",
		"a machine has devices for other purposes (storage, management), or each process should take those near its GPU"),
	text("libfabric_path", "libfabric.so.1", "", TypePath, "a file name that dlopen finds, or a path",
		func(o *Options, v string) error { return setLibrary(&o.LibfabricPath, v) },
		"The libfabric library to load.",
		"the vendor's libfabric is not the one that the loader finds, as with EFA's installer"),
	duration("xfer_timeout", "30s", 100*time.Millisecond, time.Hour, func(o *Options) *time.Duration { return &o.XferTimeout },
		"The deadline of a transfer: a transfer without progress for this long is aborted. The error may come later: nothing may touch the memory of a failed request. See [Timeouts](#timeouts).",
		"an error must come earlier, or a path may stand still for longer"),
	duration("peer_timeout", "60s", 100*time.Millisecond, time.Hour, func(o *Options) *time.Duration { return &o.PeerTimeout },
		"A session ends if its peer shows no sign of life for this long. The next post or notification connects again. See [Timeouts](#timeouts).",
		"hosts are starved for longer than a minute, or memory must be free of a silent peer earlier"),
	duration("rail_timeout", "500ms", 10*time.Millisecond, time.Hour, func(o *Options) *time.Duration { return &o.RailTimeout },
		"Failover: a rail is fenced if nothing moves on it for this long while another link to the same peer is healthy (idle, or with completions). The other rails take over its work.",
		"a switch stands still for longer and recovers, or failover must be faster"),
	duration("connect_timeout", "30s", 100*time.Millisecond, time.Hour, func(o *Options) *time.Duration { return &o.ConnectTimeout },
		"Connecting to a peer fails after this time. Transfers that wait for the connection then fail, too. Notifications are tried again for `peer_timeout`. See [Timeouts](#timeouts).",
		"peers start late, or their hosts are starved"),
	duration("cancel_timeout", "2s", 10*time.Millisecond, 10*time.Minute, func(o *Options) *time.Duration { return &o.CancelTimeout },
		"A cancelled transfer that has not drained after this time is ended by a fence at the peer. deregisterMem waits at most this long, and a second more for the fence.",
		"deregisterMem must return earlier, or drained transfers need longer on a slow path"),
	integer("max_sessions", "4096", 1, 1<<20, func(o *Options) *int { return &o.MaxSessions },
		"Peers' sessions that are served at a time. At the limit a newcomer is told to come back. To make room, GORAIL ends the session whose peer has been silent longest, if that peer has missed its heartbeats. Peers behind one address (IPv6: one /64) may have three quarters of these, and so may those of one identity. See [Limits](#limits).",
		"one engine serves more peers than this, or most peers share one address (NAT)"),
	text("tls_ca", "", "/etc/gorail/ca.pem", TypePath, "a PEM file, or nothing",
		func(o *Options, v string) error { o.TLSCA = v; return nil },
		"The CA certificates that peers' certificates must come from. Needs `tls_cert` and `tls_key`. See [Identity](#identity).",
		"others can read the metadata, or reach the control port"),
	text("tls_cert", "", "/etc/gorail/cert.pem", TypePath, "a PEM file, or nothing",
		func(o *Options, v string) error { o.TLSCert = v; return nil },
		"The certificate that proves this engine's operator to peers, then its intermediates. Ed25519, ECDSA P-256 or P-384, or RSA of 2048 to 8192 bits.",
		"`tls_ca` is set"),
	text("tls_key", "", "/etc/gorail/key.pem", TypePath, "a PEM file, or nothing",
		func(o *Options, v string) error { o.TLSKey = v; return nil },
		"The private key of `tls_cert`.",
		"`tls_ca` is set"),
	text("tls_peers", "", "spiffe://prod.example/ns/llm/sa/*", "list", "a comma list of patterns with `*`, `?` and `[a-z]`, or nothing",
		func(o *Options, v string) error { return setNames(&o.TLSPeers, v) },
		"Which certificates of `tls_ca` are accepted: one of their URIs or DNS names must match. `*` never stands for a `/`. Empty: all, with a warning. See [Identity](#identity).",
		"the CA also signs workloads that are not peers, as in a service mesh"),
	text("secret_file", "", "/etc/gorail/secret", TypePath, "a text file, or nothing",
		func(o *Options, v string) error { o.SecretFile = v; return nil },
		"A file with a secret of 32 bytes or more on each line. Peers must have one of them. The first is used towards peers. See [Identity](#identity).",
		"peers must belong to one operator, and there are no certificates"),
	text("require_identity", "off", "", "word", "`on` or `off`",
		func(o *Options, v string) error { return setSwitch(&o.RequireIdentity, v) },
		"On: making the agent fails without `tls_ca` or `secret_file`.",
		"a configuration without identity must not run"),
	text("peer_names", "claimed", "", "word", "`claimed` or `certified`",
		func(o *Options, v string) error {
			var word string
			err := setWord(&word, v, "claimed", "certified")
			o.CertifiedNames = word == "certified"
			return err
		},
		"`certified`: the name of a peer's agent must be in its certificate, as the URI `gorail:NAME` or as a DNS name. Needs `tls_ca`. `claimed`: any peer may use any name.",
		"decisions of the application depend on the names of peers"),
	text("strict_names", "off", "", "word", "`on` or `off`",
		func(o *Options, v string) error { return setSwitch(&o.StrictNames, v) },
		"On: if metadata has been loaded here under an agent's name, only the engine of that metadata may use the name.",
		"no other engine may take the name of a peer that is known"),
	text("encryption", "off", "", "word", "`on` or `off`",
		func(o *Options, v string) error { return setSwitch(&o.Encryption, v) },
		"On: all data that leaves the host is encrypted, by AES-256-GCM, and control channels use a post-quantum key exchange. Both sides must have the same value. Of all fabrics tcp alone encrypts: see `rdma`. Needs OpenSSL's libcrypto (`libcrypto.so.3`, `libcrypto.so.1.1` or `libcrypto.so`). See [The TCP rail](tcp.md#encryption).",
		"the network is not trusted"),
	text("rdma", "untrusted", "trusted", "word", "`untrusted` or `trusted`",
		func(o *Options, v string) error {
			var word string
			err := setWord(&word, v, "untrusted", "trusted")
			o.TrustedRDMA = word == "trusted"
			return err
		},
		"With `encryption=on`: whether rails that cannot encrypt (verbs, EFA, CXI, NVLink between hosts) may carry data in clear, because their network is trusted. `untrusted`: making the agent fails if there are such devices.",
		"`encryption=on` is for other networks, and the RDMA network is trusted"),
	size("notif_memory", "256MiB", mib, 64*gib, func(o *Options) *uint64 { return &o.NotifMemory },
		"Bytes of incoming notifications that the application has not taken, of all peers together. Above the limit, a peer may send only while less than 64 KiB of its own wait. See [Limits](#limits).",
		"memory is scarce, or many peers notify a busy application"),
	size("notif_queue", "16MiB", 64*kib, 16*gib, func(o *Options) *uint64 { return &o.NotifQueue },
		"Bytes of notifications that are queued for a peer that does not take them. Above the limit, genNotif fails. A peer that has as much waiting here gets no credits.",
		"genNotif fails with GR-1072, and the peer will take them later"),
	integer("max_rails", strconv.Itoa(defaultRails), 1, mostRails, func(o *Options) *int { return &o.MaxRails },
		"The most rails of a region of memory, besides the loopback interface and shared memory. If the host has more devices of the fastest class, a region is registered on those near to it. See [Which NICs a region uses](fabrics.md#which-nics-a-region-uses).",
		"regions near to many devices should use more of them, or registration should cost less"),
	text("rail_share", "on", "", "word", "`on` or `off`",
		func(o *Options, v string) error { return setSwitch(&o.RailShare, v) },
		"With more devices than `max_rails`: whether the agents of a host share them out, each taking the near ones that others use least. Off: each takes the same. See [Devices](#devices).",
		"each process should take the same devices"),
	integer("qps_per_rail", "1", 1, 8, func(o *Options) *int { return &o.QPsPerRail },
		"Queue pairs (tcp: connections) for each peer on a pair of rails. The smaller of both sides' numbers counts. Where one side has more devices than `max_rails`, it is 1, and the log warns. Each has receives, credits and a window of its own, and fails alone. No effect if one endpoint serves all peers (EFA, CXI).",
		"the network spreads connections over paths (ECMP), or one queue pair does not fill the port"),
	limit("tcp_threads", 1, MaxThreads, func(o *Options) *int { return &o.TCPThreads },
		"tcp: progress threads, each with a connection to each peer on a pair of rails. A transfer of 2 MiB and more is spread over them, 512 KiB at a time, and so are many smaller ones at once. The smaller number of both sides counts. 0: a quarter of the processors that the process may use, 1 to 8. See [TCP](tcp.md#threads).",
		"one thread does not fill the link (25 Gbit/s and more), or processors belong to the application"),
	text("mr_max", "0", "", "size", "`0`, or a size from 1MiB to 1024GiB (bytes, or with KiB, MiB, GiB), rounded down to 64 KiB",
		func(o *Options, v string) error { return setLimit(&o.MRMax, v, mib, 1024*gib) },
		"Larger memory is registered in several slices, each with keys of its own. 0: the fabric's own limit. verbs: 3.5 GiB, since one region above 4 GiB ran at 6.0 GB/s and slices of 3.5 GiB at 9.2 (mlx5, 4 KiB pages, IOMMU on). Others: none.",
		"a device or library is slow with large regions, as libfabric before 2.5 on CXI is (1GiB)"),
	text(RemoteAccess, "both", "", "word", "`read`, `write` or `both`",
		func(o *Options, v string) error { return setRights(&o.RemoteAccess, v) },
		"What peers may do with memory that this engine registers. The same text in a registration's metaInfo, such as `remote_access=read`, takes precedence. A transfer that needs more fails with NIXL_ERR_NOT_ALLOWED. See [Access of peers](#access-of-peers).",
		"peers only read, or only write: the rest is then refused"),
	text("shared_keys", "on", "", "word", "`on` or `off`",
		func(o *Options, v string) error { return setSwitch(&o.SharedKeys, v) },
		"Whether memory inside a larger registration shares that registration, and its key, on rails other than tcp, where each range has a key of its own. Off: a peer never gets the key of more memory than was registered for it. See [Access of peers](#access-of-peers).",
		"no peer may reach more than the range that was registered for it"),
	text("ibverbs_path", "libibverbs.so.1", "", TypePath, "a file name that dlopen finds, or a path",
		func(o *Options, v string) error { return setLibrary(&o.IbverbsPath, v) },
		"verbs: the libibverbs library to load.",
		"another rdma-core than the loader's has the device's driver"),
	integer("gid_index", "-1", -1, 255, func(o *Options) *int { return &o.IB.GIDIndex },
		"verbs: the entry of a port's GID table to use. -1 on RoCE: the best of version 2 (an IPv4 address, then a global IPv6 address, then others). -1 on InfiniBand: none within a subnet. With an address that is replaced while the engine lives, the rail goes to the new one's entry.",
		"the log names a wrong address, or subnets of InfiniBand are routed"),
	integer("ib_service_level", "0", 0, 15, func(o *Options) *int { return &o.IB.ServiceLevel },
		"verbs: service level of connections. On RoCE: the priority of VLAN tags.",
		"the site has a service level, or a VLAN priority, for this traffic"),
	integer("ib_traffic_class", "0", 0, 255, func(o *Options) *int { return &o.IB.TrafficClass },
		"verbs: traffic class of the global route. On RoCE its upper six bits are the DSCP (104 is DSCP 26).",
		"the RoCE network has a lossless class"),
	integer("ib_pkey_index", "0", 0, 127, func(o *Options) *int { return &o.IB.PKeyIndex },
		"verbs: entry of the port's partition key table.",
		"the port is in several partitions"),
	integer("ib_timeout", "14", 8, 22, func(o *Options) *int { return &o.IB.Timeout },
		"verbs: a packet without an answer is sent again after 4.096 us times 2 to this power (14: 67 ms).",
		"a path has longer round trips, or failover must be faster"),
	integer("ib_retry_count", "6", 0, 7, func(o *Options) *int { return &o.IB.RetryCount },
		"verbs: how often a packet is sent again before the connection fails. With the default timeout that takes about half a second. Soft RoCE takes 7 as unlimited.",
		"the network loses packets, or failover must be faster"),
	text("cuda_path", "libcuda.so.1", "", TypePath, "a file name that dlopen finds, or a path",
		func(o *Options, v string) error { return setLibrary(&o.CUDAPath, v) },
		"The CUDA driver's library. GORAIL looks for it when an agent is made (for the default one only if there is a GPU's device file). GORAIL initialises it when memory of a GPU is first registered.",
		"the loader does not find the driver, as in some containers"),
	size("stage_size", "64MiB", mib, 4*gib, func(o *Options) *uint64 { return &o.StageSize },
		"Bytes of one set of bounce buffers. Transfers go through bounce buffers if no rail moves GPU memory by itself; `log=info` shows it. See [GPU memory](#gpu-memory).",
		"large transfers are staged and memory is there (larger), or pinned memory is scarce (smaller)"),
	text("staging_memory", "0", "", "size", "`0`, or a size from 2MiB to 1024GiB (bytes, or with KiB, MiB, GiB), at least twice `stage_size`",
		func(o *Options, v string) error { return setLimit(&o.StagingMemory, v, 2*mib, 1024*gib) },
		"Bytes of bounce buffers for all peers, three quarters for one address. 0: 64 sets of `stage_size` for each GPU with registered memory. Above the limit, transfers fail with NIXL_ERR_NOT_SUPPORTED. See [GPU memory](#gpu-memory).",
		"staged transfers fail for lack of room, or memory is scarce"),
	text("gpu_copy", "auto", "", "word", "`auto`, `kernel` or `engine`",
		func(o *Options, v string) error { return setWord(&o.GPUCopy, v, "auto", "kernel", "engine") },
		"What copies GPU memory. `kernel`: a kernel on SMs that the application leaves free. `engine`: a copy engine, which takes no SMs and 3 us for each block. `auto`: the faster one for the list; for 0.1 s after a kernel had to wait for the application's kernels, lists of up to 333 blocks take a copy engine. See [GPU memory](#gpu-memory).",
		"the application may not lose an SM (`engine`)"),
	text("gpu_mapping", "on", "", "word", "`on` or `off`",
		func(o *Options, v string) error { return setSwitch(&o.GPUMapping, v) },
		"sm, nvlink: whether processes map each other's GPU memory, until its owner deregisters or unmaps it. Off: this engine maps none and lets none map its own; bounce buffers in host memory take its place, as also between two GPUs of this process. See [GPU memory](gpu.md#memory-mapped-anew).",
		"no other process may hold this one's GPU memory, not for a second"),
	text("imex_channels", "/dev/nvidia-caps-imex-channels", "", TypePath, "a folder's path",
		func(o *Options, v string) error { o.IMEXChannels = v; return nil },
		"nvlink: the folder with the device nodes of IMEX channels. Without one that this process may open, no memory of GPUs goes over NVLink between hosts. See [NVLink between hosts](gpu.md#nvlink-between-hosts).",
		"a container has the device nodes elsewhere"),
	text("fi_hmem", "auto", "", "word", "`auto`, `on` or `off`",
		func(o *Options, v string) error { return setWord(&o.HMEM, v, "auto", "on", "off") },
		"EFA, CXI: whether libfabric's devices are asked for GPU memory (`FI_HMEM`). `auto`: only if this process has a CUDA context when the agent is made. Without it GPU memory does not go over such a device. See [GPU memory](#gpu-memory).",
		"the agent is made before the process uses GPUs (`on`), or libfabric must make no CUDA context (`off`)"),
	integer("copy_threads", "-1", -1, maxCopyThreads, func(o *Options) *int { return &o.CopyThreads },
		"sm: threads that copy large transfers between processes of one host. Threads that poll assist them. -1: a quarter of the usable processors, one to four. 0: only the threads that poll. See [Shared memory](#shared-memory).",
		"processors belong to the application (0), or many are free"),
	text("copy_for_peers", "on", "", "word", "`on` or `off`",
		func(o *Options, v string) error { return setSwitch(&o.CopyForPeers, v) },
		"sm: while this application polls all the time, its polls copy a part of what peers of this host write or read here. Off: nothing is copied for peers here; peers may still copy for this engine. See [Shared memory](#shared-memory).",
		"polls of the application must stay short"),
	text("ptracer", "off", "", "word", "`on` or `off`",
		func(o *Options, v string) error { return setSwitch(&o.Ptracer, v) },
		"sm: lets every process of this user access this process's memory where Yama's scope 1 allows only its ancestors. Off: the next best way serves peers of this host, and a warning says so. See [Shared memory](#shared-memory).",
		"Yama's scope is 1 (Ubuntu), and peers of one host should copy directly"),
	text("local_dir", "auto", "", TypePath, "`auto`, `off`, or a folder's path from `/`",
		func(o *Options, v string) error { return setFolder(&o.LocalDir, v) },
		"sm: a folder in which peers of this host meet that have different network namespaces, such as pods of one node. All of them mount the same folder of the host. `auto`: `/run/gorail`, if that folder is there and this user may write to it. See [Shared memory](#shared-memory).",
		"pods of one node are peers, and mount a folder of the host elsewhere"),
	text("local_peers", SameUser, "", "word", "`same-user` or `any-with-token`",
		func(o *Options, v string) error { return setWord(&o.LocalPeers, v, SameUser, AnyWithToken) },
		"sm: processes that may be peers over shared memory: those of this user, as this user namespace shows it, or all that know the token of a link. Both sides need `any-with-token` if their users differ. See [Shared memory](#shared-memory).",
		"pods of one node run as different users"),
	text("traffic_class", "", "low_latency", "word", "`best_effort`, `low_latency`, `dedicated_access`, `bulk_data`, or nothing",
		func(o *Options, v string) error { return setTrafficClass(&o.TrafficClass, v) },
		"The traffic class that libfabric is told (`FI_TC_*`). EFA: `low_latency` is service level 8. CXI: the class of that name. Empty: the fabric's own.",
		"the site's policy names a class for this traffic"),
	text("cxi_auth_key", "", "5:234", "list", "a comma list of `service:vni`, of `device=service:vni`, or nothing",
		func(o *Options, v string) error { return setCXIKeys(&o.CXIAuthKey, v) },
		"CXI service id and VNI to open devices with. Empty: libfabric's choice (`SLINGSHOT_SVC_IDS`, `SLINGSHOT_VNIS`, else a service of the user).",
		"no launcher sets `SLINGSHOT_VNIS` and `SLINGSHOT_SVC_IDS`"),
	text("log", "warn", "", "word", "`error`, `warn`, `info` or `debug`",
		func(o *Options, v string) error { return setLevel(&o.Log, v) },
		"The lowest level that is logged. The newest agent of a process sets it for the process. Lines with a `code` are in [errors.md](errors.md). See [Log](#log).",
		"the choice of rails and paths is in question (`info`)"),
	text("log_file", "", "/tmp/gorail-%a-%p.log", TypePath, "a path in a folder that exists, `/dev/stderr`, or nothing",
		func(o *Options, v string) error { o.LogFile = v; return nil },
		"The file that log lines are appended to. Empty: standard error. `%p` stands for the process id, `%h` for the host's name, `%a` for the agent's. Making the agent fails if the file cannot be opened. See [Log](#log).",
		"standard error is lost, or mixed with other text"),
	text("log_format", "text", "json", "word", "`text` or `json`",
		func(o *Options, v string) error {
			var word string
			err := setWord(&word, v, "text", "json")
			o.LogJSON = word == "json"
			return err
		},
		"The format of log lines: `key=value` pairs, or one JSON object a line. See [Log](#log).",
		"a collector reads the log"),
	text("stats_file", "", "/tmp/gorail.json", TypePath, "a path in a folder that exists, `/dev/stderr`, or nothing",
		func(o *Options, v string) error { o.StatsFile = v; return nil },
		"The engine writes its counters to this file, as JSON, when it closes, and each `stats_interval`. A process that ends by a signal, or without closing its agents, leaves what was written last: the plugin handles no signal and no exit. `%p` stands for the process id, `%h` for the host's name, `%a` for the agent's. If the folder is missing or not writable, making the agent fails. Symbolic links of users other than root and our own are not followed.",
		"counters are wanted after the end of a run"),
	duration("stats_interval", "0s", 0, 24*time.Hour, func(o *Options) *time.Duration { return &o.StatsInterval },
		"How often `stats_file` is written while the engine runs. 0: only at its end. Below 100ms: 100ms.",
		"the process may end by a signal"),
	text("stats_socket", "auto", "/run/gorail", TypePath, "`auto`, `off`, or a folder",
		func(o *Options, v string) error { return setFolder(&o.StatsSocket, v) },
		"The folder of the UNIX socket that `gorail top`, `gorail stats` and `gorail metrics` read. It costs nothing without a reader. Only our user and root may read. `auto`: `$XDG_RUNTIME_DIR/gorail`, or else `/run/gorail`; if neither can be had, there is no socket.",
		"several containers share the folder that is watched, or nobody may look"),
	text("control_port", "0", "", "ports", "`0` (the system chooses), a port, or a range of ports such as `7000-7100`",
		func(o *Options, v string) error { return setPorts(&o.ControlPort, v) },
		"TCP ports to listen on for control connections. Each engine takes one. A firewall has to pass these ports and `data_port`.",
		"a firewall is between peers, or the port must be known"),
	text("data_port", "0", "", "ports", "`0` (the system chooses), a port, or a range of ports such as `7200-7999`",
		func(o *Options, v string) error { return setPorts(&o.DataPort, v) },
		"TCP ports to listen on for data: one for each interface and engine, on its address, for all peers. If none is free, the rail cannot be opened, and the error names this option. A firewall has to pass these ports and `control_port` towards a target.",
		"a firewall is between peers of tcp"),
	text("tcp_congestion", "", "bbr", "word", "a name in the sysctl net.ipv4.tcp_available_congestion_control, or nothing",
		func(o *Options, v string) error { return setCongestion(&o.TCPCongestion, v) },
		"tcp: the congestion control of data connections (`TCP_CONGESTION`). Each end sets what it sends by. Making the agent fails if this kernel lacks it, or this process may not use it. Empty: the system's. See [tcp.md](tcp.md).",
		"the way is long or loses packets (`bbr`), or the network marks congestion (`dctcp`)"),
	text("compression", "off", "", "word", "`off`, `auto` or `on`",
		func(o *Options, v string) error { return setWord(&o.Compression, v, "off", "auto", "on") },
		"Whether tcp compresses frames of 64 KiB and more, also of many small descriptors, and GPUs what goes between them through host memory, without loss (bf16, fp16, fp32). Takes effect towards peers that have `on` or `auto`, too. `auto`: while that is faster. See [compression.md](compression.md).",
		"the network gives a process less than 10 Gbit/s, and processors have time"),
	text("control_devices", "", "eth0", "list", "a comma list of globs over interface names; `!` or `^` before a glob excludes",
		func(o *Options, v string) error { return setGlobs(&o.ControlDevices, v) },
		"Control connections are accepted on the addresses of these interfaces only. Empty: on the addresses of the rails. If RDMA hardware has none (EFA, CXI): of all networks that are up, except bridges and tunnels.",
		"control connections must not use the networks of the rails, or RDMA hardware has no addresses and the host has several networks"),
}

func text(name, def, example, kind, allowed string, set func(*Options, string) error, doc, when string) row {
	return row{
		Info:    Info{Name: name, Env: env(name), Type: kind, Default: def, Range: allowed, Doc: doc, When: when},
		example: example,
		set:     set,
	}
}

func duration(name, def string, least, most time.Duration, field func(*Options) *time.Duration, doc, when string) row {
	allowed := fmt.Sprintf("a duration from %s to %s (`500ms`, `30s`; a plain number means milliseconds)", shortDuration(least), shortDuration(most))
	return text(name, def, "", "duration", allowed, func(o *Options, v string) error {
		d, err := ParseDuration(v)
		if err == nil && (d < least || d > most) {
			err = errRange
		}
		*field(o) = d
		return err
	}, doc, when)
}

func size(name, def string, least, most uint64, field func(*Options) *uint64, doc, when string) row {
	allowed := fmt.Sprintf("a size from %s to %s (bytes, or with KiB, MiB, GiB)", FormatSize(least), FormatSize(most))
	return text(name, def, "", "size", allowed, func(o *Options, v string) error {
		n, err := ParseSize(v)
		if err == nil && (n < least || n > most) {
			err = errRange
		}
		*field(o) = n
		return err
	}, doc, when)
}

func integer(name, def string, least, most int, field func(*Options) *int, doc, when string) row {
	return text(name, def, "", "number", fmt.Sprintf("a whole number from %d to %d", least, most), func(o *Options, v string) error {
		n, err := parseInt(v)
		if err == nil && (n < least || n > most) {
			err = errRange
		}
		*field(o) = n
		return err
	}, doc, when)
}

// limit is a number option; 0 means no limit.
func limit(name string, least, most int, field func(*Options) *int, doc, when string) row {
	return text(name, "0", "", "number", fmt.Sprintf("`0`, or a whole number from %d to %d", least, most), func(o *Options, v string) error {
		n, err := parseInt(v)
		if err == nil && n != 0 && (n < least || n > most) {
			err = errRange
		}
		*field(o) = n
		return err
	}, doc, when)
}
