package doctor

// Row describes a check for docs/doctor.md.
type Row struct {
	ID, Area string
	Looks    string // what the check looks at
	Fails    string // what FAIL means
	Remedy   string
}

// never is the text of checks that only warn.
const never = "Never fails; a WARN says what is lost"

// List has every check, in the order of the report.
var List = []Row{
	{"options", "options", "The options as the plugin parses them: `--param`, then GORAIL_* variables", "A value is refused. createBackend fails with the same text", "Write a value that the text names"},
	{"variables", "options", "GORAIL_* variables that no option reads", never, "Correct the name: [options.md](options.md)"},
	{"disk", "options", "Writes 64 KiB to the folders of temporary files, `stats_file` and `log_file`", "A file system is full, or the folder of `stats_file` or `log_file` cannot be written to", "Free space, or name another folder (TMPDIR, `stats_file`, `log_file`)"},

	{"plugin", "software", "libplugin_GORAIL.so: the file, its architecture, its maker", "No plugin, or one that this machine cannot load", "Install GORAIL, or name the folder in GORAIL_PLUGIN_DIR"},
	{"version", "software", "The version of the plugin beside that of this tool", "Plugin and tool are of different versions", "Install both from one release"},
	{"glibc", "software", "The C library beside what the plugin needs", "The plugin needs a newer glibc", "Use the wheel for an older glibc, or a newer system"},
	{"wheel", "software", "NIXL's Python wheels, and which one package nixl takes", "Torch is built for a CUDA without a wheel here", "Install the wheel of torch's CUDA"},
	{"plugin-dir", "software", "NIXL_PLUGIN_DIR, and each plugin in it", "The folder lacks GORAIL, has broken links, or belongs to another wheel than package nixl takes", "`gorail plugins --dir DIR`"},
	{"libfabric", "software", "libfabric: path, version, providers", "It is missing or too old, and an EFA or CXI device or option `provider` needs it", "Install libfabric, or name it in `libfabric_path`"},
	{"rdma-core", "software", "libibverbs and its version", "It is missing, and an InfiniBand or RoCE device needs it", "Install rdma-core's libraries, or name it in `ibverbs_path`"},
	{"cuda", "software", "The GPU driver's library and kernel module", never, "Give the container its GPUs, or install the driver"},

	{"rdma-nodes", "devices", "RDMA devices in sysfs beside /dev/infiniband", "The kernel has devices that this process cannot open", "`--device /dev/infiniband`, or a device plugin"},
	{"cxi-nodes", "devices", "Slingshot devices in sysfs beside /dev/cxi*", "The kernel has devices that this process cannot open", "Give the container /dev/cxi*"},
	{"gpu-nodes", "devices", "NVIDIA GPUs on the PCI bus beside /dev/nvidia*", never, "`--gpus all`, or NVIDIA's container runtime"},
	{"nvlink-fabric", "devices", "NVLink between hosts: what NVML says of each GPU (state, cluster UUID, clique). Other machines have no such line, nor the next two", never, "The fabric manager of the rack; a GPU reset"},
	{"imex-channel", "devices", "The IMEX channels in `imex_channels`", never, "A ComputeDomain, or `--device`"},
	{"imex-domain", "devices", "Makes 2 MiB with a fabric handle on each of those GPUs, and exports it: the IMEX daemon and its domain", never, "As the text says, by the driver's answer: 101, 800 or 801"},
	{"ports", "devices", "Each RDMA port: state, speed, MTU, GID, firmware", "A port is down while at least half of its kind is up, or option `devices` names it", "Check cable, switch and subnet manager, or leave the device out with `devices`"},
	{"gid", "devices", "The GID that the plugin takes on RoCE, and why", "The port has no RoCE v2 GID", "Give its interface an IP address, or set `gid_index`"},

	{"link-speed", "links", "Lanes of InfiniBand links, and speeds of ports and interfaces beside their equals", "A link came up with fewer lanes than its cable has", "Seat or change the cable"},
	{"pcie", "links", "PCIe width and generation beside the speed of the port", "The PCIe link is slower than the port, and slower than the card can", "Seat the card, or move it to another slot"},

	{"memlock", "memory", "RLIMIT_MEMLOCK beside RDMA devices, which pin memory", "The limit is below 64 MiB, and an RDMA device is here", "`ulimit -l unlimited`; see [below](#memlock)"},
	{"nofile", "memory", "RLIMIT_NOFILE: each peer takes several descriptors", "The limit is below 256", "`ulimit -n 1048576`"},
	{"gpu-direct", "memory", "How RDMA devices reach GPU memory: dmabuf, nvidia_peermem", never, "Use the open kernel modules of the driver, or load nvidia_peermem"},

	{"yama", "processes", "Yama's ptrace_scope, by a try with a second process", "Yama forbids every way of shared memory; a WARN: peers take the ring", "`GORAIL_PTRACER=on`, or `sysctl kernel.yama.ptrace_scope=0`"},
	{"seccomp", "processes", "The seccomp filter, by the same try", "The filter forbids every way of shared memory; a WARN: it forbids process_vm_readv, and peers take the ring", "A profile that allows process_vm_readv, process_vm_writev and pidfd_open"},
	{"process-vm", "processes", "A second process reads this one's memory with the code of the rail `sm`", "Something else forbids it; the text has the cause", "As the text says"},
	{"local-dir", "processes", "The folder of `local_dir`, where pods of one node meet: makes a socket there", "`local_dir` names a folder that is missing, open to others, or not ours to write", "A folder of the host in all its containers: [kubernetes.md](kubernetes.md)"},
	{"stats-socket", "processes", "The folder of `stats_socket`, where `gorail top`, `stats` and `metrics` find engines: makes a socket there", never, "`mkdir` or `chmod`, as the text says: [stats.md](stats.md)"},

	{"devices-option", "rails", "Patterns of option `devices` beside the devices", "A name, or the only glob, matches no device", "Write one of the names in the text"},
	{"rails", "rails", "The devices that an engine takes, and why not the others", "No device can be a rail", "As the text says"},
	{"rails-waiting", "rails", "Devices that would be rails but are down", "A device with an address, or one that `devices` names, is down", "Bring the link up, or leave the device out with `devices`"},
	{"engine", "rails", "Creates an engine as createBackend does, and closes it", "createBackend fails with this error", "As the text says"},
	{"nixl", "rails", "A NIXL agent of the wheel loads the plugin and creates the backend", "The agent of this machine cannot use GORAIL", "As the text says"},

	{"peer-address", "peer", "The name or address after `--peer`", "The name has no address", "Correct the name, DNS or /etc/hosts"},
	{"peer-connect", "peer", "A connection to `gorail doctor --listen` at the peer", "Refused or filtered; the text has address and port", "Start `gorail doctor --listen` there, or open the port"},
	{"peer-version", "peer", "Versions of GORAIL, its protocol and NIXL on both sides", "The protocol versions differ", "Install one release on both sides"},
	{"peer-names", "peer", "Backend names that GORAIL answers to on both sides", "A name is GORAIL on one side and another backend on the other", "Run `gorail plugins` with the same `--as` on both sides"},
	{"peer-clock", "peer", "The clocks of both sides", "They differ by more than 60 s: certificates may be refused", "Run chrony or systemd-timesyncd"},
	{"peer-host", "peer", "Shared memory in both directions, if both sides are on one host", "There is no way: another user, or another network namespace without a common folder", "One user and one folder, as the text says"},
	{"peer-control", "peer", "A port of `control_port`, from both sides, at each address", "A firewall or route drops or refuses it; the text has address and port", "Open the port; set `control_port` to a range that is open"},
	{"peer-data", "peer", "A port of `data_port`, from both sides, at each address", "As above", "Open the port; set `data_port` to a range that is open"},
	{"peer-mtu", "peer", "The path MTU, and 256 KiB over the path", "Large packets are lost on the path", "Set one MTU on the whole path, or let ICMP pass"},
	{"peer-transfer", "peer", "One WRITE and one READ for each pair of rails, bytes compared, in GB/s", "A transfer failed, or its bytes are wrong", "As the text says"},
}
