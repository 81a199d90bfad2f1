package mover

import (
	"gorail/nixlapi"
	"gorail/test/hostmem"
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

// hostPlace is shared memory of the host.
type hostPlace struct{ *hostmem.Fixed }

func newHostPlace(number int, size uint64) (*hostPlace, error) {
	m, err := hostmem.NewFixed(number, size)
	return &hostPlace{m}, err
}

func (p *hostPlace) desc() nixlapi.Desc         { return nixlapi.Desc{Addr: uint64(p.At), Len: p.Size} }
func (p *hostPlace) mem() nixlapi.Mem           { return nixlapi.DRAM }
func (p *hostPlace) remap(int) error            { return p.Map() }
func (p *hostPlace) write(off uint64, b []byte) { copy(p.Bytes()[off:], b) }
func (p *hostPlace) read(off, n uint64) []byte  { return p.Bytes()[off : off+n] }
func (p *hostPlace) files() []uint64            { return []uint64{p.Inode} }
func (p *hostPlace) close()                     { p.unmap() }
func (p *hostPlace) unmap() {
	if err := p.Unmap(); err != nil {
		panic(err)
	}
}
