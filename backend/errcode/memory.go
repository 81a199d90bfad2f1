package errcode

// Codes of memory.
var (
	MemoryKind = row(1020, ErrInvalidParam, Code{
		Meaning: "A memory type that GORAIL does not move",
		Cause:   "The application registers BLK, OBJ or FILE memory with this backend.",
		Look:    "The type in the message, and the backends in the agent's call.",
		Remedy:  "Register such memory with a storage backend. GORAIL moves DRAM and VRAM.",
		Test:    "backend/engine TestCodesOfMemory"})
	BadRange = row(1021, ErrInvalidParam, Code{
		Meaning: "A range that cannot be memory",
		Cause:   "The range starts at address 0, or runs past the end of the address space.",
		Look:    "The address and the length in the message.",
		Remedy:  "Check that the buffer was allocated before its registration.",
		Test:    "backend/engine TestCodesOfMemory"})
	BadMetaInfo = row(1022, ErrInvalidParam, Code{
		Meaning: "The metaInfo of a registration cannot be used",
		Cause:   "Its text is not an access that GORAIL knows.",
		Look:    "The text in the message.",
		Remedy:  "Write `remote_access=read`, `remote_access=write` or `remote_access=both`.",
		Test:    "backend/engine TestCodesOfMemory"})
	AccessConflict = row(1023, ErrNotAllowed, Code{
		Meaning: "The same range is registered with another access",
		Cause:   "A range has one access. It is registered twice with different texts in metaInfo.",
		Look:    "Both accesses in the message.",
		Remedy:  "Deregister the range first, or register it with the same access.",
		Test:    "backend/engine TestCodesOfMemory"})
	TooManySlices = row(1024, ErrInvalidParam, Code{
		Meaning: "A registration has too many slices",
		Cause:   "Option `mr_max`, or the fabric's largest registration, is small for this range.",
		Look:    "The length in the message, and `mr_max`.",
		Remedy:  "Raise `mr_max`, or register the range in pieces.",
		Test:    "backend/engine TestCodesOfMemory"})
	NoRegionEntry = row(1025, ErrBackend, Code{
		Meaning: "No memory for the table of regions",
		Cause:   "The system refused memory, or the table is full.",
		Look:    "The number of registrations, `ulimit -v`, and the memory limit of the cgroup.",
		Remedy:  "Register fewer and larger ranges, or raise the limit.",
		Test:    "backend/engine TestFailpointsCodes"})
	NotGPUMemory = row(1026, ErrInvalidParam, Code{
		Meaning: "The range is not memory of that GPU",
		Cause:   "The address belongs to host memory or to another GPU, or there is no such GPU.",
		Look:    "The GPU's number in the message, and CUDA_VISIBLE_DEVICES.",
		Remedy:  "Pass the device id of the allocation. Register host memory as DRAM.",
		Test:    "backend/engine TestCodesOfMemory"})
	NoGPUDriver = row(1027, ErrNotSupported, Code{
		Meaning: "VRAM cannot be registered: there is no GPU driver",
		Cause:   "The library of option `cuda_path` is missing, or it finds no GPU.",
		Look:    "`nvidia-smi`, and the reason in the message.",
		Remedy:  "Install the driver, or correct `cuda_path`. In a container, pass the GPU in.",
		Test:    "backend/engine TestCodesOfMemory"})
	GPURefused = row(1028, ErrBackend, Code{
		Meaning: "The GPU driver refused a registration",
		Cause:   "The driver returned an error for this memory.",
		Look:    "The driver's error in the message, and `dmesg`.",
		Remedy:  "Allocate the memory by cudaMalloc or by the VMM calls. [gpu.md](gpu.md) lists what can be registered.",
		Test:    "backend/engine TestCodesOfMemory"})
	UnknownRegion = row(1029, ErrNotFound, Code{
		Meaning: "The region is not registered",
		Cause:   "The memory was deregistered before, or belongs to another agent.",
		Look:    "The order of registerMem and deregisterMem in the application.",
		Remedy:  "Deregister each registration once.",
		Test:    "backend/engine TestCodesOfMemory"})
	NotDeregistered = row(1030, ErrBackend, Code{
		Meaning: "A deregistration could not end all use of the memory",
		Cause:   "A rail did not close its registration, or a GPU copy did not end within `cancel_timeout`.",
		Look:    "The rail and its error in the message.",
		Remedy:  "Do not free the memory: a device may still access it. Restart the process.",
		Test:    "backend/engine TestCodesOfMemory"})
)
