// Package memory allocates what agents register: private pages, shared memory files, memory of GPUs. The bytes of all kinds are filled
// and compared on the host.
package memory

import (
	"fmt"

	"gorail/gorail/bench/cuda"
	"gorail/gorail/measure"
	"gorail/nixlapi"
)

// Memory is allocated memory. It is not safe for concurrent use. Free frees it, after it was deregistered.
type Memory struct {
	Kind nixlapi.Mem
	GPU  int             // its number; 0 for host memory
	Name string          // of the GPU
	host *nixlapi.Buffer // the memory, or the host's copy of a GPU's
	gpu  *cuda.Memory    // nil: host memory
}

// Alloc allocates memory of one of measure.Memories and touches every page. gpu is used by memory of GPUs only.
func Alloc(kind string, gpu int, size uint64) (*Memory, error) {
	m := &Memory{Kind: nixlapi.DRAM}
	var err error
	if measure.OnGPU(kind) || kind == arena {
		if err = m.device(kind, gpu, size); err != nil {
			return nil, err
		}
	}
	if kind == "memfd" {
		m.host, err = nixlapi.AllocShared(int(size))
	} else {
		m.host, err = nixlapi.Alloc(int(size))
	}
	if err != nil {
		_ = m.Free()
		return nil, err
	}
	if m.gpu == nil {
		for i := 0; i < len(m.host.B); i += 4096 {
			m.host.B[i] = 1
		}
	}
	return m, nil
}

func (m *Memory) device(kind string, id int, size uint64) error {
	d, err := cuda.Open()
	if err != nil {
		return err
	}
	g, err := d.GPU(id)
	if err != nil {
		return err
	}
	m.Kind, m.GPU, m.Name = nixlapi.VRAM, id, g.Name
	switch kind {
	case arena:
		m.gpu, err = g.AllocPieces(size, max(1, size/arenaHandles>>21<<21), cuda.Descriptor)
	case "vmm":
		m.gpu, err = g.AllocPieces(size, size, cuda.Descriptor)
	case "fabric":
		if m.gpu, err = g.AllocPieces(size, size, cuda.Fabric); err != nil {
			err = fmt.Errorf("memory with handles for NVLink between hosts wants an IMEX channel (gorail doctor): %w", err)
		}
	default:
		m.gpu, err = g.Alloc(size)
	}
	return err
}

const (
	arena        = "vmm-arena"
	arenaHandles = 1019 // at least, unless they had less than 2 MiB each
)

// Arena allocates memory of a kind: of GPUs VMM memory of 1,019 handles and more, as allocators of frameworks build it.
func Arena(kind string, gpu int, size uint64) (*Memory, error) {
	if measure.OnGPU(kind) {
		kind = arena
	}
	return Alloc(kind, gpu, size)
}

// Handles is the number of VMM handles.
func (m *Memory) Handles() int {
	if m.gpu == nil {
		return 0
	}
	return m.gpu.Handles()
}

// Hold makes the GPU's context current on this thread, as it is in applications, until release is called.
func (m *Memory) Hold() (release func()) {
	if m.gpu == nil {
		return func() {}
	}
	return m.gpu.Hold()
}

// Addr returns the address of the first byte, which for memory of GPUs the host cannot read.
func (m *Memory) Addr() uint64 {
	if m.gpu != nil {
		return m.gpu.Addr()
	}
	return m.host.Addr()
}

// Desc describes n bytes at offset off.
func (m *Memory) Desc(off, n uint64) nixlapi.Desc {
	return nixlapi.Desc{Addr: m.Addr() + off, Len: n, Dev: uint64(m.GPU)}
}

// Host returns the bytes on the host: the memory itself, or the host's copy of a GPU's memory. Pull and Push keep that copy.
func (m *Memory) Host() []byte { return m.host.B }

// Pull copies the first n bytes from the GPU. It does nothing for host memory.
func (m *Memory) Pull(n uint64) error {
	if m.gpu == nil || n == 0 {
		return nil
	}
	return m.gpu.Read(m.host.B[:n])
}

// Push copies the first n bytes to the GPU. It does nothing for host memory.
func (m *Memory) Push(n uint64) error {
	if m.gpu == nil || n == 0 {
		return nil
	}
	return m.gpu.Write(m.host.B[:n])
}

// Free frees the memory. A second call does nothing.
func (m *Memory) Free() (err error) {
	if m.gpu != nil {
		err = m.gpu.Free()
	}
	if m.host != nil {
		if e := m.host.Free(); err == nil {
			err = e
		}
	}
	return err
}
