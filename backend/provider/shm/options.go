package shm

// Name is the name of the provider, of its only fabric and of its only device.
const Name = "sm"

// Options configure a Provider.
type Options struct {
	Threads  int    // copying threads, besides the polling threads; < 0: a quarter of this process's processors
	CUDA     string // library of the GPU driver, as dlopen takes the name
	Blocks   int    // blocks of 256 threads that a copy between GPUs may use; 0: the driver's default
	NoAssist bool   // polling threads copy nothing for peers
	// PR_SET_PTRACER_ANY: every process of this user may access this process's memory, also where Yama would forbid
	// the access
	Ptracer bool
}
