package shm

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"

	"gorail/backend/gpu"
	"gorail/backend/host"
	"gorail/backend/provider"
	"gorail/backend/provider/shm/cma"
)

// Options configure a Provider.
type Options struct {
	Threads  int     // copying threads, besides the polling threads; < 0: a quarter of this process's processors
	CUDA     string  // library of the GPU driver, as dlopen takes the name
	Copies   gpu.How // copies between GPUs
	Rings    bool    // reach peers through their rings, as if the kernel forbade access to their memory
	RingSize uint64  // bytes of the ring that a peer gets if it needs one; 0: the default. Rounded up to a multiple of cma.RingUnit
	NoAssist bool    // polling threads copy nothing for peers
	// GPU memory of peers is not mapped here, and no peer maps ours
	NoMapping bool
	LocalDir  string // folder with sockets for peers of other network namespaces; AutoDir: DefaultDir if it is usable; "" and NoDir: none
	AnyUser   bool   // processes of other users that show the token may be peers
	// PR_SET_PTRACER_ANY: every process of this user may access this process's memory, also where Yama would forbid
	// the access
	Ptracer bool
}

func (o *Options) ring() uint64 {
	size := o.RingSize
	if size == 0 {
		size = defaultRing
	}
	return (size + cma.RingUnit - 1) / cma.RingUnit * cma.RingUnit
}

// Provider implements provider.Provider. Its methods are safe for concurrent use.
type Provider struct{ opt Options }

var _ provider.Provider = (*Provider)(nil)

// New makes a Provider. It resolves the default of Options.Threads and limits the number to cma.MaxThreads.
func New(o Options) *Provider {
	if o.Threads < 0 {
		o.Threads = defaultThreads(host.Quota())
	}
	o.Threads = min(o.Threads, cma.MaxThreads)
	return &Provider{o}
}

// Name implements provider.Provider.
func (p *Provider) Name() string { return provider.SharedMemory }

// Discover implements provider.Provider: there is one device. Its subnet is the boot id; a peer must have the same.
func (p *Provider) Discover(context.Context, provider.Filter) ([]provider.Device, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("%w: %s: boot id: %w (is /proc mounted?)", provider.ErrUnusable, provider.SharedMemory, err)
	}
	return []provider.Device{{Provider: provider.SharedMemory, Fabric: provider.SharedMemory, Name: "memory", Subnet: strings.TrimSpace(string(boot)),
		Addr: "127.0.0.1", Loopback: true, Host: true, NUMA: -1}}, nil
}

// Open implements provider.Provider. The error wraps provider.ErrUnusable.
func (p *Provider) Open(d provider.Device) (provider.Rail, error) {
	if p.opt.Ptracer {
		const setPtracer, anyProcess = 0x59616d61, ^uintptr(0) // EINVAL: a kernel without Yama
		if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, setPtracer, anyProcess, 0); errno != 0 && errno != syscall.EINVAL {
			return nil, fmt.Errorf("%w: %s: option ptracer: prctl(PR_SET_PTRACER): %w", provider.ErrUnusable, provider.SharedMemory, errno)
		}
	}
	r, err := openRail(d, p.opt)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", provider.ErrUnusable, provider.SharedMemory, err)
	}
	r.answers() // opens /proc/self/maps, which takes the first registration 0.2 ms otherwise
	return r, nil
}

// defaultThreads is a quarter of the processors, at least 1 and at most 4. The application keeps the rest. GOMAXPROCS
// counts the processors of this process's affinity mask and cgroup quota.
func defaultThreads(cpus int) int { return max(1, min(4, cpus/4)) }

// AutoDir as Options.LocalDir stands for DefaultDir, if that folder is there. NoDir stands for none.
const (
	AutoDir    = "auto"
	NoDir      = "off"
	DefaultDir = "/run/gorail"
)

// defaultRing stays in the cache of a core (bare ring, two cores: chunks of 256 KiB give 14 GB/s at 64 MiB, of 1 MiB 3.8).
const defaultRing = 2 << 20
