package shm

import (
	"crypto/rand"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"gorail/backend/access"
	"gorail/backend/gpu"
	"gorail/backend/provider"
	"gorail/backend/provider/shm/cma"
	"gorail/backend/provider/shm/descriptors"
	"gorail/backend/provider/shm/ipc"
	"gorail/backend/provider/vram"
)

// noteGPU reports a GPU without copy kernel, once per GPU.
func (r *rail) noteGPU(m *vram.Memory) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.notedGPUs[m.Device] {
		return
	}
	if r.notedGPUs == nil {
		r.notedGPUs = map[int]bool{}
	}
	r.notedGPUs[m.Device] = true
	if !m.GPU.Kernel {
		r.reports = append(r.reports, fmt.Sprintf("GPU %d (%s): its driver does not take the copy kernel (%s): the copy engines copy instead, one operation at a time",
			m.Device, m.GPU.Name, m.GPU.NoKernel))
	}
}

func (r *rail) report(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports = append(r.reports, line)
}

// Reports implements provider.Host.
func (r *rail) Reports() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	reports := r.reports
	r.reports = nil
	return reports
}

// warnings are problems that an operator should fix.
type warnings struct {
	unlogged []string
	seen     map[string]bool // all so far
}

// warn keeps a warning for the log, each text once. Texts depend on peers, so their number is bounded.
func (r *rail) warn(text string) {
	const most = 64
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &r.warnings
	if w.seen[text] || len(w.seen) == most {
		return
	}
	if w.seen == nil {
		w.seen = map[string]bool{}
	}
	w.seen[text] = true
	w.unlogged = append(w.unlogged, text)
}

// Warnings implements provider.Warner.
func (r *rail) Warnings() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	unlogged := r.warnings.unlogged
	r.warnings.unlogged = nil
	if r.closed {
		return unlogged
	}
	if at := r.core.Refused(); at != 0 {
		errno := unix.Errno(at & 0xff)
		why := fmt.Sprintf("%s: has one of the two changed its user, or its dumpable flag?", accessHint(errno))
		if errno == unix.ESRCH {
			why = ": has its first thread ended?"
		}
		unlogged = append(unlogged, fmt.Sprintf("the kernel does not let us access the memory of process %d any more: its transfers take the ring from now on, "+
			"which copies twice (process_vm_readv: %v)%s", at>>8, errno, why))
	}
	return unlogged
}

// RegisterVRAM implements provider.VRAM: cuPointerGetAttributes, cuIpcGetMemHandle. A peer maps the whole allocation, for READ and
// WRITE, so its own engine refuses what is not allowed.
func (r *rail) RegisterVRAM(addr, length uint64, device int, _ access.Rights) (provider.MR, error) {
	fail := func(err error) (provider.MR, error) { return nil, vram.Refused(r.dev.Name, addr, length, device, err) }
	m, err := r.gpus.Look(r.dev.Name, addr, length, device)
	if err != nil {
		return nil, err
	}
	r.noteGPU(&m)
	d := m.Driver
	r.core.Use(d)
	share := gpu.Unshared(&m.Mem, m.GPU.UUID, 0)
	if m.NotShared == nil {
		s, err := d.Share(m.Mem)
		switch {
		case err == nil:
			share = s
		case m.Fabric() && !errors.Is(err, gpu.Lost): // the owner's process uses the memory as any other memory of the GPU
			share = gpu.Unshared(&m.Mem, m.GPU.UUID, gpu.NoFabric)
			r.report(fmt.Sprintf("memory of GPU %d at %#x can be exported as a fabric handle (NVLink between hosts) alone, and the driver refuses that handle "+
				"(is there an IMEX channel?): no other process can map the memory: %v", device, addr, err))
		default:
			return fail(err)
		}
		// a peer needs descriptors of VMM memory, and a proof for an IPC handle if its process number equals ours
		if err := r.serve(); err != nil && s.Pieces() > 0 {
			return fail(err)
		}
		// peers get the reason when they map the region; this process uses the memory all the same
	} else if why, ok := m.NotShared.(gpu.Why); ok {
		share = gpu.Unshared(&m.Mem, m.GPU.UUID, why)
	}
	desc, err := cma.NewDesc(&m.Mem)
	if err != nil {
		return fail(err)
	}
	key, err := r.table.put(addr, length, 0, &share, &m, nil, func(entry uint32) { r.core.Know(entry, desc) })
	if err != nil {
		cma.FreeDesc(desc)
		return nil, r.error(provider.ErrRegister, fmt.Sprintf("register (at most %d GPU regions)", cma.MaxShares), err)
	}
	cma.SetDescKey(desc, key)
	return &region{rail: r, key: key, base: addr, desc: desc, mem: m}, nil
}

