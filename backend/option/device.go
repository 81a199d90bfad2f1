package option

// IB has the attributes of queue pairs, in InfiniBand's own units.
type IB struct {
	GIDIndex     int // -1: the best
	ServiceLevel int
	TrafficClass int
	PKeyIndex    int
	Timeout      int // 4.096 us times 2 to the power of Timeout
	RetryCount   int
}

// PortRange is the ports First..Last, both included. Zero: the system chooses.
type PortRange struct{ First, Last uint16 }

// CXIKey is the authorization key of a CXI device.
type CXIKey struct {
	Device  string // "": every device without a key of its own
	Service uint32
	VNI     uint16
}
