package region

import (
	"fmt"

	"gorail/backend/errcode"
	"gorail/backend/wire"
)

// memNames maps nixl_mem_t to the name of the memory type.
var memNames = [...]string{"DRAM", VRAM: "VRAM", 2: "BLK", 3: "OBJ", 4: "FILE"}

func MemName(mem int32) string {
	if mem >= 0 && int(mem) < len(memNames) {
		return memNames[mem]
	}
	return fmt.Sprintf("type %d", mem)
}

// checkRange refuses ranges that cannot be memory of this process. An agent with this backend may register any memory type with
// it. The address of FILE memory is an offset in a file, and peers would write to that address.
func checkRange(rng wire.Range) error {
	switch {
	case rng.Mem != DRAM && rng.Mem != VRAM:
		return errcode.MemoryKind.Errorf("register %s memory %#x+%d: GORAIL moves DRAM and VRAM alone; register it with a storage backend",
			MemName(rng.Mem), rng.Addr, rng.Len)
	case rng.Addr+rng.Len < rng.Addr:
		return errcode.BadRange.Errorf("register %s %#x+%d: the range runs past the end of the address space", MemName(rng.Mem), rng.Addr, rng.Len)
	case rng.Addr == 0 && rng.Len > 0:
		return errcode.BadRange.Errorf("register %s %#x+%d: there is no memory at address 0; was the buffer allocated?",
			MemName(rng.Mem), rng.Addr, rng.Len)
	}
	return nil
}

// AdviseRefused adds NIXL's reaction to a refused registration. The agent keeps an empty list of the memory type, and no peer
// can load its metadata.
func (m *Registry) AdviseRefused(mem int32, err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for rng := range m.local {
		if rng.Mem == mem {
			return err
		}
	}
	return fmt.Errorf("%w (NIXL's agent now has an empty list of %s memory, and peers refuse its metadata until a registration of such memory with "+
		"this backend succeeds, or an empty list of it is deregistered)", err, MemName(mem))
}

// Refused is why no rail has a local region; nil: a rail has it, or there is no such region.
func (m *Registry) Refused(id uint64) error {
	if r := m.Regions.Get(id); r != nil && r.Peer == nil {
		return m.Regions.Refusal(r)
	}
	return nil
}
