package shm

import (
	"gorail/backend/gpu"
	"gorail/backend/provider/shm/cma"
)

// Name is the name of the provider, of its only fabric and of its only device.
const Name = "sm"

// AutoDir as Options.LocalDir stands for DefaultDir, if that folder is there. NoDir stands for none.
const (
	AutoDir    = "auto"
	NoDir      = "off"
	DefaultDir = "/run/gorail"
)

// Options configure a Provider.
type Options struct {
	Threads  int     // copying threads, besides the polling threads; < 0: a quarter of this process's processors
	CUDA     string  // library of the GPU driver, as dlopen takes the name
	Copies   gpu.How // copies between GPUs
	Rings    bool    // reach peers through their rings, as if the kernel forbade access to their memory
	RingSize uint64  // bytes of the ring that a peer gets if it needs one; 0: the default. Rounded up to a multiple of cma.RingUnit
	NoAssist bool    // polling threads copy nothing for peers
	LocalDir string  // folder with sockets for peers of other network namespaces; AutoDir: DefaultDir if it is usable; "" and NoDir: none
	AnyUser  bool    // processes of other users that show the token may be peers
	// PR_SET_PTRACER_ANY: every process of this user may access this process's memory, also where Yama would forbid
	// the access
	Ptracer bool
}

// defaultRing stays in the cache of a core (bare ring, two cores: chunks of 256 KiB give 14 GB/s at 64 MiB, of 1 MiB 3.8).
const defaultRing = 2 << 20

func (o *Options) ring() uint64 {
	size := o.RingSize
	if size == 0 {
		size = defaultRing
	}
	return (size + cma.RingUnit - 1) / cma.RingUnit * cma.RingUnit
}
