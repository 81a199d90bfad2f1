package files

import (
	"time"
)

// Look looks at many ranges, in the order of their addresses: one question to the kernel serves all ranges of a mapping, and of a gap
// between mappings. Looks of a table come one after the other.
type Look struct {
	Asked int // questions so far

	t    *Table
	last vma // the last answer
	ok   bool
}

// Look begins a look.
func (t *Table) Look() *Look { return &Look{t: t} }

// at is the mapping, or else the gap (ok is false), that holds an address. known is false if the kernel was not asked.
func (l *Look) at(addr uint64) (v *vma, ok, known bool) {
	if addr >= l.last.start && addr < l.last.end {
		return &l.last, l.ok, true
	}
	l.Asked++
	got, ok, errno := l.t.self.around(addr)
	if errno != 0 {
		return nil, false, false
	}
	l.last, l.ok = got, ok
	return &l.last, ok, true
}

// same reports that all of a range is still the file, at that place. It may lie in several mappings of the file by now.
func (l *Look) same(f *File, addr, length uint64) (same, known bool) {
	for at := addr; at < addr+length; {
		v, ok, known := l.at(at)
		if !known {
			return false, false
		}
		if !ok || !v.shared || v.id != f.of.id || v.offset+(at-v.start) != f.Offset+(at-addr) {
			return false, true
		}
		at = v.end
	}
	return true, true
}

// Now returns the file that a range is now: f if it is still that one, or if this process cannot tell; another one, which is as those of
// Find; or nil. f may be nil.
func (l *Look) Now(f *File, addr, length uint64, write bool) *File {
	if f != nil {
		if same, known := l.same(f, addr, length); same || !known {
			return f
		}
	}
	v, ok, known := l.at(addr)
	if !known {
		return f
	}
	if !ok || !v.holds(addr, length) || l.t.refused.rests(v.id) {
		return nil
	}
	began := time.Now()
	now := l.t.of(v, addr, write)
	if now == nil {
		l.t.refused.note(v.id, time.Since(began))
	}
	return now
}

// refused are the files that could not be opened in a look, and when to try again: a hundredth of a processor is enough for that.
type refused map[id]time.Time

const (
	refusedTimes = 100
	refusedMost  = 5 * time.Second
)

func (r refused) rests(file id) bool {
	until, ok := r[file]
	return ok && time.Now().Before(until)
}

func (r *refused) note(file id, took time.Duration) {
	if *r == nil || len(*r) > most {
		*r = refused{}
	}
	(*r)[file] = time.Now().Add(min(refusedMost, refusedTimes*took))
}
