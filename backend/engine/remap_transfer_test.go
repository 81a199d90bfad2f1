package engine

import (
	"time"

	"gorail/backend/errcode"
	"gorail/backend/transfer"
	"gorail/internal/pattern"
)

// remapShape is a transfer: READs are of the first half of a piece, WRITEs to the other.
type remapShape struct {
	op, near, descs int
	off, n          uint64
}

func (s *remapSimulation) shape(p *remapPiece) remapShape {
	x := remapShape{op: s.rnd.IntN(2), near: s.rnd.IntN(3), descs: []int{1, 1, 5, 40}[s.rnd.IntN(4)], n: []uint64{100, 4 << 10, 70_001, 512 << 10}[s.rnd.IntN(4)]}
	x.off = s.rnd.Uint64N(remapSize/2 - x.n + 1)
	if x.op == transfer.Write {
		x.off += remapSize / 2
	}
	return x
}

// transfer moves bytes, and judges the end. meanwhile, if not nil, happens after the post.
func (s *remapSimulation) transfer(p *remapPiece, x remapShape, meanwhile func()) {
	if p.asked {
		return
	}
	s.seq++
	name, bytes, was := remapKinds[p.number].name, s.seq, *p
	s.say("%d: %s of %d bytes at %d of %s, %d descriptors, near %d", s.seq, []string{transfer.Read: "READ", transfer.Write: "WRITE"}[x.op], x.n, x.off, name, x.descs, x.near)
	s.fillNear(x.near, bytes, x.n)
	began := time.Now()
	st, text := s.move(p, x, meanwhile)
	p.asked = p.away && st != done && time.Since(began) > 400*time.Millisecond
	s.say("  %v %s", errcode.Status(st), text)
	if st != done {
		if !was.changed && meanwhile == nil {
			s.finding("error", "transfer %d with %s, which has not changed since its last success: %v %s", bytes, name, errcode.Status(st), text)
		}
		return
	}
	s.good++
	switch {
	case was.away && meanwhile == nil && s.reusable(p):
		if x.op == transfer.Read && s.diffNear(x, was.content) < 0 {
			s.finding("old bytes", "READ %d has the bytes of %s, which was freed", bytes, name)
		}
	case was.away && meanwhile == nil:
		s.finding("old bytes", "transfer %d succeeded with %s, which is away", bytes, name)
	case p.away: // it went away meanwhile
		if x.op == transfer.Read && !was.away && s.diffNear(x, was.content) >= 0 {
			s.finding("other bytes", "READ %d of %s has bytes that are not its own", bytes, name)
		}
	case x.op == transfer.Read && s.diffNear(x, p.content) >= 0:
		s.finding("old bytes", "READ %d of %s has not the bytes that are there", bytes, name)
	case x.op == transfer.Write && order[int64](s, "Diff", RemapLook{Piece: p.number, Off: x.off, N: x.n, Seed: bytes}) >= 0:
		s.finding("old bytes", "WRITE %d is not in %s", bytes, name)
	default:
		p.changed = false
	}
}

// reusable reports whether the driver may have given the addresses of memory that is away to somebody else in the owner's process:
// then it is memory, with other bytes.
func (s *remapSimulation) reusable(p *remapPiece) bool {
	k := remapKinds[p.number]
	return p.unmapped && k.gpu >= 0 && k.handles == 0
}

// move prepares and posts a transfer and waits for its end.
func (s *remapSimulation) move(p *remapPiece, x remapShape, meanwhile func()) (st int, text string) {
	near, gpu := s.near[x.near], remapKinds[p.number].gpu
	var local, remote []Desc
	for i := range uint64(x.descs) {
		from, to := x.n*i/uint64(x.descs), x.n*(i+1)/uint64(x.descs)
		local, remote = append(local, near.desc(int(from), int(to-from))), append(remote, place(p.at, x.off+from, to-from, gpu, p.md))
	}
	h, slot, err := s.a.Prep(x.op, local, remote, "bob")
	if err != nil {
		return int(errcode.StatusOf(err)), err.Error()
	}
	r := &request{s.a, h, slot}
	defer r.release()
	if _, err := r.Post(); err != nil {
		return int(errcode.StatusOf(err)), err.Error()
	}
	if meanwhile != nil {
		meanwhile()
	}
	return r.wait(), ""
}

func (s *remapSimulation) fillNear(i int, seed, n uint64) {
	b := make([]byte, n)
	pattern.Fill(b, seed, 0)
	if near := s.near[i]; near.host != nil {
		copy(near.host.b, b)
	} else {
		near.gpus.Write(near.dev, near.addr, b)
	}
}

// diffNear compares what a READ has brought with a part of a pattern.
func (s *remapSimulation) diffNear(x remapShape, seed uint64) int64 {
	near := s.near[x.near]
	if near.host != nil {
		return pattern.Diff(near.host.b[:x.n], seed, x.off)
	}
	return pattern.Diff(near.gpus.Read(near.dev, near.addr, x.n), seed, x.off)
}
