package staging

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/gpu"
	"gorail/backend/region"
	"gorail/backend/transfer"
)

// GPUs pack chunks of floats before the chunks leave them, if both sides are GPU memory and go over bounce buffers in host memory: option
// compression. include/gr_pack.h has the form of a packed chunk; docs/compression.md says when it pays.

const (
	packLeast = 256 << 10 // bytes of a chunk: smaller ones take as long as the launches
	packAlign = 16        // of a packed chunk's address, as gr_pack.h
)

// Packing says whether chunks are packed, and counts the bytes of those that this side has packed.
type Packing struct {
	Mode     string        // option compression: "off" (or ""), "auto", "on"
	from, to atomic.Uint64 // bytes in clear, and what they became
	logged   sync.Map      // GPUs that do not pack, which the log says once
}

func (p *Packing) off() bool { return p.Mode == "" || p.Mode == "off" }

// packRoom is a stream's memory for packing.
type packRoom struct {
	mu    sync.Mutex
	bytes uint64    // that there is room for
	err   error     // why there is no room,
	again time.Time // and when to try again; zero: never
}

// noRoomFor is how long a GPU's lack of memory holds.
const noRoomFor = 10 * time.Second

// PackRoom makes memory on the GPU for chunks of so many bytes, which it keeps: twice as many, once for all peers. It asks the driver at first
// use; an error holds, but for lack of memory. Implements cuMemAlloc, cuModuleLoadDataEx.
func (c *Copier) PackRoom(device int, bytes uint64) error {
	s, err := c.stream(streamKey{device, gpu.ToHost})
	if err != nil {
		return err
	}
	p := &s.packs
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes >= bytes {
		return nil
	}
	if p.err != nil && (p.again.IsZero() || time.Now().Before(p.again)) {
		return p.err
	}
	if p.err = s.stream.PackRoom(bytes); p.err == nil { //limit:staging_scratch
		p.bytes, p.again = bytes, time.Time{}
		return nil
	}
	p.err = fmt.Errorf("GPU %d: %w", device, p.err)
	if !gpu.Is(p.err, gpu.NoPack) && !gpu.Is(p.err, gpu.Lost) {
		p.again = time.Now().Add(noRoomFor)
	}
	return p.err
}

// Pack packs the pieces, all of one GPU, into the ring, which is in host memory, from address at. Returns the bytes of the packed chunk. 0: they
// would not get fewer, and the ring has them in clear. Otherwise it works like Copy.
func (c *Copier) Pack(r *Ring, at uint64, device int, pieces []Piece, ends Ends) (uint64, error) {
	return c.packed(r, gpu.Work{Write: true, Pack: gpu.Packed, Slot: at}, device, pieces, ends)
}

// Unpack copies a packed chunk of so many bytes in the ring to the pieces. The error is gpu.BadPack if that is no packed chunk; the pieces then
// have any bytes. Otherwise it works like Copy.
func (c *Copier) Unpack(r *Ring, at, packed uint64, device int, pieces []Piece, ends Ends) error {
	_, err := c.packed(r, gpu.Work{Pack: gpu.Unpacked, Slot: at, Packed: uint32(packed)}, device, pieces, ends)
	return err
}

func (c *Copier) packed(r *Ring, w gpu.Work, device int, pieces []Piece, ends Ends) (uint64, error) {
	return c.run(streamKey{device, gpu.ToHost}, &r.copies, len(pieces), w, false, ends, func(ops []gpu.Op) {
		for i, p := range pieces {
			ops[i] = gpu.Op{Local: p.Addr, Len: p.Len}
		}
	})
}

// pack is Copier.Pack, and counts.
func (s *Side) pack(r *Ring, at uint64, device int, pieces []Piece, ends Ends) (uint64, error) {
	packed, err := s.Copier.Pack(r, at, device, pieces, ends)
	if packed > 0 {
		for _, p := range pieces {
			s.Packing.from.Add(p.Len)
		}
		s.Packing.to.Add(packed)
	}
	return packed, err
}

// packRoom reports whether a GPU packs chunks of a slot of ours. The log says once why not.
func (s *Side) packRoom(device int, peer string) bool {
	if s.Packing.off() {
		return false
	}
	err := s.Copier.PackRoom(device, s.slotSize(Host))
	if err == nil {
		return true
	}
	if _, logged := s.Packing.logged.LoadOrStore(device, true); !logged {
		s.Log.Info("this GPU compresses nothing: its chunks go in clear", "option", "compression", "gpu", device, "peer", peer, "err", err)
	}
	return false
}

// packing decides whether a group's chunks may be packed.
func (s *run) packing(g *group, w *ringPair) {
	switch {
	case s.side.Packing.off():
		w.clear = "no: option compression is off"
	case w.here == nil || w.there == nil || w.there.region.Mem == region.VRAM || !g.GPUs():
		w.clear = "no: one side only is GPU memory that goes through host memory"
	case !w.there.packs:
		w.clear = "no: the peer has compression=off, a version without it, or a GPU that does not compress"
	case !s.side.packRoom(int(g.LocalDev), s.t.Peer().Name):
		w.clear = "no: this GPU does not compress"
	default:
		w.pace = s.requests.pace(paceKey{g.LocalDev, g.RemoteDev, s.t.Op() == transfer.Read})
	}
}

// compressed says for the log whether the GPUs compress.
func (w *ringPair) compressed() string {
	switch {
	case w.pace == nil:
		return w.clear
	case w.pace.always:
		return "by the GPUs"
	}
	return "by the GPUs, while that is faster"
}

// pace returns the pace of a pair of GPUs.
func (a *Requests) pace(k paceKey) *pace {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.paces[k]
	if p == nil {
		p = &pace{always: a.side.Packing.Mode == "on"}
		a.paces[k] = p
	}
	return p
}
