package rank

import (
	"errors"
	"sync"

	"gorail/gorail/bench/cuda"
	"gorail/gorail/bench/memory"
	"gorail/gorail/measure"
	"gorail/nixlapi"
)

// Copy copies all bytes of this rank's tensors from other memory of this process to them, again and again: by memcpy, in so many threads, or by the
// driver from a GPU. It is what transfers could reach.
func (s *Server) Copy(in Args, out *Out) (err error) {
	defer s.mems[0].Hold()()
	kind, total := s.in.Memory, uint64(0)
	for _, b := range s.bytes {
		total += uint64(len(b))
	}
	other, err := memory.Alloc(kind, in.Peers[0].GPU, total)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.Free()) }()
	var all []cuda.Range
	at := other.Addr()
	for i, b := range s.bytes {
		n := uint64(len(b))
		all, at = append(all, cuda.Range{To: s.self.Bases[i], From: at, Size: n}), at+n
	}
	if kind == "vram" {
		return s.copyGPU(in, all, total, out)
	}
	var threads sync.WaitGroup
	done := make([]uint64, in.Threads)
	out.Began = measure.Now()
	for k := range done {
		var to, from []nixlapi.Desc
		for _, r := range all { // each thread has its part of each tensor
			a, b := uint64(k)*r.Size/uint64(in.Threads), uint64(k+1)*r.Size/uint64(in.Threads)
			to, from = append(to, nixlapi.Desc{Addr: r.To + a, Len: b - a}), append(from, nixlapi.Desc{Addr: r.From + a, Len: b - a})
			done[k] += b - a
		}
		threads.Go(func() { done[k] *= nixlapi.Copy(to, from, out.Began+in.Time) })
	}
	threads.Wait()
	out.Ended = measure.Now()
	for _, n := range done {
		out.Bytes += n
	}
	return nil
}

// copyGPU is Copy on GPUs.
func (s *Server) copyGPU(in Args, all []cuda.Range, total uint64, out *Out) error {
	d, err := cuda.Open()
	if err != nil {
		return err
	}
	g, err := d.GPU(s.in.GPU)
	if err != nil {
		return err
	}
	out.Began = measure.Now()
	times, err := g.Copy(in.Peers[0].GPU, all, func() bool { return measure.Now() >= out.Began+in.Time })
	out.Ended, out.Bytes = measure.Now(), times*total
	return err
}
