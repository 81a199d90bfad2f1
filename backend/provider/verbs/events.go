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

// Watch implements provider.Watcher by ibv_get_async_event: ports that go down and come up, devices that are gone. addresses
// that change: endpoints opened from then on use what is there now. Go's poller waits, no thread does.
func (r *rail) Watch(ctx context.Context, tell func(up bool, why string)) error {
	_, events := r.c.FDs(r.ctx)
	fd, err := syscall.Dup(events) // ours to close; non-blocking as the original is
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
				return false // until there is one
			}
			switch what := r.means(ev); what {
			case portDown, portUp:
				tell(what == portUp, ev.Text)
			case portGIDs:
				if changed, err := r.resolve(); err != nil {
					tell(false, ev.Text+": "+err.Error())
				} else if changed != "" {
					tell(true, ev.Text+": "+changed)
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

// change is what an event means for a rail.
type change int

const (
	otherChange change = iota
	portUp
	portDown // or the device is gone
	portGIDs // the port's table of GIDs has changed
)

func (r *rail) means(ev ibverbs.AsyncEvent) change {
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
