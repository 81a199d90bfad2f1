package engine

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"unsafe"

	"gorail/backend/region"
	"gorail/internal/pattern"
	"gorail/internal/subprocess"
	"gorail/test/cuda"
	"gorail/test/hostmem"
)

// envRemapOwner is set in processes that serve a RemapOwner.
const envRemapOwner = "GORAIL_TEST_REMAP_OWNER"

// maybeOwner serves commands and exits, in such a process.
func maybeOwner() {
	if os.Getenv(envRemapOwner) == "" {
		return
	}
	if err := subprocess.Serve("RemapOwner", &RemapOwner{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(0)
}

// strictTB is the TB of helpers in such a process: a failure ends it. End runs the cleanups.
type strictTB struct {
	testing.TB
	cleanups []func()
}

func (*strictTB) Helper()                           {}
func (*strictTB) Name() string                      { return "owner" }
func (*strictTB) Failed() bool                      { return false }
func (*strictTB) Errorf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (*strictTB) FailNow()                          { panic("the owner of the memory failed") }
func (s *strictTB) Cleanup(f func())                { s.cleanups = append(s.cleanups, f) }
func (s *strictTB) end() {
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		s.cleanups[i]()
	}
}

// remapKinds are the pieces of an owner's memory. VMM: by the number of handles; cudaMalloc: 0 handles on a GPU; else of the host.
var remapKinds = []struct {
	name    string
	gpu     int // -1: shared memory of the host
	handles int
	steady  bool
}{{"VMM", 0, 2, false}, {"cudaMalloc", 1, 0, false}, {"shared memory", -1, 0, false}, {"steady VMM", 1, 1, true}, {"steady shared memory", -1, 0, true}}

const remapSize = 2 * cuda.Granule

// ownedPiece is a piece of memory in the owner's process.
type ownedPiece struct {
	at       uint64
	gpu      int
	handles  int
	host     *hostmem.Fixed
	region   uint64 // 0: not registered
	unmapped bool
}

// RemapOwner is the target of TestRemapSimulation, in a process of its own. One engine lives at a time.
type RemapOwner struct {
	mu     sync.Mutex
	t      *strictTB
	a      *agent
	app    *cuda.App
	lib    *cuda.Lib
	pieces []*ownedPiece
}

// The arguments and replies of the commands.
type (
	RemapBegin struct {
		CUDA   string
		Params []string
	}
	RemapMemory struct {
		Conn   []byte
		Addr   []uint64
		Blob   [][]byte
		Files  [][]uint64
		Failed string // the addresses were lost
	}
	RemapChange struct {
		Piece, Handles    int
		Unmap, Deregister bool
		Seed              uint64
	}
	RemapLook struct {
		Piece        int
		Off, N, Seed uint64
	}
	RemapLoad struct{ Conn []byte }
)

// Begin makes an engine and its memory.
func (o *RemapOwner) Begin(in RemapBegin, out *RemapMemory) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.t = &strictTB{}
	h := &harness{TB: o.t, host: true, log: &logLines{}, params: append(in.Params, "cuda_path", in.CUDA)}
	o.a, o.app, o.lib, o.pieces = h.agent("bob"), cuda.NewApp(o.t, in.CUDA), cuda.At(o.t, in.CUDA), nil
	out.Conn = o.a.Conn()
	for i, k := range remapKinds {
		p := &ownedPiece{gpu: k.gpu, handles: k.handles}
		switch {
		case k.gpu < 0:
			var err error
			if p.host, err = hostmem.NewFixed(i, remapSize); err != nil {
				return err
			}
			p.at = uint64(p.host.At)
		case k.handles > 0:
			p.at = o.app.VMM(k.gpu, k.handles, remapSize/uint64(k.handles), true)
		default:
			p.at = o.app.Alloc(k.gpu, cuda.Device, remapSize)
		}
		o.pieces = append(o.pieces, p)
		blob, err := o.register(p)
		if err != nil {
			return err
		}
		out.Addr, out.Blob, out.Files = append(out.Addr, p.at), append(out.Blob, blob), append(out.Files, o.files(p))
	}
	return nil
}

