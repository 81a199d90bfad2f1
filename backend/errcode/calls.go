package errcode

// Codes of any call, and of making an agent.
var (
	Unclassified = row(1001, ErrBackend, Code{
		Meaning: "An error without a code of its own",
		Cause:   "A layer below returned an error that GORAIL does not classify: often the operating system or a driver.",
		Look:    "The message of the line. It names the call, and the device where there is one.",
		Remedy:  "Report the line as a bug: each error should have a code.",
		Test:    "plugin TestCodesOfCalls"})
	Panic = row(1002, ErrBackend, Code{
		Meaning: "A panic in the plugin",
		Cause:   "A bug in GORAIL. The call failed, and the process goes on.",
		Look:    "The attribute `stack` of the line `panic in the plugin`.",
		Remedy:  "Report the stack. Restart the process: locks of the failed call may still be held.",
		Test:    "plugin TestCodesOfCalls"})
	BadHandle = row(1003, ErrInvalidParam, Code{
		Meaning: "The engine's handle is not alive",
		Cause:   "The application uses a backend that was destroyed.",
		Look:    "The attribute `call`, and where the application destroys its agent.",
		Remedy:  "End all uses of an agent before you destroy the agent.",
		Test:    "plugin TestCodesOfCalls"})
	BadOption = row(1004, ErrInvalidParam, Code{
		Meaning: "An option has a bad name or value",
		Cause:   "A parameter of createBackend or a variable GORAIL_* is unknown, out of its range, or contradicts another option.",
		Look:    "The message. It names the option, the source of the value, and what is allowed.",
		Remedy:  "Correct the option. [options.md](options.md) lists all options.",
		Test:    "plugin TestCodesOfCalls"})
	LogFileUnusable = row(1005, ErrInvalidParam, Code{
		Meaning: "The file of option log_file cannot be opened",
		Cause:   "Its folder is missing or not writable, or a symbolic link of another user is on the way.",
		Look:    "The path in the message, and the rights of its folder.",
		Remedy:  "Make the folder, or name another file in `log_file`.",
		Test:    "plugin TestCodesOfCalls"})
	HostUnsupported = row(1006, ErrNotFound, Code{
		Meaning: "This release of NIXL is not supported",
		Cause:   "The NIXL of the process has backend functions that this GORAIL does not know. NIXL gets no backend.",
		Look:    "The message. It names both releases and the function that differs.",
		Remedy:  "Use a listed release of NIXL, or a GORAIL release that supports yours.",
		Test:    "plugin TestCodesOfCalls"})
	HostMismatch = row(1082, ErrBackend, Code{
		Meaning: "NIXL calls the backend unlike a supported release",
		Cause:   "The NIXL of the process has other backend functions, or the members of its engines elsewhere, and its own plugins did not show that. createBackend fails.",
		Look:    "The message. It names NIXL's library, the supported releases, and the plugin that NIXL was compared with.",
		Remedy:  "Use a listed release of NIXL, or a GORAIL release that supports yours.",
		Test:    "test/abi TestHosts"})
	ForkedChild = row(1007, ErrBackend, Code{
		Meaning: "A call in a child of fork()",
		Cause:   "GORAIL was loaded before the fork. Locks and threads of Go do not survive a fork, and its log neither.",
		Look:    "The line on standard error: the first refused call of each child writes one, also with `log_file`. Python's multiprocessing forks by default.",
		Remedy:  "Start children by `spawn`. Or load GORAIL, and make the agent, only after the fork.",
		Test:    "test/python TestFork"})

	NoRoom = row(1081, ErrBackend, Code{
		Meaning: "The process has no room for the plugin's threads or addresses, or may not make a system call that Go needs",
		Cause:   "A limit of processes (RLIMIT_NPROC, pids.max of the cgroup) or of addresses (RLIMIT_AS). The plugin takes its threads when it is loaded: a lack of them later would end the process. Or a filter (seccomp) refuses eventfd2, epoll_create1, epoll_ctl, epoll_pwait, getrandom or sigaltstack: Go's runtime would end the process.",
		Look:    "The limit or the call in the message. If the plugin lacked it while it was loaded, the line is on standard error, also with `log_file`.",
		Remedy:  "Raise the limit or allow the call, and start the process again. [host.md](host.md) has the numbers.",
		Test:    "test/guest TestNoRoom"})

	NoMemoryInCall = row(1066, ErrBackend, Code{
		Meaning: "An allocation of a call failed",
		Cause:   "The process is at its limit of memory. The call has had no effect, but notifications that `getNotifs` had taken are lost.",
		Look:    "`ulimit -v`, the memory limit of the cgroup, and the size of the process.",
		Remedy:  "Raise the limit, or make the process smaller. The call can be repeated.",
		Test:    "plugin TestCodesOfShim"})
	NoHandle = row(1067, ErrInvalidParam, Code{
		Meaning: "A call without a transfer's handle",
		Cause:   "The application posts or checks a transfer that was not prepared.",
		Look:    "The attribute `call`, and where the application prepares the transfer.",
		Remedy:  "Prepare the transfer, and check the status of that call.",
		Test:    "plugin TestCodesOfShim"})
	NoMemoryView = row(1068, ErrNotSupported, Code{
		Meaning: "Memory views for GPU kernels are not supported",
		Cause:   "The application calls prepMemView: its GPU kernels would start transfers.",
		Look:    "Where the application uses NIXL's device API.",
		Remedy:  "Use transfers of the host's API, or another backend for the device API.",
		Test:    "plugin TestCodesOfShim"})
	BlobTooLarge = row(1008, ErrBackend, Code{
		Meaning: "The engine's own metadata cannot be encoded",
		Cause:   "The agent's name is longer than metadata can carry, or there are too many rails.",
		Look:    "The message: it names the field and its bound.",
		Remedy:  "Shorten the agent's name, or use fewer devices.",
		Test:    "backend/engine TestCodesOfStart"})
	StatsFileUnusable = row(1009, ErrInvalidParam, Code{
		Meaning: "The file of option stats_file cannot be written",
		Cause:   "Its folder is missing or not writable, or a symbolic link of another user is on the way.",
		Look:    "The path in the message, and the rights of its folder.",
		Remedy:  "Make the folder, or name another file in `stats_file`.",
		Test:    "backend/engine TestCodesOfStart"})
	EngineClosed = row(1010, ErrBackend, Code{
		Meaning: "The engine is closed or closing",
		Cause:   "A call came while the application destroys the agent, or later.",
		Look:    "The threads that still use the agent.",
		Remedy:  "End all uses of an agent before you destroy the agent.",
		Test:    "backend/engine TestCodesOfStart"})
	NoDescriptors = row(1011, ErrBackend, Code{
		Meaning: "The process has too few file descriptors left",
		Cause:   "The limit of open files (RLIMIT_NOFILE) is nearly reached.",
		Look:    "`ulimit -n`, and `ls /proc/PID/fd | wc -l`.",
		Remedy:  "Raise the limit with `ulimit -n`, or LimitNOFILE of the service.",
		Test:    "backend/engine TestCodesOfDescriptors"})
	DiscoverFailed = row(1012, ErrBackend, Code{
		Meaning: "No fabric could list its devices",
		Cause:   "No fabric of option `provider` has a usable device or library here.",
		Look:    "The reasons in the message. `ibv_devinfo` and `fi_info` show what their libraries find.",
		Remedy:  "Install the library, bring a device up, or change `provider` and `devices`.",
		Test:    "backend/engine TestCodesOfStart"})
	CannotEncrypt = row(1013, ErrBackend, Code{
		Meaning: "encryption=on, and a device cannot encrypt",
		Cause:   "The chosen devices include fabrics other than tcp. They would carry data in clear.",
		Look:    "The devices in the message.",
		Remedy:  "Write `provider=tcp,sm`. Or write `rdma=trusted` if the network of these devices is trusted.",
		Test:    "backend/engine TestCodesOfStart"})
	CoreNotMade = row(1014, ErrBackend, Code{
		Meaning: "The core could not be made",
		Cause:   "The system refused memory, a thread or a descriptor.",
		Look:    "`ulimit -a`, the memory limit and pids.max of the cgroup.",
		Remedy:  "Raise the limit that the message names.",
		Test:    "backend/engine TestFailpointsCodes"})
	RailNotMade = row(1015, ErrBackend, Code{
		Meaning: "A device opened, but no rail could be made of it",
		Cause:   "The system refused memory or a thread, or there are more rails than the core takes.",
		Look:    "The device in the message, `ulimit -a`, and option `max_rails`.",
		Remedy:  "Raise the limit, or use fewer devices by option `devices`.",
		Test:    "backend/engine TestFailpointsCodes"})
	NoRail = row(1016, ErrBackend, Code{
		Meaning: "No rail could be opened",
		Cause:   "Each device is left out by an option, is down, or did not open.",
		Look:    "The reasons in the message, and the lines GR-2001 before it.",
		Remedy:  "Bring an interface up, or change `provider` and `devices`. `log=info` lists all devices and reasons.",
		Test:    "backend/engine TestCodesOfStart"})
	IdentityUnusable = row(1017, ErrBackend, Code{
		Meaning: "The engine's key, certificate or secret cannot be used",
		Cause:   "A file of `tls_ca`, `tls_cert`, `tls_key` or `secret_file` is missing, unreadable, expired or malformed.",
		Look:    "The file in the message. `openssl x509 -in FILE -text` shows a certificate.",
		Remedy:  "Renew or correct the file. [security.md](security.md) describes each.",
		Test:    "backend/engine TestCodesOfStart"})
	NoControlAddress = row(1018, ErrBackend, Code{
		Meaning: "No interface for control connections",
		Cause:   "Option `control_devices` matches no interface that has an address.",
		Look:    "`ip address`, and the option's value in the message.",
		Remedy:  "Correct `control_devices`, or leave it empty.",
		Test:    "backend/engine TestCodesOfStart"})
	NoControlPort = row(1019, ErrBackend, Code{
		Meaning: "The engine cannot listen for control connections",
		Cause:   "All ports of option `control_port` are in use, or this process may not listen on them.",
		Look:    "`ss -ltnp`, and the address in the message.",
		Remedy:  "Give a longer range: each engine of a host takes one port.",
		Test:    "backend/engine TestCodesOfStart"})
)
