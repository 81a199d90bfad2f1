package worker

import (
	"fmt"

	"gorail/internal/pattern"
	"gorail/nixlapi"
	"gorail/test/hostmem"
)

func (s *Server) buf(id int) (memory, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b, ok := s.bufs[id]; ok {
		return b, nil
	}
	return nil, fmt.Errorf("no buffer %d", id)
}

// Alloc maps a buffer.
func (s *Server) Alloc(in AllocArgs, out *AllocOut) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.alloc(in)
	if err != nil {
		return err
	}
	out.ID, out.Addr = s.id(), b.Addr()
	s.bufs[out.ID] = b
	return nil
}

// Free unmaps a buffer.
func (s *Server) Free(in MemArgs, out *ErrOut) error {
	b, err := s.buf(in.ID)
	if err != nil {
		return err
	}
	return b.Free()
}

// Renew gives a buffer other pages at the same addresses.
func (s *Server) Renew(in MemArgs, out *ErrOut) error {
	b, err := s.buf(in.ID)
	if err != nil {
		return err
	}
	return b.renew()
}

// oddMem is memory of an odd kind.
type oddMem struct {
	hostMem
	kind hostmem.Odd
	obj  *hostmem.Object
}

func newOdd(in AllocArgs) (memory, error) {
	content := make([]byte, in.Size)
	pattern.Fill(content, in.Seed, 0)
	m := &oddMem{kind: hostmem.Odds[in.Odd-1]}
	var err error
	if m.obj, err = m.kind.New(content); err != nil {
		return nil, fmt.Errorf("%s: %w", m.kind.Name, err)
	}
	m.hostMem = hostMem{Buffer: m.obj.Buffer}
	return m, nil
}

// Change does to a buffer of an odd kind what its kind says.
func (s *Server) Change(in MemArgs, out *ErrOut) error {
	b, err := s.buf(in.ID)
	if err != nil {
		return err
	}
	m := b.(*oddMem)
	return m.kind.Change(m.obj)
}

// Fill writes a part of a pattern to a range.
func (s *Server) Fill(in MemArgs, out *ErrOut) error {
	b, err := s.buf(in.ID)
	if err != nil {
		return err
	}
	bytes := make([]byte, in.N)
	pattern.Fill(bytes, in.Seed, in.SeedOff)
	b.write(in.Off, bytes)
	return nil
}

// Diff compares a range with a pattern.
func (s *Server) Diff(in MemArgs, out *DiffOut) error {
	b, err := s.buf(in.ID)
	if err != nil {
		return err
	}
	out.At = pattern.Diff(b.read(in.Off, in.N), in.Seed, in.SeedOff)
	return nil
}

// DiffBlocks expects the buffer's own pattern, overwritten with blocks of another pattern: block i at At must equal
// block i of the pattern at From.
func (s *Server) DiffBlocks(in MemArgs, out *DiffOut) error {
	b, err := s.buf(in.ID)
	if err != nil {
		return err
	}
	got := b.read(0, b.size())
	want := make([]byte, len(got))
	pattern.Fill(want, in.Own, 0)
	at, from := in.At.order(), in.From.order()
	for i := range in.At.Count {
		pattern.Fill(want[at(i):at(i)+in.At.Len], in.Seed, from(i))
	}
	out.At = firstDiff(got, want)
	return nil
}

// step limits one comparison. The worker may hold two Go runtimes; a long loop without calls cannot be preempted there.
const step = 64 << 10

// firstDiff returns the index of the first difference of equally long slices, or -1.
func firstDiff(a, b []byte) int64 {
	for off := 0; off < len(a); off += step {
		end := min(off+step, len(a))
		if string(a[off:end]) == string(b[off:end]) {
			continue
		}
		for i := off; i < end; i++ {
			if a[i] != b[i] {
				return int64(i)
			}
		}
	}
	return -1
}

// memOf returns the memory type of the sides; all sides have the same.
func memOf(sides []Side) nixlapi.Mem {
	if len(sides) == 0 {
		return nixlapi.DRAM
	}
	return sides[0].Mem
}

func descs(sides []Side) []nixlapi.Desc {
	var out []nixlapi.Desc
	for _, s := range sides {
		out = append(out, s.Descs()...)
	}
	return out
}

// Register registers every block of the sides.
func (s *Server) Register(in RegArgs, out *ErrOut) error {
	return s.onAgent(in.Agent, func(g *agent) {
		out.Err = nixlError(g.a.RegisterMeta(memOf(in.Sides), descs(in.Sides), in.Meta, g.b))
	})
}

// Deregister undoes Register.
func (s *Server) Deregister(in RegArgs, out *ErrOut) error {
	return s.onAgent(in.Agent, func(g *agent) {
		out.Err = nixlError(g.a.Deregister(memOf(in.Sides), descs(in.Sides), g.b))
	})
}

func (s *Server) onAgent(id int, f func(*agent)) error {
	g, err := s.agent(id)
	if err != nil {
		return err
	}
	g.do(func() { f(g) })
	return nil
}

// Metadata exports the agent. PartialMD exports only the given regions.
func (s *Server) Metadata(in MDArgs, out *MDOut) error {
	return s.onAgent(in.Agent, func(g *agent) {
		md, err := g.a.Metadata()
		out.Blob, out.Err = md, nixlError(err)
	})
}

// PartialMD exports the given regions; without regions only the connection info.
func (s *Server) PartialMD(in RegArgs, out *MDOut) error {
	return s.onAgent(in.Agent, func(g *agent) {
		md, err := g.a.PartialMetadata(memOf(in.Sides), descs(in.Sides), g.b)
		out.Blob, out.Err = md, nixlError(err)
	})
}

// Load loads a peer's metadata.
func (s *Server) Load(in MDArgs, out *MDOut) error {
	return s.onAgent(in.Agent, func(g *agent) {
		name, err := g.a.Load(in.Blob)
		out.Name, out.Err = name, nixlError(err)
	})
}

// Invalidate forgets a peer.
func (s *Server) Invalidate(in MDArgs, out *MDOut) error {
	return s.onAgent(in.Agent, func(g *agent) { out.Err = nixlError(g.a.Invalidate(in.Name)) })
}

// Connect asks for a connection to a loaded peer.
func (s *Server) Connect(in MDArgs, out *MDOut) error {
	return s.onAgent(in.Agent, func(g *agent) { out.Err = nixlError(g.a.Connect(in.Name, g.b)) })
}

// Knows reports whether a peer is loaded.
func (s *Server) Knows(in MDArgs, out *MDOut) error {
	return s.onAgent(in.Agent, func(g *agent) { out.Known = g.a.Knows(in.Name) })
}
