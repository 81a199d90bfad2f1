package peer

import (
	"sync"

	"gorail/backend/wire"
)

// keysRequests are the frames of keys requests that are not answered yet. Methods take mu; Out calls them without the
// stream's lock.
type keysRequests struct {
	mu   sync.Mutex
	list []keysRequest // in the order of sending
}

// keysRequest is one frame of a keys request.
type keysRequest struct {
	id     uint64
	ranges int
	last   bool // the last frame of the call
	total  int  // ranges of the whole call
}

// send asks for the keys of ranges, in as many frames as necessary.
func (a *keysRequests) send(s *stream, id uint64, ranges []wire.Claim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.State().Over() {
		return
	}
	total := len(ranges)
	frames := make([]wire.Frame, 0, 1+total/wire.MaxRanges)
	for first := true; first || len(ranges) > 0; first = false {
		n := min(len(ranges), wire.MaxRanges)
		frames = append(frames, &wire.KeysReq{ID: id, Ranges: ranges[:n:n]})
		ranges = ranges[n:]
		a.list = append(a.list, keysRequest{id: id, ranges: n, last: len(ranges) == 0, total: total})
	}
	s.Send(frames...) // under mu, so that the list has the order of the frames
}

// answered removes the request that f answers. It returns false if f answers none.
func (a *keysRequests) answered(f *wire.Keys) (keysRequest, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.list) == 0 || a.list[0].id != f.ID || a.list[0].ranges != len(f.Entries) {
		return keysRequest{}, false
	}
	answered := a.list[0]
	if a.list = a.list[1:]; len(a.list) == 0 {
		a.list = nil
	}
	return answered, true
}
