package measure

import (
	"fmt"
	"slices"
	"strings"
)

// Memories are the kinds of memory that agents register:
//
//	dram   private pages
//	memfd  a shared memory file (memfd_create, MAP_SHARED)
//	vram   memory of a GPU (cuMemAlloc)
//	vmm    memory of a GPU (cuMemCreate), with handles that can be shared within the host
//	fabric memory of a GPU (cuMemCreate), with handles for NVLink between hosts
var Memories = append([]string{"dram", "memfd"}, ofGPUs...)

var ofGPUs = []string{"vram", "vmm", "fabric"}

// OnGPU reports whether a kind of memory is a GPU's.
func OnGPU(kind string) bool { return slices.Contains(ofGPUs, kind) }

// ParseMemory returns the kind of a name, in any case: nixlbench writes DRAM and VRAM.
func ParseMemory(name string) (string, error) {
	kind := strings.ToLower(name)
	if !slices.Contains(Memories, kind) {
		return "", fmt.Errorf("no memory %q: want %s", name, strings.Join(Memories, ", "))
	}
	return kind, nil
}
