// Package shm moves memory between processes of one host, and within one: a single copy by the processor, without sockets.
//
// The kernel lets a process read and write another's memory (process_vm_readv, process_vm_writev) where it would let it be
// debugged. Whether it does is tried before such a rail is used for a peer: Rail.Reach. What copies, posts and polls is package cma below, in C;
// which process a peer is, and how endpoints connect, packages ipc and handshake.
package shm

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"gorail/backend/provider"
	"gorail/backend/provider/shm/cma"
)

// Provider implements provider.Provider. Its methods are safe for concurrent use.
type Provider struct{ opt Options }

var _ provider.Provider = (*Provider)(nil)

// New makes a Provider.
func New(o Options) *Provider {
	if o.Threads < 0 {
		o.Threads = defaultThreads(runtime.GOMAXPROCS(0))
	}
	o.Threads = min(o.Threads, cma.MaxThreads)
	return &Provider{o}
}

// defaultThreads leaves most processors to the application. GOMAXPROCS counts those that this process may use, by its affinity mask and
// by the quota of its cgroup.
func defaultThreads(cpus int) int { return max(1, min(4, cpus/4)) }

// Name implements provider.Provider.
func (p *Provider) Name() string { return Name }

// Discover implements provider.Provider: the one device. What a peer must share are boot and pid namespace.
func (p *Provider) Discover(context.Context, provider.Filter) ([]provider.Device, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("%w: %s: boot id: %w", provider.ErrUnusable, Name, err)
	}
	pids, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return nil, fmt.Errorf("%w: %s: pid namespace: %w (is /proc mounted?)", provider.ErrUnusable, Name, err)
	}
	return []provider.Device{{Provider: Name, Fabric: Name, Name: "memory", Subnet: strings.TrimSpace(string(boot)) + " " + pids,
		Addr: "127.0.0.1", Loopback: true, Host: true, NUMA: -1}}, nil
}

// Open implements provider.Provider. The error wraps provider.ErrUnusable.
func (p *Provider) Open(d provider.Device) (provider.Rail, error) {
	if p.opt.Ptracer {
		const setPtracer, anyProcess = 0x59616d61, ^uintptr(0) // PR_SET_PTRACER, PR_SET_PTRACER_ANY; EINVAL without Yama
		if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, setPtracer, anyProcess, 0); errno != 0 && errno != syscall.EINVAL {
			return nil, fmt.Errorf("%w: %s: option ptracer: prctl(PR_SET_PTRACER): %w", provider.ErrUnusable, Name, errno)
		}
	}
	r, err := openRail(d, p.opt)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", provider.ErrUnusable, Name, err)
	}
	return r, nil
}
