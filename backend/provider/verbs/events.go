package verbs

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"gorail/backend/provider"
	"gorail/backend/provider/verbs/ibverbs"
)

var _ provider.Watcher = (*rail)(nil)

// Watch implements provider.Watcher by ibv_get_async_event. It reports port up, port down, failures of the device or of
// the completion queue, and GID changes. Endpoints opened after a GID change use the new GID. Go's poller waits for
// events, so no thread blocks.
func (r *rail) Watch(ctx context.Context, report func(up bool, why string)) error {
	_, events := r.c.FDs(r.ctx)
	fd, err := syscall.Dup(events) // owned by Watch; non-blocking like the original
	if err != nil {
		return fmt.Errorf("%w: %s/%s: events: %w", provider.ErrUnusable, r.dev.Fabric, r.dev.Name, err)
	}
	syscall.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), r.dev.Name+" events")
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })()
	err = conn.Read(func(uintptr) bool {
		for ctx.Err() == nil {
			ev, ok := r.lib.NextEvent(r.ctx)
			if !ok {
				return false // wait for the next event
			}
			switch what := r.effectOf(ev); what {
			case portDown, portUp:
				report(what == portUp, ev.Text)
			case portGIDs:
				if changed, err := r.resolveGID(); err != nil {
					report(false, ev.Text+": "+err.Error())
				} else if changed != "" {
					report(true, ev.Text+": "+changed)
				}
			}
		}
		return true
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// change is the effect of an event on a rail.
type change int

const (
	otherChange change = iota
	portUp
	portDown // the port is down, or the device or the completion queue has failed
	portGIDs // the port's GID table has changed
)

func (r *rail) effectOf(ev ibverbs.AsyncEvent) change {
	ours := ev.Port == r.entry.port.number
	switch {
	case ev.Kind == ibverbs.EventDeviceFatal, ev.Kind == ibverbs.EventCQErr, ours && ev.Kind == ibverbs.EventPortErr:
		return portDown
	case ours && ev.Kind == ibverbs.EventPortActive:
		return portUp
	case ours && ev.Kind == ibverbs.EventGIDChange:
		return portGIDs
	}
	return otherChange
}
