package option

// TCP sets the sockets of data connections of our own TCP rail.
type TCP struct {
	TCPCongestion string // "": the system's
	Compression   string // "off", "auto" or "on"
}

// MaxThreads is the most progress threads of an engine: GR_MAX_WORKERS.
const MaxThreads = 8
