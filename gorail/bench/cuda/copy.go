package cuda

import "fmt"

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
