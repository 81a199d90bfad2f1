package option

// TCP sets the sockets of data connections of our own TCP rail.
type TCP struct {
	TCPCongestion string // "": the system's
	TCPBusyPoll   int    // microseconds; 0: the system's
}
