// Package abi checks the plugin's binary interface against installed NIXL wheels. It uses no header and no tool of
// NIXL, only the tables in the libraries themselves.
package abi

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"strings"
)

// Library is an ELF file with the symbols for the checks.
type Library struct {
	*elf.File
	dynamic []elf.Symbol        // by index-1, as in relocations
	names   map[uint64][]string // defined symbols, by address
	size    map[string]elf.Symbol
}

// Open reads a library.
func Open(path string) (*Library, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	l := &Library{File: f, names: map[uint64][]string{}, size: map[string]elf.Symbol{}}
	l.dynamic, err = f.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	local, _ := f.Symbols() // a stripped file has none
	for _, s := range append(append([]elf.Symbol(nil), l.dynamic...), local...) {
		if s.Section != elf.SHN_UNDEF {
			l.names[s.Value] = append(l.names[s.Value], s.Name)
			l.size[s.Name] = s
		}
	}
	return l, nil
}

// VTable returns the entries of a class's table after its two header words. Each slot has the mangled names of its
// function (several if the compiler folded equal functions). A pure virtual function gives "__cxa_pure_virtual". A
// deleted function or an unnamed address gives nothing.
func (l *Library) VTable(class string) ([][]string, error) {
	sym, ok := l.size[fmt.Sprintf("_ZTV%d%s", len(class), class)]
	if !ok {
		return nil, fmt.Errorf("no virtual table of %s (a stripped file?)", class)
	}
	const header = 16
	slots := make([][]string, (sym.Size-header)/8)
	err := l.relocations(func(at, info uint64, addend int64) {
		if at < sym.Value+header || at >= sym.Value+sym.Size {
			return
		}
		i := (at - sym.Value - header) / 8
		if s := info >> 32; s != 0 {
			slots[i] = []string{l.dynamic[s-1].Name}
		} else {
			slots[i] = l.names[uint64(addend)]
		}
	})
	return slots, err
}

// relocations calls f for each entry of .rela.dyn.
func (l *Library) relocations(f func(at, info uint64, addend int64)) error {
	section := l.Section(".rela.dyn")
	if section == nil {
		return fmt.Errorf("no .rela.dyn")
	}
	data, err := section.Data()
	if err != nil {
		return err
	}
	for ; len(data) >= 24; data = data[24:] {
		f(binary.LittleEndian.Uint64(data), binary.LittleEndian.Uint64(data[8:]), int64(binary.LittleEndian.Uint64(data[16:])))
	}
	return nil
}

// Signature makes the mangled name of a method independent of its class: "_ZNK15nixlPosixEngine9checkXferEP..." and
// "_ZNK17nixlBackendEngine9checkXferEP..." both give "_ZNK@9checkXferEP...". Classes in the global namespace number the
// parts of their methods' names alike. The rest of the names can thus be compared literally.
func Signature(mangled string, classes ...string) (string, bool) {
	for _, c := range classes {
		name := fmt.Sprintf("%d%s", len(c), c)
		for _, prefix := range []string{"_ZN", "_ZNK"} {
			if rest, ok := strings.CutPrefix(mangled, prefix+name); ok {
				// The complete and the base object destructor are one function.
				if rest == "D2Ev" {
					rest = "D1Ev"
				}
				return prefix + "@" + rest, true
			}
		}
	}
	return mangled, false
}

// StrippedSize returns the size after strip: all loaded sections, and the headers.
func (l *Library) StrippedSize() uint64 {
	var size uint64
	for _, s := range l.Sections {
		if s.Flags&elf.SHF_ALLOC != 0 && s.Type != elf.SHT_NOBITS {
			size = max(size, s.Offset+s.FileSize)
		}
	}
	return size + uint64(len(l.Sections))*64
}