func (o *RemapOwner) register(p *ownedPiece) (blob []byte, err error) {
	mem := int32(0)
	if p.gpu >= 0 {
		mem = region.VRAM
	}
	if p.region, err = o.a.Register(p.at, remapSize, uint64(max(0, p.gpu)), mem, nil); err != nil {
		return nil, err
	}
	return o.a.RegionBlob(p.region)
}

func (o *RemapOwner) files(p *ownedPiece) []uint64 {
	if p.host != nil {
		return []uint64{p.host.Inode}
	}
	return o.lib.Behind(p.at, remapSize)
}

// Load loads the initiator.
func (o *RemapOwner) Load(in RemapLoad, _ *bool) error { return o.a.LoadConn("alice", in.Conn) }

// Away takes memory away: deregistered, unmapped, or both.
func (o *RemapOwner) Away(in RemapChange, _ *bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.pieces[in.Piece]
	if in.Deregister {
		if err := o.a.Deregister(p.region); err != nil {
			return err
		}
		p.region = 0
	}
	if !in.Unmap {
		return nil
	}
	p.unmapped = true
	switch {
	case p.host != nil:
		return p.host.Unmap()
	case p.handles > 0:
		o.app.UnmapVMM(p.gpu, p.handles, remapSize/uint64(p.handles), p.at)
	default:
		o.app.Free(p.gpu, cuda.Device, p.at)
	}
	return nil
}

// Back puts memory back, with other bytes, and other memory if it was unmapped.
func (o *RemapOwner) Back(in RemapChange, out *RemapMemory) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.pieces[in.Piece]
	if p.unmapped {
		switch {
		case p.host != nil:
			if err := p.host.Map(); err != nil {
				return err
			}
		case p.handles > 0:
			p.handles = in.Handles
			o.app.MapVMM(p.gpu, p.handles, remapSize/uint64(p.handles), p.at)
		default:
			if at := o.app.Alloc(p.gpu, cuda.Device, remapSize); at != p.at {
				o.app.Free(p.gpu, cuda.Device, at)
				out.Failed = "the driver gives another address"
				return nil
			}
		}
		p.unmapped = false
	}
	b := make([]byte, remapSize)
	pattern.Fill(b, in.Seed, 0)
	if p.host != nil {
		copy(p.host.Bytes(), b)
	} else {
		o.app.Write(p.gpu, p.at, b)
	}
	if p.region == 0 {
		if _, err := o.register(p); err != nil {
			return err
		}
	}
	out.Files = [][]uint64{o.files(p)}
	return nil
}

// Diff compares a range with the beginning of a pattern; -1: it is equal.
func (o *RemapOwner) Diff(in RemapLook, out *int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.pieces[in.Piece]
	if p.host != nil {
		*out = pattern.Diff(p.host.Bytes()[in.Off:in.Off+in.N], in.Seed, 0)
	} else {
		*out = pattern.Diff(o.app.Read(p.gpu, p.at+in.Off, in.N), in.Seed, 0)
	}
	return nil
}

// End closes the engine and frees the memory.
func (o *RemapOwner) End(_ bool, _ *bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.a.Close(); err != nil {
		return err
	}
	for _, p := range o.pieces {
		switch {
		case p.host != nil && !p.unmapped:
			if err := p.host.Unmap(); err != nil {
				return err
			}
		case p.host == nil && p.handles > 0 && !p.unmapped:
			o.app.FreeVMM(p.gpu, p.handles, remapSize/uint64(p.handles), p.at)
		case p.host == nil && !p.unmapped:
			o.app.Free(p.gpu, cuda.Device, p.at)
		}
	}
	o.t.end()
	return nil
}

// place is an address as a descriptor has it.
func place(at uint64, off, n uint64, gpu int, md *metaObject) Desc {
	return Desc{Addr: at + off, Len: n, Dev: uint64(max(0, gpu)), MD: unsafe.Pointer(md)}
}
