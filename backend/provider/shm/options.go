package shm

// Name of the provider, of its only fabric and of its only device.
const Name = "sm"

// Options of a Provider.
type Options struct {
	Threads  int    // that copy, beside those who poll; < 0: by the processors that this process may use
	CUDA     string // the library of the GPUs' driver, as dlopen takes it
	Blocks   int    // of 256 threads that a copy between GPUs may take; 0: the driver's default
	NoAssist bool   // polls copy nothing for peers
	Ptracer  bool   // lets any process of the user's read and write this one's memory where Yama would not: PR_SET_PTRACER_ANY
}
