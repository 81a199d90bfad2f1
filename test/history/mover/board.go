package mover

import (
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/test/history/actor"
)

// Words of a piece on the board.
const (
	wordGeneration = iota
	wordClosing    // not 0: transfers in flight shall end, and none shall be posted
	wordFiles      // their number, then their inodes
	wordBoxes      = wordFiles + 1 + mostFiles
	wordsOfBox     = 5
	mostFiles      = 4
	mostAgents     = 8
	wordsOfPiece   = wordBoxes + mostAgents*wordsOfBox
)

// Words of a box. The operation is written last, and is 0 when the owner has looked.
const (
	boxOp = iota
	boxGeneration
	boxOffset
	boxLength
	boxBusy // transfers in flight, or released a moment ago
)

// Board is what an agent shows to all processes.
type Board struct{ b []byte }

func boardSize() int64 { return int64(len(kinds) * wordsOfPiece * 8) }

// NewBoard makes the file of a board.
func NewBoard() (*os.File, error) {
	fd, err := unix.MemfdCreate("board", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "board")
	return f, f.Truncate(boardSize())
}

// BoardPath is the path at which other processes open it.
func BoardPath(f *os.File) string { return actor.ArenaPath(f) }

// OpenBoard maps a board. Close unmaps it.
func OpenBoard(path string) (*Board, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, int(boardSize()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return &Board{b}, os.NewSyscallError("mmap", err)
}

// Close unmaps the board.
func (b *Board) Close() error { return unix.Munmap(b.b) }

func (b *Board) word(piece, i int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&b.b[(piece*wordsOfPiece+i)*8]))
}

// generation is that of the bytes which a piece has, or had last.
func (b *Board) generation(piece int) *atomic.Uint64 { return b.word(piece, wordGeneration) }

// setFiles names the files that are the memory of a piece now.
func (b *Board) setFiles(piece int, inodes []uint64) {
	b.word(piece, wordFiles).Store(0)
	for i, inode := range inodes[:min(len(inodes), mostFiles)] {
		b.word(piece, wordFiles+1+i).Store(inode)
	}
	b.word(piece, wordFiles).Store(uint64(min(len(inodes), mostFiles)))
}

// Files are the files that are the memory of an agent. Real GPUs have none.
func (b *Board) Files() (inodes []uint64) {
	for p := range kinds {
		for i := range b.word(p, wordFiles).Load() {
			inodes = append(inodes, b.word(p, wordFiles+1+int(i)).Load())
		}
	}
	return inodes
}

// closing says that the owner of a GPU is about to unmap a piece.
func (b *Board) closing(piece int) *atomic.Uint64 { return b.word(piece, wordClosing) }

// busy reports whether somebody's transfers use a piece.
func (b *Board) busy(piece int) bool {
	for i := range mostAgents {
		if b.box(piece, i, boxBusy).Load() != 0 {
			return true
		}
	}
	return false
}

// box is a word of an initiator's box.
func (b *Board) box(piece, initiator, i int) *atomic.Uint64 {
	return b.word(piece, wordBoxes+initiator*wordsOfBox+i)
}

func pack(life int, op uint64) uint64 { return uint64(life)<<40 | op }

func unpack(w uint64) (life int, op uint64) { return int(w >> 40), w & (1<<40 - 1) }
