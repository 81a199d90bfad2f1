//go:build failpoints

package engine

import (
	"math/rand/v2"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/region"
	"gorail/internal/pattern"
	"gorail/test/cuda"
)

// moveVRAM moves memory between two GPUs, in pieces of several regions, until it succeeds.
func (s *scenario) moveVRAM() {
	s.Helper()
	const size, n = 128 << 10, 3 // together enough for GPUs to compress
	var local, remote []*block
	for i := range n {
		local, remote = append(local, s.gpuBlock(s.a, 0, size)), append(remote, s.gpuBlock(s.b, 1, size))
		s.loadBlock(remote[i])
	}
	for op := range 2 {
		for try, begun := 0, time.Now(); ; try++ {
			require.Less(s, time.Since(begun), patience, "transfers between GPUs keep failing")
			var from, to []Desc
			for i := range n {
				local[i].fill(rand.Uint64())
				remote[i].fill(rand.Uint64())
				seen := *remote[i]
				seen.md = seen.seen
				from, to = append(from, local[i].desc(0, size)), append(to, seen.desc(0, size))
			}
			if s.movePieces(op, from, to) {
				break
			}
			s.renewBlocks(local, remote)
		}
		for i := range n {
			pattern.Same(s, local[i].bytes(), remote[i].bytes(), "success, and the bytes differ")
		}
	}
	for i := range n {
		require.NoError(s, s.a.UnloadRemote(remote[i].seen.region))
		for _, b := range []*block{local[i], remote[i]} {
			if err := b.owner.Deregister(b.md.region); err != nil {
				s.failed("deregister", err)
			}
		}
	}
}

func (s *scenario) movePieces(op int, local, remote []Desc) bool {
	s.Helper()
	handle, slot, err := s.a.Prep(op, local, remote, "bob")
	if err != nil {
		s.failed("prepare", err)
		return false
	}
	x := &request{s.a, handle, slot}
	if _, err := x.Post(); err != nil {
		s.failed("post", err)
		s.release(x)
		return false
	}
	code := x.wait()
	s.ended(x, code, "")
	return code == done
}

// renewBlocks registers all memory again, as an application may after an error.
func (s *scenario) renewBlocks(local, remote []*block) {
	s.Helper()
	for i := range local {
		require.NoError(s, s.a.UnloadRemote(remote[i].seen.region))
		for _, b := range []*block{local[i], remote[i]} {
			if err := b.owner.Deregister(b.md.region); err != nil {
				s.failed("deregister", err)
			}
			s.enterBlock(b)
		}
		s.loadBlock(remote[i])
	}
}

func (s *scenario) gpuBlock(a *agent, dev, n int) *block {
	s.Helper()
	b := &block{owner: a, gpus: s.gpus, dev: dev, n: n, mem: region.VRAM, addr: s.gpus.Alloc(dev, cuda.Device, uint64(n))}
	s.Cleanup(func() { s.gpus.Free(dev, cuda.Device, b.addr) })
	s.enterBlock(b)
	return b
}

func (s *scenario) enterBlock(b *block) {
	s.Helper()
	s.attempt("register", func() error {
		id, err := b.owner.Register(b.addr, uint64(b.n), uint64(b.dev), region.VRAM, nil)
		b.md = &metaObject{region: id}
		return err
	})
}

func (s *scenario) loadBlock(b *block) {
	s.Helper()
	s.attempt("load metadata", func() error {
		blob, err := b.owner.RegionBlob(b.md.region)
		if err != nil {
			return err
		}
		id, err := s.a.LoadRemote("bob", b.addr, uint64(b.n), uint64(b.dev), region.VRAM, blob)
		b.seen = &metaObject{region: id}
		return err
	})
}
