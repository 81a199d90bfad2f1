package errcode

// Codes of transfers.
var (
	TransferTimedOut = row(1042, ErrBackend, Code{
		Meaning: "A transfer made no progress for xfer_timeout",
		Cause:   "The peer's process is stopped, its network is cut, or its device is stuck.",
		Look:    "The message: `check the MTU between` means that large packets are lost on the way. The lines `timeout report` after it: the peer, its addresses, the links and their packets. What the peer sees is in `peer answered`, field `means`.",
		Remedy:  "Repair the network or the peer, and post again. Raise `xfer_timeout` if the peer may be stopped for longer.",
		Test:    "backend/engine TestCodesOfTransfers"})
	UnknownTransfer = row(1043, ErrNotFound, Code{
		Meaning: "The transfer was released, or never existed",
		Cause:   "The application uses a handle after its release.",
		Look:    "The attribute `call`, and where the application releases the handle.",
		Remedy:  "Use a handle only between its preparation and its release.",
		Test:    "backend/engine TestCodesOfTransfers"})
	ListsDiffer = row(1044, ErrInvalidParam, Code{
		Meaning: "The two descriptor lists do not match",
		Cause:   "They differ in number, a pair differs in length, or they are empty.",
		Look:    "The numbers in the message.",
		Remedy:  "Give two lists of the same length, with the same lengths in pairs.",
		Test:    "backend/engine TestCodesOfTransfers"})
	BadOperation = row(1045, ErrInvalidParam, Code{
		Meaning: "An operation that is neither READ nor WRITE",
		Cause:   "The application passes another number.",
		Look:    "The number in the message.",
		Remedy:  "Pass NIXL_READ or NIXL_WRITE.",
		Test:    "backend/engine TestCodesOfTransfers"})
	LocalUnknown = row(1046, ErrNotFound, Code{
		Meaning: "Local memory of the transfer is not registered",
		Cause:   "The memory was deregistered, or was never registered with this agent.",
		Look:    "The descriptor's number and range in the message.",
		Remedy:  "Register the memory, and keep it registered until the transfer is released.",
		Test:    "backend/engine TestCodesOfTransfers"})
	LocalRefused = row(1047, ErrBackend, Code{
		Meaning: "No rail could register the local memory",
		Cause:   "Each device refused the registration. The usual reason is the limit of locked memory.",
		Look:    "The reason in the message, the lines GR-2002 before it, and `ulimit -l`.",
		Remedy:  "Raise RLIMIT_MEMLOCK, and register the memory again.",
		Test:    "backend/engine TestCodesOfTransfers"})
	RemoteUnknown = row(1048, ErrNotFound, Code{
		Meaning: "Metadata of the remote memory is not loaded, or is of another agent",
		Cause:   "The metadata was unloaded, or the descriptor names an agent that does not own the memory.",
		Look:    "The descriptor's number in the message.",
		Remedy:  "Load the peer's metadata again.",
		Test:    "backend/engine TestCodesOfTransfers"})
	OutOfRegion = row(1049, ErrInvalidParam, Code{
		Meaning: "A descriptor is not inside its registered range",
		Cause:   "Its address or its length is wrong.",
		Look:    "Both ranges in the message.",
		Remedy:  "Correct the descriptor, or register the larger range.",
		Test:    "backend/engine TestCodesOfTransfers"})
	PlanRefused = row(1050, ErrInvalidParam, Code{
		Meaning: "A transfer is larger than GORAIL can plan",
		Cause:   "Its number of operations, or of bytes, is above the bound in the message.",
		Look:    "The number of descriptors.",
		Remedy:  "Divide the transfer.",
		Test:    "backend/engine TestCodesOfTransfers"})
	NoTransferMemory = row(1051, ErrBackend, Code{
		Meaning: "No memory for a transfer",
		Cause:   "The system refused memory for the transfer's operations, or pinned memory for a GPU copy.",
		Look:    "`ulimit -v`, `ulimit -l`, the memory limit of the cgroup, and how many transfers are prepared.",
		Remedy:  "Release transfers that are no longer used, or raise the limit.",
		Test:    "backend/engine TestFailpointsCodes"})
	NoPath = row(1052, ErrNotSupported, Code{
		Meaning: "No rail, and no bounce buffer, moves this memory",
		Cause:   "No rail moves memory of the GPU, and staging is not possible for this pair.",
		Look:    "The lines `memory of GPUs is not registered on a rail` at `log=info`.",
		Remedy:  "See [gpu.md](gpu.md) for what each fabric moves, or use another backend.",
		Test:    "backend/staging TestNoPath"})
	StillPosted = row(1053, ErrRepostActive, Code{
		Meaning: "The transfer is still in flight",
		Cause:   "The application posts a transfer again before its end.",
		Look:    "Where the application waits for checkXfer.",
		Remedy:  "Post again when checkXfer has returned success or an error.",
		Test:    "backend/engine TestCodesOfTransfers"})
	AccessDenied = row(1054, ErrNotAllowed, Code{
		Meaning: "The peer does not allow this operation on its memory",
		Cause:   "The peer's option `remote_access`, or the registration's metaInfo, excludes it.",
		Look:    "The operation and the access in the message.",
		Remedy:  "Change `remote_access` at the peer, or register the memory with the access that is needed.",
		Test:    "backend/engine TestCodesOfTransfers"})
	ReadMayWrite = row(1055, ErrRepostActive, Code{
		Meaning: "A released READ may still write to local memory",
		Cause:   "Its operations are posted, and no endpoint can be closed to stop them.",
		Look:    "The peer's state: it is often stopped.",
		Remedy:  "Release the request again. The second release waits for `cancel_timeout` and is final.",
		Test:    "backend/engine TestCodesOfReleases"})
	NoCommonRail = row(1056, ErrBackend, Code{
		Meaning: "No rail in use has the memory of both sides",
		Cause:   "A registration failed on some rails at one side, and on the other rails at the other side.",
		Look:    "The rails in the message, and the lines GR-2002 of the side that lacks a rail.",
		Remedy:  "Remove the reason of the failed registration: often the limit of locked memory.",
		Test:    "backend/engine TestCodesOfTransfers"})
	RemoteGone = row(1057, ErrBackend, Code{
		Meaning: "The peer has deregistered its memory, or does not have it",
		Cause:   "The peer deregistered the memory before or during the transfer, or its metadata is old. No other live registration that was loaded covers it.",
		Look:    "The peer's order of deregistration and the end of transfers.",
		Remedy:  "Keep memory registered until peers no longer use it. Load new metadata.",
		Test:    "backend/engine TestCodesOfTransfers"})
	LocalGone = row(1058, ErrBackend, Code{
		Meaning: "Local memory of the transfer was deregistered",
		Cause:   "The application deregistered the memory while the transfer was in flight, and no other live registration has all of it.",
		Look:    "The order of deregisterMem and checkXfer in the application.",
		Remedy:  "Wait for the end of transfers before you deregister their memory.",
		Test:    "backend/engine TestCodesOfTransfers"})
	RailError = row(1059, ErrBackend, Code{
		Meaning: "An operation failed, and could not be sent again",
		Cause:   "A device or a library reported the error in the message.",
		Look:    "The error, the lines about the rail before it, and `dmesg`.",
		Remedy:  "Post again. If the error stays, take the device out by option `devices` and check it.",
		Test:    "backend/engine TestCodesOfRails"})
	Disconnected = row(1061, ErrBackend, Code{
		Meaning: "The application disconnected the peer during the transfer",
		Cause:   "The peer's metadata was invalidated or replaced while the transfer was in flight.",
		Look:    "The order of the application's calls.",
		Remedy:  "Wait for the end of transfers before you remove their peer.",
		Test:    "backend/engine TestCodesOfTransfers"})
	Released = row(1062, ErrCanceled, Code{
		Meaning: "The transfer was released before its end",
		Cause:   "The application released a transfer in flight.",
		Look:    "Where the application releases the handle.",
		Remedy:  "None is needed. Wait for checkXfer first if the data matters.",
		Test:    "backend/engine TestCodesOfReleases"})
	NoStagingRoom = row(1063, ErrNotSupported, Code{
		Meaning: "The peer has no room for bounce buffers now",
		Cause:   "The peer's option `staging_memory` is used up by its peers.",
		Look:    "The reason in the message, and `staged` in the peer's `stats_file`.",
		Remedy:  "Post again later, or raise `staging_memory` at the peer.",
		Test:    "backend/engine TestCodesOfStaging"})
	StagingFailed = row(1064, ErrBackend, Code{
		Meaning: "A copy through bounce buffers failed",
		Cause:   "The driver or the peer reported the error in the message.",
		Look:    "The error, and the peer's log.",
		Remedy:  "Post again. If the error stays, check the GPU by `nvidia-smi` and `dmesg`.",
		Test:    "backend/engine TestCodesOfStaging"})
	MemoryUnmapped = row(1069, ErrBackend, Code{
		Meaning: "Nothing is mapped at addresses of registered GPU memory",
		Cause:   "The application has unmapped the memory and keeps it registered: vLLM's sleep mode, SGLang's release of memory.",
		Look:    "The agent and the address in the message; whether that application sleeps.",
		Remedy:  "Transfer after the application has mapped memory there again. No new registration is needed.",
		Test:    "test/e2e TestRemappedAsleep"})
	MemoryAbsent = row(1076, ErrBackend, Code{
		Meaning: "Registered memory of a transfer is not there, or may not be accessed",
		Cause:   "The application has unmapped the memory, protected it or truncated its file, and keeps it registered.",
		Look:    "The ranges in the message, and `/proc/PID/maps` of their owners.",
		Remedy:  "Deregister memory before it is unmapped. Map it for writing if peers write there.",
		Test:    "test/e2e TestAbsentMemory"})
	StagingUnanswered = row(1065, ErrBackend, Code{
		Meaning: "The peer has not answered a staged transfer within xfer_timeout",
		Cause:   "The peer's process is stopped, or a copy on its GPU does not end. After an unanswered copy the session ends.",
		Look:    "The peer's process (`gorail top --once` there), its log, and its GPU by `nvidia-smi` and `dmesg`.",
		Remedy:  "Repair or restart the peer, and post again. Raise `xfer_timeout` if the peer may be stopped for longer.",
		Test:    "backend/engine TestCodesOfStaging"})
)

// Codes of notifications.
var (
	NotifTooLong = row(1071, ErrInvalidParam, Code{
		Meaning: "A notification is too long",
		Cause:   "Its length is above the bound in the message.",
		Look:    "The length in the message.",
		Remedy:  "Divide the notification, or send the data by a transfer.",
		Test:    "backend/engine TestCodesOfTransfers"})
	NotifQueueFull = row(1072, ErrBackend, Code{
		Meaning: "The queue of notifications to a peer is full",
		Cause:   "The peer takes no notifications, or not as fast as they are sent.",
		Look:    "Whether the peer's application calls getNotifs.",
		Remedy:  "Let the peer call getNotifs, or raise `notif_queue`.",
		Test:    "backend/engine TestCodesOfTransfers"})
	NotifRefused = row(1073, ErrBackend, Code{
		Meaning: "A notification could not be queued",
		Cause:   "The system refused memory, or the link has just ended.",
		Look:    "The error in the message.",
		Remedy:  "Send the notification again.",
		Test:    "backend/engine TestFailpointsCodes"})
)
