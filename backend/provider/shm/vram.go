package shm

import (
	"crypto/rand"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"gorail/backend/gpu"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/shm/cma"
	"gorail/backend/provider/shm/ipc"
)

// RegisterVRAM implements provider.VRAM: cuPointerGetAttributes, cuIpcGetMemHandle. A peer maps the whole allocation, for READ and
// WRITE, so its own engine refuses what is not allowed.
func (r *rail) RegisterVRAM(addr, length uint64, device int, _ option.Rights) (provider.MR, error) {
	fail := func(err error) (provider.MR, error) {
		return nil, gpu.RangeError(r.dev.Name, addr, length, device, err)
	}
	m, err := r.gpus.Look(r.dev.Name, addr, length, device)
	if err != nil {
		return nil, err
	}
	r.noteGPU(m)
	d := m.Driver
	r.core.Use(d)
	share := gpu.Unshared(&m.Mem, m.GPU.UUID, 0)
	if !r.mapper.maps {
		share = gpu.Unshared(&m.Mem, m.GPU.UUID, gpu.Forbidden)
	} else if m.NotShared == nil {
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
	key, err := r.table.put(addr, length, 0, &share, m, nil, func(entry uint32) { r.core.Know(entry, desc) })
	if err != nil {
		cma.FreeDesc(desc)
		return nil, r.error(provider.ErrRegister, fmt.Sprintf("register (at most %d GPU regions)", cma.MaxShares), err)
	}
	cma.SetDescKey(desc, key)
	return &region{rail: r, key: key, base: addr, desc: desc, mem: m}, nil
}

// noteGPU loads a GPU's copy kernel in the background, once per GPU, and reports one that has none.
func (r *rail) noteGPU(m *gpu.Range) {
	r.mu.Lock()
	noted := r.notedGPUs[m.Device]
	if r.notedGPUs == nil {
		r.notedGPUs = map[int]bool{}
	}
	r.notedGPUs[m.Device] = true
	r.mu.Unlock()
	if noted {
		return
	}
	device, name := m.Device, m.GPU.Name
	m.Driver.WarmUp(device, func(refusal string) {
		if refusal != "" {
			r.report(fmt.Sprintf("GPU %d (%s): its driver does not take the copy kernel (%s): the copy engines copy instead, one operation at a time", device, name, refusal))
		}
	})
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
	var token ipc.Token
	_, _ = rand.Read(token[:])
	server, err := ipc.ServeDescriptors(r.host, token, r.pieces)
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

// pieces is an ipc.PieceSource.
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

// prove is an ipc.ProofSource.
func (r *rail) prove(key uint64) (p gpu.Proof, why int) {
	m, ok := r.table.memory(key)
	if !ok {
		return p, int(gpu.Changed)
	}
	p, err := m.Driver.Prove(m.Mem)
	return p, int(whyOf(err))
}

// LastError implements provider.Host.
func (r *rail) LastError() string { return r.core.LastError() }
