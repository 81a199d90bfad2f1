package worker

import (
	"os"
	"path/filepath"

	"gorail/nixlapi"
	"gorail/test/hostmem"
)

// Buf is memory in a worker.
type Buf struct {
	w    *Worker
	id   int
	Addr uint64
	Size uint64
	Mem  nixlapi.Mem
	Dev  uint64
}

// Alloc maps memory.
func (w *Worker) Alloc(size uint64, kind hostmem.Kind) *Buf {
	w.t.Helper()
	out := call[AllocOut](w, "Alloc", AllocArgs{Size: size, Kind: kind}, Deadline)
	return &Buf{w: w, id: out.ID, Addr: out.Addr, Size: size}
}

// AllocOdd maps memory of hostmem.Odds[kind], whose content is the pattern of the seed.
func (w *Worker) AllocOdd(kind int, size, seed uint64) *Buf {
	w.t.Helper()
	out := call[AllocOut](w, "Alloc", AllocArgs{Size: size, Odd: kind + 1, Seed: seed}, Deadline)
	return &Buf{w: w, id: out.ID, Addr: out.Addr, Size: size}
}

// Change does to memory of an odd kind what its kind says.
func (b *Buf) Change() {
	b.w.t.Helper()
	call[ErrOut](b.w, "Change", MemArgs{ID: b.id}, Deadline)
}

// OnMachine maps a GPU of the imitated driver to a GPU of this machine, if the tests use real GPUs. Several map to one
// if the machine has fewer.
func OnMachine(device int) int {
	if os.Getenv("GORAIL_TEST_CUDA") == "" {
		return device
	}
	found, _ := filepath.Glob("/dev/nvidia[0-9]*")
	return device % max(1, len(found))
}

// AllocGPU allocates GPU memory.
func (w *Worker) AllocGPU(size uint64, m GPUMem) *Buf {
	w.t.Helper()
	m.Device = OnMachine(m.Device)
	out := call[AllocOut](w, "Alloc", AllocArgs{Size: size, GPU: &m}, Deadline)
	b := &Buf{w: w, id: out.ID, Addr: out.Addr, Size: size, Mem: nixlapi.VRAM, Dev: uint64(m.Device)}
	if m.Host {
		b.Mem, b.Dev = nixlapi.DRAM, 0
	}
	return b
}

// GPUBuffer allocates GPU memory, fills it and registers it with the agent.
func (a *Agent) GPUBuffer(size, seed uint64, m GPUMem) *Buf {
	a.t.Helper()
	b := a.AllocGPU(size, m)
	b.Fill(seed)
	if err := a.Register(b.All()); err != nil {
		a.t.Fatalf("%s: %v\n%s", a.Name, err, a.Output())
	}
	return b
}

// GPUState ends the worker's own use of GPUs. It returns the driver's open objects and the misuses of the driver; ""
// for none, or if the driver does not report them.
func (w *Worker) GPUState() (open, wrong string) {
	w.t.Helper()
	out := call[GPUStateOut](w, "GPUState", Ref{}, Deadline)
	return out.Open, out.Wrong
}

// GPUSwitch sets a switch of the worker's imitated driver.
func (w *Worker) GPUSwitch(name string, value int) {
	w.t.Helper()
	call[GPUControlOut](w, "GPUControl", GPUControlArgs{Do: "switch", Name: name, A: value}, Deadline)
}

// GPUFail makes the n-th call of its driver from now fail; "*" means any call; n = 0: none.
func (w *Worker) GPUFail(name string, nth, result int) {
	w.t.Helper()
	call[GPUControlOut](w, "GPUControl", GPUControlArgs{Do: "fail", Name: name, A: nth, B: result}, Deadline)
}

// GPUCount reads a counter of the worker's driver.
func (w *Worker) GPUCount(name string) int {
	w.t.Helper()
	return call[GPUControlOut](w, "GPUControl", GPUControlArgs{Do: "count", Name: name}, Deadline).N
}

// Behind returns the files that are the memory of a buffer of GPU memory, as package held knows them; none for the real driver.
func (b *Buf) Behind() []uint64 {
	b.w.t.Helper()
	return call[GPUControlOut](b.w, "GPUControl", GPUControlArgs{Do: "behind", A: int(b.Addr), B: int(b.Size)}, Deadline).Files
}

