package side

import (
	"errors"
	"fmt"

	"gorail/gorail/bench/layout"
	"gorail/gorail/bench/memory"
	"gorail/internal/pattern"
)

// Fill writes the patterns of a route to memory.
func (s *Server) Fill(in MemArgs, _ *None) error {
	m, err := s.memory(in)
	if err != nil {
		return err
	}
	if err := each(m.Host(), in, func(b []byte, at, seed uint64) error {
		pattern.Fill(b, seed, at)
		return nil
	}); err != nil {
		return err
	}
	return m.Push(min(in.Place.End(in.Slots), uint64(len(m.Host()))))
}

// Check compares memory with the patterns: the descriptors with the sent bytes, the gaps with their earlier bytes.
func (s *Server) Check(in MemArgs, _ *None) error {
	m, err := s.memory(in)
	if err != nil {
		return err
	}
	if err := m.Pull(min(in.Place.End(in.Slots), uint64(len(m.Host())))); err != nil {
		return err
	}
	return each(m.Host(), in, func(b []byte, at, seed uint64) error {
		if d := pattern.Diff(b, seed, at); d >= 0 {
			where := "the transfer did not write"
			if seed == in.Between {
				where = "written beside the transfer's descriptors:"
			}
			return fmt.Errorf("wrong bytes: %s byte %d of the pattern", where, at+uint64(d))
		}
		return nil
	})
}

func (s *Server) memory(in MemArgs) (*memory.Memory, error) {
	m := s.buf
	if in.CopyTarget {
		m = s.copyTarget
	}
	if m == nil {
		return nil, errors.New("the process has no such memory")
	}
	return m, nil
}

// each calls f for every descriptor and every gap of a route, until f fails. A descriptor's bytes are those at its position in
// the order of transfers, a gap's those at its own offset.
func each(mem []byte, in MemArgs, f func(b []byte, at, seed uint64) error) error {
	p := in.Place
	if err := within(uint64(len(mem)), p, in.Slots); err != nil {
		return err
	}
	if in.N < 0 || in.N > p.N {
		return fmt.Errorf("%d of %d descriptors cannot be compared", in.N, p.N)
	}
	var ids []int32
	if in.IDs != "" {
		ids = layout.IDs(in.IDs, p.N, in.Order)
	}
	n := p.N
	if in.N > 0 {
		n = in.N
	}
	for slot := range in.Slots {
		for k := range n {
			id := k
			if ids != nil {
				id = int(ids[k])
			}
			at := p.At(slot, id)
			end := at + p.Len
			if err := f(mem[at:end], p.Position(slot, k), in.Seed); err != nil {
				return err
			}
			if gap := end + p.Gap; gap > end && gap <= uint64(len(mem)) {
				if err := f(mem[end:gap], end, in.Between); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