// Same implements provider.Renewable: cuPointerGetAttribute of the buffer ids.
func (m *region) Same() error {
	if m.desc == nil {
		return nil
	}
	return m.mem.Same()
}

// serve starts the descriptor server, unless the server runs.
func (r *rail) serve() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.server != nil {
		return nil
	}
	if r.closed { // a look that was under way
		return r.error(provider.ErrUnusable, "serve", unix.ESHUTDOWN)
	}
	var token descriptors.Token
	_, _ = rand.Read(token[:])
	server, err := descriptors.Serve(r.host, token, r.pieces)
	if err != nil {
		return r.error(provider.ErrRegister, "listen for descriptor requests", ipc.Errno(err))
	}
	server.Prove(r.prove)
	server.Files(r.file)
	r.server = server
	if err := server.NotInside(); err != nil && r.listener.NotInside() == nil {
		r.reports = append(r.reports, fmt.Sprintf("peers in other network namespaces cannot map memory of GPUs, and shared memory: %v", err))
	}
	r.table.serveAt(server.Place(), token)
	return nil
}

// find finds the file of a range that is to be registered, and starts the server that gives the file to peers. nil: the ring serves. A
// failure that can pass makes a watch without a file: a look finds it later.
func (r *rail) find(addr, length uint64, rights access.Rights) *watch {
	if !rights.Allow(access.Read) || r.table.files.Private(addr, length) { // a file that can be written can be read
		return nil
	}
	w := &watch{addr: addr, length: length, write: rights.Allow(access.Write)}
	switch can, never := r.answers(); {
	case never:
		return nil
	case !can:
		return w
	}
	f, later := r.table.files.Find(addr, length, w.write)
	if f == nil && !later {
		return nil
	}
	if f != nil && r.serve() != nil {
		f.Close()
		f = nil
	}
	w.file = f
	return w
}

// answers lets the core answer peers' questions whether a file is still mapped here. never: the kernel cannot tell (before Linux 6.11).
// Neither: this process could not ask, and the next call does. Then, too, peers do not map files.
func (r *rail) answers() (can, never bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.table
	if t.asks == 0 {
		can, known := t.files.Asks()
		if known && !can {
			t.asks = -1
		} else if can {
			if fd, err := unix.Open("/proc/self/maps", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
				r.core.UseMaps(fd)
				t.asks = 1
			}
		}
	}
	return t.asks > 0, t.asks < 0
}

// file implements descriptors.Filer.
func (r *rail) file(key uint64) (fd int, offset uint64, ok bool) {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	w := r.table.watches.of[uint32(key)]
	if w == nil || w.file == nil || r.table.entries[uint32(key)].generation.Load() != key>>32 || key>>32&1 == 0 {
		return -1, 0, false
	}
	fd = w.file.Open()
	return fd, w.file.Offset, fd >= 0
}

// pieces implements descriptors.Source.
func (r *rail) pieces(key uint64, first, n int) (fds []int, sizes []uint64, why int) {
	m, ok := r.table.memory(key)
	if !ok {
		return nil, nil, int(gpu.Changed)
	}
	got, sizes, err := m.Driver.Pieces(m.Mem, first, n)
	if err != nil {
		why := gpu.Failed
		if _ = errors.As(err, &why); why == gpu.Changed {
			r.mapper.noteChanged()
		}
		return nil, nil, int(why)
	}
	for _, fd := range got {
		fds = append(fds, int(fd))
	}
	return fds, sizes, 0
}

// prove implements descriptors.Prover.
func (r *rail) prove(key uint64) (p gpu.Proof, why int) {
	m, ok := r.table.memory(key)
	if !ok {
		return p, int(gpu.Changed)
	}
	p, err := m.Driver.Prove(m.Mem)
	return p, int(whyOf(err))
}

// Changed implements provider.Host.
func (r *rail) Changed() <-chan struct{} { return r.mapper.changed }

// Mapping implements provider.Host.
func (r *rail) Mapping() bool { return r.core.Mapping() }

// LastError implements provider.Host.
func (r *rail) LastError() string { return r.core.LastError() }

// Mapped implements provider.Host.
func (r *rail) Mapped() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0
	}
	return r.core.Viewed()
}
