package verbs

/*
#include "verbs.h"
*/
import "C"

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"gorail/backend/provider"
)

var _ provider.Watcher = (*rail)(nil)

// Watch implements provider.Watcher by ibv_get_async_event: ports that go down and come up, devices that are gone. addresses
// that change: endpoints opened from then on use what is there now. Go's poller waits, no thread does.
func (r *rail) Watch(ctx context.Context, tell func(up bool, why string)) error {
	fd, err := syscall.Dup(int(r.c.ctx.async_fd)) // ours to close; non-blocking as the original is
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
			var what C.int
			var text *C.char
			if C.vb_event(r.c, &what, &text) == 0 {
				return false // until there is one
			}
			switch what {
			case C.VB_DOWN:
				tell(false, C.GoString(text))
			case C.VB_UP:
				tell(true, C.GoString(text))
			case C.VB_GIDS:
				if changed, err := r.resolve(); err != nil {
					tell(false, C.GoString(text)+": "+err.Error())
				} else if changed != "" {
					tell(true, C.GoString(text)+": "+changed)
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
