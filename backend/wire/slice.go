package wire

import "fmt"

// What slices may be.
const (
	SliceUnit = 64 << 10 // bytes they are multiples of: the largest page
	MinSlice  = 1 << 20  // the least of them
	hugePage  = 2 << 20

	MaxSlices = MaxRevoke // of a range: 64 GiB in slices of 1 MiB, 224 TiB in slices of 3.5 GiB
)

// Slices are what a range is registered as, and its keys are asked for, by an engine that registers no more than size bytes at a
// time; 0: no limit. Both sides compute them, from the range and ConnBlob.Slice alone. The first may be shorter, so that
// all begin on multiples of a page, of a huge one where size is a multiple of it: no page is in two. ErrLimit above MaxSlices.
func (r Range) Slices(size uint64) ([]Range, error) {
	if size == 0 || r.Len <= size {
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

// SliceOf is the place in Slices of the slice that an address of the range, or its end, is in.
func (r Range) SliceOf(addr, size uint64) int {
	addr = min(addr, r.Addr+r.Len-1)
	return int((addr - sliceStart(r.Addr, size)) / size)
}

// sliceStart is where slices are counted from.
func sliceStart(addr, size uint64) uint64 {
	return addr &^ (min(size&-size, hugePage) - 1)
}
