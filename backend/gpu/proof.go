package gpu

import (
	"crypto/rand"
	"encoding/binary"
	"math/big"
	"os"
)

// An IPC handle holds its owner's process number, as the owner sees itself. The driver refuses a handle with the caller's own
// number (CUDA_ERROR_INVALID_CONTEXT): a process cannot open its own handles. Processes of different pid namespaces may have
// equal numbers. Then the importer replaces the number. NVIDIA does not document the layout of handles, so the owner proves to
// the importer that such a handle opens the right memory. docs/gpu.md, "Equal process numbers".

const (
	pidAt      = 8        // offset of the number in a handle
	enough     = 4        // equal samples; the application may write to the others meanwhile
	proofBlock = 2 << 20  // memory for the owner's words; a block of the driver's, so it shares its handle with no other memory
	noPID      = 0x400000 // process numbers are smaller: PID_MAX_LIMIT
)

// ownPID is this process's number, as it sees itself. Tests change it.
var ownPID = os.Getpid

func pidOf(handle *[64]byte) uint32 { return binary.NativeEndian.Uint32(handle[pidAt:]) }

// Prove writes a random word to memory of our own, and makes a proof for a peer that maps m. It reads some bytes of m. The
// first call for a GPU allocates 2 MiB. Implements cuMemAlloc, cuIpcGetMemHandle, cuMemcpyHtoDAsync and cuMemcpyAsync.
func (d *Driver) Prove(m Mem) (Proof, error) {
	var out Proof
	if m.how != byIPC {
		return out, unshareable(&m, "proof", BadShare)
	}
	if err := d.Same(m.Base, m.Buffer); err != nil {
		return out, err
	}
	d.proofs.mu.Lock()
	b, err := d.block(m.Device)
	at := uint64(0)
	if err == nil {
		at = b.next
		b.next = (b.next + proofWord) % proofBlock
	}
	d.proofs.mu.Unlock()
	if err != nil {
		return out, err
	}
	p := out.fields()
	p.at = at
	_, _ = rand.Read(p.word[:])
	if err := d.share(&b.mem, &p.own); err != nil {
		return out, err
	}
	if err := d.bytes(m.Device, true, b.mem.Base+at, p.word[:]); err != nil {
		return out, err
	}
	for i := range p.sample {
		s := &p.sample[i]
		if s.at = offset(m.Size, i); s.at+proofWord > m.Size {
			continue
		}
		if err := d.bytes(m.Device, false, m.Base+s.at, s.word[:]); err != nil {
			return out, err
		}
	}
	return out, nil
}

// offset chooses where to read the memory: both ends, and between them at random.
func offset(size uint64, i int) uint64 {
	if size <= proofWord || i == 0 {
		return 0
	}
	last := size - proofWord
	if i == 1 {
		return last
	}
	n, err := rand.Int(rand.Reader, new(big.Int).SetUint64(last+1))
	if err != nil {
		return 0
	}
	return n.Uint64()
}

// block returns the memory for words on a GPU. With proofs.mu.
func (d *Driver) block(device int) (*block, error) {
	if b := d.proofs.blocks[device]; b != nil {
		return b, nil
	}
	at, err := d.VRAM(device, proofBlock)
	if err != nil {
		return nil, err
	}
	m, err := d.what(at, proofBlock)
	if err != nil {
		_ = d.FreeVRAM(device, at)
		return nil, err
	}
	if d.proofs.blocks == nil {
		d.proofs.blocks = map[int]*block{}
	}
	b := &block{mem: m.Mem}
	d.proofs.blocks[device] = b
	return b, nil
}

// free frees the memory of all words.
func (p *proofs) free(d *Driver) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for device, b := range p.blocks {
		_ = d.FreeVRAM(device, b.mem.Base)
	}
	p.blocks, p.handles = nil, nil
}

// openReplaced opens a handle that the driver takes for one of this process, with another process number in it. Within the
// context, under mu.
func (m *mapping) openReplaced(theirs int) error {
	d, s := m.d, &m.share
	const call = "cuIpcOpenMemHandle"
	refusal := func(why Why) error {
		return &Fault{Why: why, Result: int(invalidContext), Call: call, Text: d.errorName(invalidContext)}
	}
	if pidOf(&s.handle) != uint32(ownPID()) {
		return refusal(Layout)
	}
	p := m.proof
	if p == nil {
		return refusal(SamePID)
	}
	if d.proofs.ours(&s.handle) || d.proofs.ours(&p.own.handle) {
		return &Fault{Why: BadShare, Call: "handle of this process's own memory"}
	}
	if !p.valid(s) {
		return &Fault{Why: BadShare, Call: "proof"}
	}
	at, r := d.ipcOpen(s.replaced(), s.size)
	switch {
	case r == invalidValue && theirs < 0:
		return m.hidden(r, invalidValue, call, theirs)
	case r != ok:
		return &Fault{Why: Layout, Result: int(r), Call: call, Text: d.errorName(r)}
	}
	m.at = at
	if err := m.checkSize(); err != nil {
		return err
	}
	return m.check(p)
}

// replaced is the handle with another number, which is no process's and not that of another owner.
func (s *shared) replaced() *[64]byte {
	h := s.handle
	binary.NativeEndian.PutUint32(h[pidAt:], noPID|binary.NativeEndian.Uint32(s.owner[:])&(1<<30-1))
	return &h
}

// valid reports that a proof comes from the owner of a share, and fits the share.
func (p *proof) valid(s *shared) bool {
	own := &p.own
	if !own.valid() || own.how != byIPC || own.owner != s.owner || own.gpu != s.gpu || pidOf(&own.handle) != pidOf(&s.handle) {
		return false
	}
	if own.size < proofWord || p.at > own.size-proofWord {
		return false
	}
	for i := range p.sample {
		if s.size >= proofWord && p.sample[i].at > s.size-proofWord {
			return false
		}
	}
	return true
}

// check compares the owner's word, and the samples of the mapped memory. Within the context.
func (m *mapping) check(p *proof) error {
	d := m.d
	at, r := d.ipcOpen(p.own.replaced(), p.own.size)
	if r != ok {
		return &Fault{Why: Layout, Result: int(r), Call: "cuIpcOpenMemHandle", Text: d.errorName(r)}
	}
	defer d.ipcClose(at)
	same, err := m.equal(at, p.at, &p.word)
	switch {
	case err != nil:
		return err
	case !same:
		return &Fault{Why: Unproved, Call: "the owner's word"}
	}
	if m.share.size < proofWord {
		return nil
	}
	matches := 0
	for i := range p.sample {
		if same, err = m.equal(m.at, p.sample[i].at, &p.sample[i].word); err != nil {
			return err
		} else if same {
			matches++
		}
	}
	if matches < enough {
		return &Fault{Why: Unproved, Call: "bytes of the memory"}
	}
	return nil
}

// equal compares a word of mapped memory. The driver says where the memory ends.
func (m *mapping) equal(base, offset uint64, want *[proofWord]byte) (bool, error) {
	size, r := m.d.attr(attrSize, base)
	if r != ok {
		return false, m.d.failed(r, "cuPointerGetAttribute")
	}
	if size < proofWord || offset > size-proofWord {
		return false, nil
	}
	var got [proofWord]byte
	if err := m.d.bytes(m.device, false, base+offset, got[:]); err != nil {
		return false, err
	}
	return got == *want, nil
}
