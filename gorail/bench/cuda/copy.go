package cuda

import "fmt"

// copies are calls as calls are: those of Copy.
type copies struct {
	PeerAccess func(ctx uintptr, flags uint32) int32                `name:"cuCtxEnablePeerAccess" version:"4000"`
	Stream     func(s *uintptr, flags uint32, priority int32) int32 `name:"cuStreamCreateWithPriority" version:"5050"`
	EndStream  func(s uintptr) int32                                `name:"cuStreamDestroy" version:"4000"`
	Wait       func(s uintptr) int32                                `name:"cuStreamSynchronize" version:"2000"`
	CopyAsync  func(to, from uintptr, size uint64, s uintptr) int32 `name:"cuMemcpyAsync" version:"4000"`
}

// Range is a copy from one memory to another.
type Range struct {
	To, From uint64
	Size     uint64
}

// Copy copies ranges by cuMemcpyAsync on a stream of this GPU and waits for their end, again and again until done says so, but once at least. Memory of
// another GPU is accessed directly. It returns how often.
func (g *GPU) Copy(other int, all []Range, done func() bool) (times uint64, err error) {
	if other != int(g.id) {
		if err := g.reach(other); err != nil {
			return 0, err
		}
	}
	err = g.within("cuMemcpyAsync", func() int32 {
		var s uintptr
		r := g.d.Stream(&s, nonBlocking, 0)
		for ; r == 0 && (times == 0 || !done()); times++ {
			for i := 0; r == 0 && i < len(all); i++ {
				r = g.d.CopyAsync(uintptr(all[i].To), uintptr(all[i].From), all[i].Size, s)
			}
			r = max(r, g.d.Wait(s))
		}
		if s != 0 {
			r = max(r, g.d.EndStream(s))
		}
		return r
	})
	return times, err
}

// reach lets this GPU access the memory of another.
func (g *GPU) reach(other int) error {
	o, err := g.d.GPU(other)
	if err != nil {
		return err
	}
	var there uintptr
	if err := o.within("context", func() int32 { return 0 }); err != nil {
		return fmt.Errorf("GPU %d: %w", other, err)
	}
	g.d.mu.Lock()
	there = g.d.contexts[o.id]
	g.d.mu.Unlock()
	return g.within("cuCtxEnablePeerAccess", func() int32 {
		if r := g.d.PeerAccess(there, 0); r != peerEnabled {
			return r
		}
		return 0
	})
}
