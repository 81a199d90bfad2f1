package staging

import (
	"errors"
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

// known says whether there is room, if that need not be asked of the driver.
func (p *packRoom) known(bytes uint64) (is bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes >= bytes {
		return true, nil
	}
	return p.err != nil && (p.again.IsZero() || time.Now().Before(p.again)), p.err
}

// asked notes the driver's answer.
func (p *packRoom) asked(bytes uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.again = err, time.Time{}
	if err == nil {
		p.bytes = max(p.bytes, bytes)
	} else if !gpu.Is(err, gpu.NoPack) && !gpu.Is(err, gpu.Lost) {
		p.again = time.Now().Add(noRoomFor)
	}
}

var errEngines = errors.New("with option gpu_copy=engine no kernels run, and copy engines do not compress")

// PackRoom makes memory on the GPU for chunks of so many bytes, which it keeps: twice as many, once for all peers. It asks the driver at first
// use; an error holds, but for lack of memory. While the driver translates the kernels, it waits, for a third of the patience: a peer that waits for its
// bounce buffers then still gets them, and its chunks go in clear. Other errors are those of make. Implements cuMemAlloc, cuModuleLoadDataEx.
func (c *Copier) PackRoom(device int, bytes uint64, stop <-chan struct{}) error {
	if c.how == gpu.Engine {
		return errEngines
	}
	l := streamKey{device, gpu.ToHost}
	s, err := c.stream(l, stop)
	if err != nil {
		return err
	}
	if is, err := s.packs.known(bytes); is {
		return err
	}
	return c.make(makingKey{l, bytes}, stop, time.Duration(c.patience.Load()/3), func() error {
		if is, err := s.packs.known(bytes); is {
			return err
		}
		err := s.stream.PackRoom(bytes) //limit:staging_scratch
		if err != nil {
			err = fmt.Errorf("GPU %d: %w", device, err)
		}
		s.packs.asked(bytes, err)
		return err
	})
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
func (s *Side) packRoom(device int, peer string, stop <-chan struct{}) bool {
	if s.Packing.off() || s.slotSize(Host) < packLeast {
		return false
	}
	err := s.Copier.PackRoom(device, s.slotSize(Host), stop)
	if err == nil || errors.Is(err, gpu.Cancelled) {
		return err == nil
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
	case w.slot < packLeast:
		w.clear = "no: bounce buffers have less than 256 KiB (option stage_size at either end)"
	case !w.there.packs:
		w.clear = "no: the peer has compression=off, a version without it, or a GPU that does not compress"
	case !s.side.packRoom(int(g.LocalDev), s.t.Peer().Name, s.Stop()):
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
