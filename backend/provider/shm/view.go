package shm

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/gpu"
	"gorail/backend/provider/shm/cma"
	"gorail/backend/provider/shm/descriptors"
	"gorail/backend/provider/shm/files"
)

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
			v.Finish(nil, false, cma.FileID{}, retryAfter(err))
			return
		}
		v.Finish(w.mapping.At, w.mapping.Writable, cma.FileID{Dev: w.mapping.Dev, Inode: w.mapping.Inode, Offset: w.mapping.Offset}, 0)
	}()
}

// retryAfter is the time until a view that failed is tried again; 0: it is not.
func retryAfter(err error) time.Duration {
	if errors.Is(err, files.ErrHole) || gpu.Is(err, gpu.Silent) || gpu.Is(err, gpu.NoFDs) || gpu.Is(err, gpu.Changed) {
		return time.Second
	}
	return 0
}

func (w *view) open(ctx context.Context, info cma.ViewInfo) error {
	fd, offset, err := descriptors.FetchFile(ctx, info.Owner, info.Key)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
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
