package shm

import (
	"context"

	"gorail/backend/access"
	"gorail/backend/gpu"
	"gorail/backend/provider/shm/cma"
	"gorail/backend/provider/shm/descriptors"
	"gorail/backend/provider/shm/files"
)

// find finds the file of a range that is to be registered, and starts the server that gives the file to peers. nil: the ring serves.
func (r *rail) find(addr, length uint64, rights access.Rights) *files.File {
	f := r.table.files.Find(addr, length, rights.Allow(access.Write))
	if f == nil {
		return nil
	}
	if r.serve() != nil {
		f.Close()
		return nil
	}
	return f
}

// file implements descriptors.Filer.
func (r *rail) file(key uint64) (fd int, offset uint64, ok bool) {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	f := r.table.file[uint32(key)]
	if f == nil || r.table.entries[uint32(key)].generation.Load() != key>>32 || key>>32&1 == 0 {
		return -1, 0, false
	}
	fd = f.Open()
	return fd, f.Offset, fd >= 0
}

// view is a peer's file that is being mapped, or is mapped.
type view struct {
	cancel  context.CancelFunc
	over    chan struct{} // closed when no goroutine works on the view
	mapping *files.Mapping
}

// beginView fetches and maps the file of a view. A goroutine waits for the owner; the ring serves meanwhile, and if that fails.
func (m *mapper) beginView(v cma.View) {
	ctx, cancel := context.WithCancel(context.Background())
	w := &view{cancel: cancel, over: make(chan struct{})}
	m.views[v] = w
	info := m.core.ViewInfo(v)
	go func() {
		defer close(w.over)
		if err := w.open(ctx, info); err != nil {
			m.core.SetLastError("cannot map the peer's shared memory: " + err.Error())
			v.Finish(nil, false)
			return
		}
		v.Finish(w.mapping.At, w.mapping.Writable)
	}()
}

func (w *view) open(ctx context.Context, info cma.ViewInfo) error {
	fd, offset, err := descriptors.FetchFile(ctx, info.Owner, info.Key)
	if err != nil {
		return err
	}
	defer closeFDs(fd)
	if ctx.Err() != nil {
		return gpu.Cancelled
	}
	w.mapping, err = files.Map(fd, offset, info.Length)
	return err
}

// endView unmaps a view through which nothing is copied any more, and frees it.
func (m *mapper) endView(v cma.View) {
	w := m.views[v]
	delete(m.views, v)
	w.cancel()
	<-w.over
	if w.mapping != nil {
		w.mapping.Close()
	}
	m.core.FreeView(v)
}

// Mapped implements provider.Mapper.
func (r *rail) Mapped() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0
	}
	return r.core.Viewed()
}

// ForgetKey implements provider.Importer.
func (e *endpoint) ForgetKey(key uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.core.ForgetView(key)
	}
}
