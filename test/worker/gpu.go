package worker

import (
	"errors"
	"unsafe"

	"gorail/nixlapi"
	"gorail/test/hostmem"
)

// GPU is an application's use of a GPU driver.
type GPU interface {
	Alloc(m GPUMem, size uint64) uint64
	Free(m GPUMem, size, at uint64)
	Write(device int, at uint64, b []byte)
	Read(device int, at, size uint64) []byte
	// Unmap takes the memory away, and Map puts other memory of that form there. VMM keeps its addresses; else Unmap
	// frees. Map fails if the driver gives another address.
	Unmap(m GPUMem, size, at uint64)
	Map(m GPUMem, size, at uint64) error
	// Protect lets GPUs only read VMM memory.
	Protect(m GPUMem, size, at uint64)
	// Behind returns the files that are the memory in a range; none for the real driver.
	Behind(at, size uint64) []uint64
	// Switch sets a switch of the driver. Fail makes the n-th call from now fail with that result. Count reads a
	// counter. "*" means any call. Only for an imitated driver.
	Switch(name string, value int)
	Fail(call string, nth, result int)
	Count(name string) int
	// State ends the use. It returns the open objects and the misuses.
	State() (open, wrong string)
}

// NewGPU creates a worker's GPU. Programs with GPU tests set it before MaybeRun.
var NewGPU func() GPU

// GPUStateOut is the reply of GPUState.
type GPUStateOut struct{ Open, Wrong string }

// GPUControlArgs selects the action of GPUControl: "switch", "fail", "count" or "behind".
type GPUControlArgs struct {
	Do, Name string
	A, B     int
}

// GPUControlOut is the reply of GPUControl.
type GPUControlOut struct {
	N     int
	Files []uint64
}

// RemapArgs says what becomes of the memory of a buffer: unmapped, or mapped anew with that many handles, on GPU Device-1 (0: as before),
// which may not write to it (ReadOnly).
type RemapArgs struct {
	ID, Handles, Device int
	ReadOnly            bool
}

// memory is a worker's allocation.
type memory interface {
	Addr() uint64
	Free() error
	size() uint64
	renew() error // other pages at the same addresses
	read(off, n uint64) []byte
	write(off uint64, b []byte)
}

// hostMem is memory of the host.
type hostMem struct {
	*nixlapi.Buffer
	kind hostmem.Kind
}

func (m hostMem) renew() error               { return hostmem.Renew(m.Buffer, m.kind) }
func (m hostMem) size() uint64               { return uint64(len(m.B)) }
func (m hostMem) read(off, n uint64) []byte  { return m.B[off : off+n] }
func (m hostMem) write(off uint64, b []byte) { copy(m.B[off:], b) }

// gpuMem is memory of a GPU.
type gpuMem struct {
	GPU
	m      GPUMem
	at, sz uint64
}

func (m *gpuMem) Addr() uint64 { return m.at }
func (m *gpuMem) Free() error  { m.GPU.Free(m.m, m.sz, m.at); return nil }
func (m *gpuMem) size() uint64 { return m.sz }
func (m *gpuMem) read(off, n uint64) []byte {
	if m.m.Host {
		return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(nil), m.at+off)), n)
	}
	return m.GPU.Read(m.m.Device, m.at+off, n)
}
func (m *gpuMem) write(off uint64, b []byte) {
	if m.m.Host {
		copy(m.read(off, uint64(len(b))), b)
		return
	}
	m.GPU.Write(m.m.Device, m.at+off, b)
}

// renew lets the driver give other memory the same addresses.
func (m *gpuMem) renew() error {
	m.Unmap(m.m, m.sz, m.at)
	return m.Map(m.m, m.sz, m.at)
}

// use starts the worker's use of GPUs. Call with mu held.
func (s *Server) use() error {
	if NewGPU == nil {
		return errors.New("this program has no GPUs")
	}
	if s.gpu == nil {
		s.gpu = NewGPU()
	}
	return nil
}

// alloc allocates memory. Call with mu held.
func (s *Server) alloc(in AllocArgs) (memory, error) {
	if in.Odd != 0 {
		return newOdd(in)
	}
	if in.GPU == nil {
		b, err := hostmem.Alloc(int(in.Size), in.Kind)
		return hostMem{b, in.Kind}, err
	}
	if err := s.use(); err != nil {
		return nil, err
	}
	return &gpuMem{GPU: s.gpu, m: *in.GPU, at: s.gpu.Alloc(*in.GPU, in.Size), sz: in.Size}, nil
}

// GPUState ends the use of GPUs and returns the driver's state.
func (s *Server) GPUState(_ Ref, out *GPUStateOut) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gpu == nil && NewGPU != nil {
		s.gpu = NewGPU()
	}
	if s.gpu != nil {
		out.Open, out.Wrong = s.gpu.State()
		s.gpu = nil
	}
	return nil
}

// GPUControl controls the imitated driver.
func (s *Server) GPUControl(in GPUControlArgs, out *GPUControlOut) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.use(); err != nil {
		return err
	}
	switch in.Do {
	case "switch":
		s.gpu.Switch(in.Name, in.A)
	case "fail":
		s.gpu.Fail(in.Name, in.A, in.B)
	case "count":
		out.N = s.gpu.Count(in.Name)
	case "behind":
		out.Files = s.gpu.Behind(uint64(in.A), uint64(in.B))
	}
	return nil
}

// Remap changes what is behind the addresses of a buffer of GPU memory.
func (s *Server) Remap(in RemapArgs, _ *ErrOut) error {
	b, err := s.buf(in.ID)
	if err != nil {
		return err
	}
	m, ok := b.(*gpuMem)
	if !ok {
		return errors.New("no memory of a GPU")
	}
	if in.Handles == 0 {
		m.GPU.Unmap(m.m, m.sz, m.at)
		return nil
	}
	if m.m.Handles > 0 {
		m.m.Handles = in.Handles
	}
	if in.Device > 0 {
		m.m.Device = in.Device - 1
	}
	if err := m.GPU.Map(m.m, m.sz, m.at); err != nil || !in.ReadOnly {
		return err
	}
	m.GPU.Protect(m.m, m.sz, m.at)
	return nil
}
