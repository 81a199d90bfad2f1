package actor

import (
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/internal/pattern"
	"gorail/nixlapi"
	"gorail/test/history"
)

// Groups is how many lives of an initiator have a region of their own at a target. A region is taken back when the
// life that used it has ended, before the next but one begins.
const Groups = 2

// sizes are those of the slots: one message, one batch, several, several chunks and a part of one.
var sizes = []int{4 << 10, 64 << 10, 1 << 20, 5<<20 + 4321}

const (
	header = 256 // bytes of a region in front of its arena: generation, then the number of the last WRITE of each slot
	align  = 4096
)

func roundUp(n int) int { return (n + align - 1) / align * align }

// half is the room of one direction's slots.
func half() (n int) {
	for _, s := range sizes {
		n += roundUp(s)
	}
	return n
}

// cut returns the slot of each size in the memory of one direction.
func cut(b []byte) (slots [][]byte) {
	for _, s := range sizes {
		slots = append(slots, b[:s:s])
		b = b[roundUp(s):]
	}
	return slots
}

// arena is the memory of a target that its initiators map, too.
type arena struct {
	b       []byte
	regions int
	moved   uint64 // what an address here lacks to be one of the target's process
}

// ArenaSize returns the size of the arena of one of n agents.
func ArenaSize(n int) int64 { return int64(roundUp(n*Groups*header) + n*Groups*2*half()) }

// NewArena makes the memory of a target, which lives as long as the file. dir: the folder of the file, for processes that see
// another /proc; "": no folder.
func NewArena(dir string, agents int) (*os.File, error) {
	if dir != "" {
		f, err := os.CreateTemp(dir, "arena")
		if err != nil {
			return nil, err
		}
		return f, f.Truncate(ArenaSize(agents))
	}
	fd, err := unix.MemfdCreate("arena", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "arena")
	return f, f.Truncate(ArenaSize(agents))
}

// ArenaPath is the path at which other processes open it.
func ArenaPath(f *os.File) string {
	if filepath.IsAbs(f.Name()) {
		return f.Name()
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd())
}

func mapArena(path string, agents int) (*arena, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, int(ArenaSize(agents)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return &arena{b: b, regions: agents * Groups}, os.NewSyscallError("mmap", err)
}

func (m *arena) word(region, i int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&m.b[region*header+8*i]))
}

// generation is odd while the region is not registered.
func (m *arena) generation(region int) *atomic.Uint64 { return m.word(region, 0) }

// latest is the WRITE that was posted last to a slot: the life, and the number of the call; 0: none, or seen.
func (m *arena) latest(region, slot int) *atomic.Uint64 { return m.word(region, 1+slot) }

func pack(life int, op uint64) uint64 { return uint64(life)<<40 | op }

func unpack(w uint64) (life int, op uint64) { return int(w >> 40), w & (1<<40 - 1) }

// region is the registered memory of a region: slots of WRITEs, then of READs.
func (m *arena) region(i int) []byte {
	at := roundUp(m.regions*header) + i*2*half()
	return m.b[at : at+2*half() : at+2*half()]
}

func (m *arena) writes(i int) [][]byte { return cut(m.region(i)[:half()]) }
func (m *arena) reads(i int) [][]byte  { return cut(m.region(i)[half():]) }

// seed of the pattern of something.
func seed(parts ...any) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, parts...)
	return h.Sum64()
}

func writeSeed(by history.Engine, op uint64) uint64 { return seed("write", by, op) }

func readSeed(by history.Engine, region, slot int, generation uint64) uint64 {
	return seed("read", by, " ", region, " ", slot, " ", generation)
}

// The canaries differ, so that a late copy of one place shows at the other.
var localCanary, remoteCanary = seed("local"), seed("remote")

func fill(b []byte, seed uint64) { pattern.Fill(b, seed, 0) }

// wrong is 1 + the position of the first byte that is not the pattern's; 0: none.
func wrong(b []byte, seed uint64) int64 { return pattern.Diff(b, seed, 0) + 1 }

func desc(b []byte) nixlapi.Desc {
	return nixlapi.Desc{Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), Len: uint64(len(b))}
}

// split cuts memory into n descriptors.
func split(d nixlapi.Desc, n int) []nixlapi.Desc {
	out, size := []nixlapi.Desc{}, d.Len/uint64(n)
	for i := range uint64(n) {
		out = append(out, nixlapi.Desc{Addr: d.Addr + i*size, Len: size})
	}
	out[n-1].Len = d.Len - uint64(n-1)*size
	return out
}
