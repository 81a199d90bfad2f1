package transfer

import "unsafe"

// Desc is one element of a descriptor list, in the layout of nixlMetaDesc. MD is the shim's metadata object.
type Desc struct {
	Addr, Len, Dev uint64
	MD             unsafe.Pointer
}

// MDRegion is the offset of the region id in the shim's metadata object: GR_MD_REGION. Package plugin compares both.
const MDRegion = 16

func (d *Desc) region() uint64 {
	if d.MD == nil {
		return 0
	}
	return *(*uint64)(unsafe.Add(d.MD, MDRegion))
}

// List is a descriptor list. The caller does not change it while a transfer is prepared.
type List struct {
	Descs   []Desc
	Regions []uint64 // the region of each descriptor; nil: the metadata object holds it
}

// Own makes a list of n empty descriptors, for inner transfers.
func Own(n int) List { return List{make([]Desc, n), make([]uint64, n)} }

// Set fills one element.
func (l List) Set(i int, region, addr, length uint64) {
	l.Descs[i], l.Regions[i] = Desc{Addr: addr, Len: length}, region
}

// region returns the region id of element i.
func (l *List) region(i int) uint64 {
	if l.Regions != nil {
		return l.Regions[i]
	}
	return l.Descs[i].region()
}
