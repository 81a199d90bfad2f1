// Package hostmem maps the kinds of host memory that applications register.
package hostmem

import (
	"golang.org/x/sys/unix"

	"gorail/nixlapi"
)

// Kind is the kind of memory behind a buffer.
type Kind int

// Kinds of memory.
const (
	Anon    Kind = iota // private anonymous pages
	Reserve             // address space only: PROT_NONE, never touched
	Tiled               // many addresses over few pages, see Windows
)

// Alloc maps size bytes.
func Alloc(size int, kind Kind) (*nixlapi.Buffer, error) {
	var b []byte
	var err error
	switch kind {
	case Tiled:
		b, err = tiled(size)
	case Reserve:
		b, err = unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	default:
		return nixlapi.Alloc(size)
	}
	if err != nil {
		return nil, err
	}
	return &nixlapi.Buffer{B: b}, nil
}
