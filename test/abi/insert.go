package abi

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
)

// Patch is a library's content, to be changed and written to another file.
type Patch struct {
	*Library
	Bytes []byte
}

// NewPatch reads a library to change it.
func NewPatch(path string) (*Patch, error) {
	lib, err := Open(path)
	if err != nil {
		return nil, err
	}
	bytes, err := os.ReadFile(path)
	return &Patch{lib, bytes}, err
}

// InsertSlot inserts a virtual function without a name in front of slot k of the classes' tables, as in a NIXL with
// another interface. The file is only for readers: the end of the table overlaps the data after it.
func (p *Patch) InsertSlot(k int, classes ...string) error {
	for _, class := range classes {
		name := fmt.Sprintf("_ZTV%d%s", len(class), class)
		sym, ok := p.size[name]
		if !ok {
			return fmt.Errorf("no %s", name)
		}
		first, end := sym.Value+16+8*uint64(k), sym.Value+sym.Size
		p.eachRelocation(func(at []byte) {
			if a := binary.LittleEndian.Uint64(at); a >= first && a < end {
				binary.LittleEndian.PutUint64(at, a+8)
			}
		})
		p.eachSymbol(func(s elf.Symbol, entry []byte) {
			if s.Name == name {
				binary.LittleEndian.PutUint64(entry[16:], sym.Size+8)
			}
		})
	}
	return nil
}

// SwapSlots swaps two functions of a class's table.
func (p *Patch) SwapSlots(class string, a, b int) {
	table := p.size[fmt.Sprintf("_ZTV%d%s", len(class), class)].Value + 16
	of := map[uint64]uint64{table + 8*uint64(a): table + 8*uint64(b), table + 8*uint64(b): table + 8*uint64(a)}
	p.eachRelocation(func(at []byte) {
		if to, ok := of[binary.LittleEndian.Uint64(at)]; ok {
			binary.LittleEndian.PutUint64(at, to)
		}
	})
}

// Nameless removes the names of all symbols for which want returns true.
func (p *Patch) Nameless(want func(name string) bool) {
	p.eachSymbol(func(s elf.Symbol, entry []byte) {
		if want(s.Name) {
			binary.LittleEndian.PutUint32(entry, 0)
		}
	})
}

// Rename replaces a part of names in the string tables with another part of the same length.
func (p *Patch) Rename(old, new string) int {
	n := 0
	for _, s := range p.Sections {
		if s.Type != elf.SHT_STRTAB {
			continue
		}
		text := p.Bytes[s.Offset : s.Offset+s.FileSize]
		for i := 0; i+len(old) <= len(text); i++ {
			if string(text[i:i+len(old)]) == old {
				copy(text[i:], new)
				n++
			}
		}
	}
	return n
}

// Write writes the content to a file.
func (p *Patch) Write(path string) error { return os.WriteFile(path, p.Bytes, 0o644) }

func (p *Patch) eachRelocation(f func(at []byte)) {
	s := p.Section(".rela.dyn")
	for entry := range slices.Chunk(p.Bytes[s.Offset:s.Offset+s.FileSize], 24) {
		f(entry)
	}
}

func (p *Patch) eachSymbol(f func(s elf.Symbol, entry []byte)) {
	dynamic, _ := p.DynamicSymbols()
	local, _ := p.Symbols()
	for name, symbols := range map[string][]elf.Symbol{".dynsym": dynamic, ".symtab": local} {
		if s := p.Section(name); s != nil {
			for i := range symbols {
				f(symbols[i], p.Bytes[s.Offset+24*uint64(i+1):][:24])
			}
		}
	}
}
