package shm

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/option"
	"gorail/backend/provider/shm/cma"
)

// watch is a region that is a file, or may become one: the application may map another file there, or none, or one again.
type watch struct {
	addr, length uint64
	write        bool        // peers may write
	file         *memoryFile // nil: none now, and the ring serves. Looks write it, under table.mu, and read it

	index uint32 // of the entry
	place int    // in watches.list; -1: the region is gone. Under table.mu
}

func (w *watch) share() uint64 {
	if w.file == nil {
		return 0
	}
	return cma.FileShare
}

// watches are all of a table, under its mu.
type watches struct {
	of    map[uint32]*watch // by index of the entry
	list  []*watch
	edits uint64
	first func() // called when there was none before; it must not wait. nil: nobody wants to know
}

func (s *watches) add(index uint32, w *watch) {
	w.index, w.place = index, len(s.list)
	s.of[index] = w
	s.list = append(s.list, w)
	s.edits++
	if len(s.list) == 1 && s.first != nil {
		s.first()
	}
}

// remove ends a watch, if the entry has one.
func (s *watches) remove(index uint32) {
	w := s.of[index]
	if w == nil {
		return
	}
	last := len(s.list) - 1
	s.list[w.place] = s.list[last]
	s.list[w.place].place = w.place
	s.list[last] = nil
	s.list = s.list[:last]
	w.place = -1
	delete(s.of, index)
	s.edits++
	if w.file != nil {
		w.file.Close()
	}
}

// order is the list of watches by address, as a look last needed it.
type order struct {
	mu    sync.Mutex // one look at a time
	list  []*watch
	edits uint64
	noted struct {
		lost, found int
		at          time.Time
	}
}

// inOrder is the list by address. Registrations wait for a part of the copy at most. Under order.mu.
func (t *table) inOrder() []*watch {
	const part = 4096 // 10 us
	o := &t.order
	t.mu.Lock()
	end, edits := len(t.watches.list), t.watches.edits
	t.mu.Unlock()
	if edits == o.edits {
		return o.list
	}
	o.list = make([]*watch, 0, end)
	for end > 0 { // from the end: what moves into a gap meanwhile comes from there, so that none is missed
		t.mu.Lock()
		end = min(end, len(t.watches.list))
		from := max(0, end-part)
		o.list = append(o.list, t.watches.list[from:end]...)
		t.mu.Unlock()
		end = from
	}
	slices.SortFunc(o.list, func(a, b *watch) int { return cmp.Compare(a.addr, b.addr) })
	o.edits = edits
	return o.list
}

// recheck looks at the regions that are files, and at those that were. Where the application has mapped something else, peers get that
// file, or none: then the ring serves, and a later look may find one. may says whether peers can get a file now. The kernel is asked without
// mu. asked: questions.
func (t *table) recheck(may func() bool) (asked int) {
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	look := t.files.Look()
	for _, w := range t.inOrder() {
		now := look.Now(w.file, w.addr, w.length, w.write)
		if now == w.file {
			continue
		}
		if now != nil && !may() {
			now.Close()
			now = nil
		}
		t.become(w, now)
	}
	return look.Asked
}

// become gives a region another file, or none. Under order.mu.
func (t *table) become(w *watch, now *memoryFile) {
	t.mu.Lock()
	old, gone := w.file, w.place < 0
	if gone { // released, with its file
		old = now
	} else {
		w.file = now
		t.entries[w.index].share.Store(w.share())
	}
	t.mu.Unlock()
	n := &t.order.noted
	switch {
	case gone:
	case now == nil && old != nil:
		n.lost++
	case now != nil && old == nil:
		n.found++
	}
	if old != nil {
		old.Close()
	}
}

// news is a line for the log when regions have lost their file or have one again: once a minute at most.
func (t *table) news(now time.Time) string {
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	n := &t.order.noted
	if n.lost+n.found == 0 || !n.at.IsZero() && now.Sub(n.at) < time.Minute {
		return ""
	}
	text := fmt.Sprintf("registered shared memory: at %d regions the application has unmapped the file or mapped other memory, and the ring serves; "+
		"at %d a file is mapped again, and peers map it", n.lost, n.found)
	n.lost, n.found, n.at = 0, 0, now
	return text
}

// Recheck implements provider.Host.
func (r *rail) Recheck() (more bool) {
	r.core.Looks()
	if !r.table.watching() {
		return false
	}
	if can, _ := r.answers(); !can {
		return true
	}
	r.table.recheck(func() bool { return r.serve() == nil })
	if line := r.table.news(time.Now()); line != "" {
		r.report(line)
	}
	return true
}

func (t *table) watching() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.watches.list) > 0
}

// find finds the file of a range that is to be registered, and starts the server that gives the file to peers. nil: the ring serves. A
// failure that can pass makes a watch without a file: a look finds it later.
func (r *rail) find(addr, length uint64, rights option.Rights) *watch {
	if !rights.Allow(option.PeersRead) || r.table.files.Private(addr, length) { // a file that can be written can be read
		return nil
	}
	w := &watch{addr: addr, length: length, write: rights.Allow(option.PeersWrite)}
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
	if r.closed {
		return false, true
	}
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

// file is an ipc.FileSource.
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
