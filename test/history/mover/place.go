package mover

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// kind is a kind of memory of which each agent has a piece.
type kind struct {
	name   string
	gpu    *worker.GPUMem // nil: shared memory of the host
	steady bool           // it does not change
}

// kinds are the pieces of each agent. Each device is the agent's own plus the one here.
var kinds = []kind{
	{name: "VMM", gpu: &worker.GPUMem{Handles: 2}},
	{name: "cudaMalloc", gpu: &worker.GPUMem{Device: 1}},
	{name: "shared memory"},
	{name: "steady VMM", gpu: &worker.GPUMem{Device: 1, Handles: 1}, steady: true},
	{name: "steady shared memory", steady: true},
}

// place is memory at addresses that stay.
type place interface {
	desc() nixlapi.Desc // all of it
	mem() nixlapi.Mem
	unmap()
	// remap puts other memory there, in that many handles if it has handles. It fails if the addresses are lost.
	remap(handles int) error
	write(off uint64, b []byte)
	read(off, n uint64) []byte
	files() []uint64 // that are the memory; none: of a real GPU
	close()          // it is mapped
}

// gpuPlace is memory of a GPU.
type gpuPlace struct {
	worker.GPU
	m        worker.GPUMem
	at, size uint64
}

func newGPUPlace(gpu worker.GPU, m worker.GPUMem, size uint64) *gpuPlace {
	return &gpuPlace{GPU: gpu, m: m, at: gpu.Alloc(m, size), size: size}
}

func (p *gpuPlace) desc() nixlapi.Desc {
	return nixlapi.Desc{Addr: p.at, Len: p.size, Dev: uint64(p.m.Device)}
}
func (p *gpuPlace) mem() nixlapi.Mem { return nixlapi.VRAM }
func (p *gpuPlace) unmap()           { p.Unmap(p.m, p.size, p.at) }
func (p *gpuPlace) remap(handles int) error {
	if p.m.Handles > 0 {
		p.m.Handles = handles
	}
	return p.Map(p.m, p.size, p.at)
}
func (p *gpuPlace) write(off uint64, b []byte) { p.Write(p.m.Device, p.at+off, b) }
func (p *gpuPlace) read(off, n uint64) []byte  { return p.Read(p.m.Device, p.at+off, n) }
func (p *gpuPlace) files() []uint64            { return p.Behind(p.at, p.size) }
func (p *gpuPlace) close()                     { p.Free(p.m, p.size, p.at) }

// hostPlace is shared memory far from where the kernel chooses addresses: what it unmaps stays free.
type hostPlace struct {
	at   uintptr
	size uint64
}

const (
	hostBase = uintptr(0x2000_0000_0000)
	hostStep = uintptr(1) << 34
)

func newHostPlace(number int, size uint64) (*hostPlace, error) {
	p := &hostPlace{at: hostBase + hostStep*uintptr(number), size: size}
	return p, p.remap(0)
}

func (p *hostPlace) bytes() []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p.at))), p.size)
}
func (p *hostPlace) desc() nixlapi.Desc { return nixlapi.Desc{Addr: uint64(p.at), Len: p.size} }
func (p *hostPlace) mem() nixlapi.Mem   { return nixlapi.DRAM }
func (p *hostPlace) unmap() {
	if _, _, e := unix.Syscall(unix.SYS_MUNMAP, p.at, uintptr(p.size), 0); e != 0 {
		panic(e)
	}
}

func (p *hostPlace) remap(int) error {
	fd, err := unix.MemfdCreate("piece", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(p.size)); err != nil {
		return err
	}
	_, _, e := unix.Syscall6(unix.SYS_MMAP, p.at, uintptr(p.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED_NOREPLACE, uintptr(fd), 0)
	if e != 0 {
		return fmt.Errorf("mmap at %#x: %w", p.at, e)
	}
	return nil
}
func (p *hostPlace) write(off uint64, b []byte) { copy(p.bytes()[off:], b) }
func (p *hostPlace) read(off, n uint64) []byte  { return p.bytes()[off : off+n] }
func (p *hostPlace) close()                     { p.unmap() }

func (p *hostPlace) files() []uint64 {
	inode, err := inodeAt(p.at)
	if err != nil {
		panic(err)
	}
	return []uint64{inode}
}

// inodeAt is the file that is mapped at an address.
func inodeAt(at uintptr) (inode uint64, err error) {
	maps, err := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		var flags, offset, dev string
		if n, _ := fmt.Sscanf(line, "%x-%x %s %s %s %d", &from, &to, &flags, &offset, &dev, &inode); n == 6 && from <= at && at < to {
			return inode, nil
		}
	}
	return 0, fmt.Errorf("nothing is mapped at %#x (%w)", at, err)
}
