package wire

import "fmt"

// Limits of slices.
const (
	SliceUnit = 64 << 10 // slices are multiples of it, in bytes: the largest page size
	MinSlice  = 1 << 20  // the smallest slice, in bytes
	hugePage  = 2 << 20

	MaxSlices = MaxRevoke // of one range: 64 GiB in slices of 1 MiB, 224 TiB in slices of 3.5 GiB
)

// Slices splits a range into the parts that an engine registers, and asks keys for, separately. An engine sets size,
// in bytes, if it cannot register more at a time; 0: no limit. Both sides compute the slices from the range and
// ConnBlob.Slice alone. The first slice may be shorter, so that all others begin on multiples of a page, or of a huge
// page if size is a multiple of one. So no page is in two slices. Slices returns ErrLimit above MaxSlices.
func (r Range) Slices(size uint64) ([]Range, error) {
	if !r.Sliced(size) {
		return []Range{r}, nil
	}
	if r.Len/size >= MaxSlices-1 {
		return nil, fmt.Errorf("%w: %d bytes in slices of %d: at most %d of them", ErrLimit, r.Len, size, MaxSlices)
	}
	var list []Range
	for at, end := r.Addr, r.Addr+r.Len; at < end; {
		n := min(sliceStart(r.Addr, size)+uint64(len(list)+1)*size, end) - at
		list = append(list, Range{Addr: at, Len: n, Dev: r.Dev, Mem: r.Mem})
		at += n
	}
	return list, nil
}

// Sliced reports that Slices gives several slices.
func (r Range) Sliced(size uint64) bool { return size > 0 && r.Len > size }

// SliceOf returns the index, in the list of Slices, of the slice that contains addr. The end of the range counts as
// its last byte.
func (r Range) SliceOf(addr, size uint64) int {
	addr = min(addr, r.Addr+r.Len-1)
	return int((addr - sliceStart(r.Addr, size)) / size)
}

// sliceStart returns the address from which slices are counted.
func sliceStart(addr, size uint64) uint64 {
	return addr &^ (min(size&-size, hugePage) - 1)
}