// Unmap takes the memory of the GPU away from under the buffer's addresses.
func (b *Buf) Unmap() { b.Remap(0) }

// Remap puts other memory there, of that many handles if it is VMM.
func (b *Buf) Remap(handles int) { b.RemapAs(RemapArgs{Handles: handles}) }

// TryRemap is Remap where the driver may have given the addresses of freed memory to others.
func (b *Buf) TryRemap(handles int) error {
	b.w.t.Helper()
	_, err := async[ErrOut](b.w, "Remap", RemapArgs{ID: b.id, Handles: handles}, Deadline).Result()
	return err
}

// RemapAs is Remap with more to say.
func (b *Buf) RemapAs(as RemapArgs) {
	b.w.t.Helper()
	as.ID = b.id
	call[ErrOut](b.w, "Remap", as, Deadline)
}

// Buffer maps memory, fills it and registers it with the agent.
func (a *Agent) Buffer(size, seed uint64) *Buf {
	a.t.Helper()
	return a.BufferOf(hostmem.Anon, size, seed)
}

// BufferOf is Buffer for a kind of memory.
func (a *Agent) BufferOf(kind hostmem.Kind, size, seed uint64) *Buf {
	a.t.Helper()
	b := a.Alloc(size, kind)
	b.Fill(seed)
	if err := a.Register(b.All()); err != nil {
		a.t.Fatalf("%s: %v\n%s", a.Name, err, a.Output())
	}
	return b
}

// Free unmaps the buffer.
func (b *Buf) Free() {
	b.w.t.Helper()
	call[ErrOut](b.w, "Free", MemArgs{ID: b.id}, Deadline)
}

// Renew gives the buffer other pages at the same addresses. The buffer must not be registered.
func (b *Buf) Renew() {
	b.w.t.Helper()
	call[ErrOut](b.w, "Renew", MemArgs{ID: b.id}, Deadline)
}

// At is a layout in the buffer.
func (b *Buf) At(l Layout) Side { return Side{Base: b.Addr, Layout: l, Mem: b.Mem, Dev: b.Dev} }

// Span is one block of the buffer.
func (b *Buf) Span(off, n uint64) Side {
	return Side{Base: b.Addr, Layout: Span(off, n), Mem: b.Mem, Dev: b.Dev}
}

// All is the whole buffer as one block.
func (b *Buf) All() Side { return b.Span(0, b.Size) }

// Fill writes the pattern of a seed to the whole buffer.
func (b *Buf) Fill(seed uint64) {
	b.w.t.Helper()
	call[ErrOut](b.w, "Fill", MemArgs{ID: b.id, N: b.Size, Seed: seed}, Deadline)
}

// FillRange writes n bytes at off with the pattern, starting at the pattern's position pos.
func (b *Buf) FillRange(off, n, seed, pos uint64) {
	b.w.t.Helper()
	call[ErrOut](b.w, "Fill", MemArgs{ID: b.id, Off: off, N: n, Seed: seed, SeedOff: pos}, Deadline)
}

// Diff returns the first byte of [off, off+n) that differs from the pattern, or -1. The pattern starts at its position
// pos.
func (b *Buf) Diff(off, n, seed, pos uint64) int64 {
	b.w.t.Helper()
	return call[DiffOut](b.w, "Diff", MemArgs{ID: b.id, Off: off, N: n, Seed: seed, SeedOff: pos}, Deadline).At
}

// Want fails the test unless the whole buffer has the pattern of the seed.
func (b *Buf) Want(seed uint64) {
	b.w.t.Helper()
	if at := b.Diff(0, b.Size, seed, 0); at >= 0 {
		b.w.t.Fatalf("byte %d of %d is not seed %d's", at, b.Size, seed)
	}
}

// WantBlocks fails the test unless block i of at equals block i of from in the pattern of seed, and every other byte
// has the pattern of own.
func (b *Buf) WantBlocks(own uint64, at Layout, seed uint64, from Layout) {
	b.w.t.Helper()
	out := call[DiffOut](b.w, "DiffBlocks", MemArgs{ID: b.id, Own: own, At: at, Seed: seed, From: from}, Deadline)
	if out.At >= 0 {
		b.w.t.Fatalf("byte %d of %d is wrong (blocks of %d from %d on, every %d)",
			out.At, b.Size, at.Len, at.Off, at.Stride)
	}
}
