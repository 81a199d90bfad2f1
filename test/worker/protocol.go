package worker

import (
	"math/rand/v2"
	"time"

	"gorail/nixlapi"
	"gorail/test/hostmem"
)

// Layout describes many equal blocks of a buffer without a list.
type Layout struct {
	Off, Len uint64
	Stride   uint64 // between the starts of blocks; a Stride of Len makes them adjacent
	Count    int
	Shuffle  uint64 // not 0: seed of the blocks' order
}

// Span is one block.
func Span(off, n uint64) Layout { return Layout{Off: off, Len: n, Stride: n, Count: 1} }

// End is the offset behind the last block.
func (l Layout) End() uint64 { return l.Off + uint64(l.Count-1)*l.Stride + l.Len }

func (l Layout) order() func(int) uint64 {
	if l.Shuffle == 0 {
		return func(i int) uint64 { return l.Off + uint64(i)*l.Stride }
	}
	p := rand.New(rand.NewPCG(l.Shuffle, 0)).Perm(l.Count)
	return func(i int) uint64 { return l.Off + uint64(p[i])*l.Stride }
}

// Descs lists the blocks of a buffer that starts at base.
func (l Layout) Descs(base uint64) []nixlapi.Desc {
	at, out := l.order(), make([]nixlapi.Desc, l.Count)
	for i := range out {
		out[i] = nixlapi.Desc{Addr: base + at(i), Len: l.Len}
	}
	return out
}

// Descs lists the blocks.
func (s Side) Descs() []nixlapi.Desc {
	out := s.Layout.Descs(s.Base)
	for i := range out {
		out[i].Dev = s.Dev
	}
	for _, a := range s.Also {
		out = append(out, a.Descs()...)
	}
	return out
}

// Side is a layout in a buffer of either process.
type Side struct {
	Base uint64
	Layout
	Mem  nixlapi.Mem
	Dev  uint64
	Also []Side // of the same kind, appended to this one
}

// AgentConfig describes an agent and its only backend.
type AgentConfig struct {
	Name       string
	Backend    string // empty: none
	Params     map[string]string
	ProgThread bool
	ProgDelay  time.Duration
	Sync       nixlapi.Sync
	Concurrent bool // commands call the agent from any thread; requires Sync
}

// PostMode selects the notification of a post.
type PostMode int

// Post modes: the notification of the request, a message, none.
const (
	AsMade PostMode = iota
	WithNotif
	NoNotif
)

// LoopArgs requests N posts of one request, one after the other.
type LoopArgs struct {
	Agent, ID int
	N         int
	Timeout   time.Duration
	Prefix    string        // not empty: notification i is Prefix and i
	Times     bool          // return the time of every transfer and post
	Nap       time.Duration // sleep between polls of Beside (0: 100 us) and Turns (0: none)
	Beside    []int         // further requests: all are kept in flight, with sleeps between polls; excludes Prefix and Times
	Turns     []int         // further requests: posted in turn, one in flight at a time; excludes Prefix and Beside
}

// LoopResult has the results of a loop. Times are in nanoseconds.
type LoopResult struct {
	Done      int
	Status    nixlapi.Status // of the last transfer
	Lat, Post []int64
	Wall, CPU time.Duration
}

// Stats is the state of a worker process.
type Stats struct {
	RSSKiB  int64
	Threads int
	FDs     int
	Doubles int // descriptors of imitated GPU memory that has another descriptor
	CPU     time.Duration
	SigCgt  string
}

// The arguments and replies of the commands. net/rpc requires exported types.
type (
	Ref       struct{ Agent, ID int }
	AgentArgs struct{ Cfg AgentConfig }
	AgentOut  struct {
		ID, Thread int
		Err        *nixlapi.Error
	}
	AllocArgs struct {
		Size uint64
		Kind hostmem.Kind
		GPU  *GPUMem // nil: host memory
		Odd  int     // not 0: hostmem.Odds[Odd-1], with the pattern of Seed
		Seed uint64
	}
	AllocOut struct {
		ID   int
		Addr uint64
	}
	MemArgs struct {
		ID            int
		Off, N        uint64
		Seed, SeedOff uint64
		At, From      Layout
		Own           uint64 // seed of the bytes around the blocks
	}
	DiffOut struct{ At int64 }
	RegArgs struct {
		Agent int
		Sides []Side
		Meta  string // metaInfo; only for Register
	}
	ErrOut struct{ Err *nixlapi.Error }
	MDArgs struct {
		Agent int
		Blob  []byte
		Name  string
	}
	MDOut struct {
		Blob  []byte
		Name  string
		Known bool
		Err   *nixlapi.Error
	}
	XferArgs struct {
		Agent         int
		Op            nixlapi.Op
		Local, Remote Side
		Peer          string
		HasNotif      bool
		Notif         []byte
		LD, RD        int // prepared lists
		LI, RI        []int32
		NoMerge       bool
	}
	XferOut struct {
		ID      int
		Status  nixlapi.Status
		Took    time.Duration
		Us      int64
		Backend string
		Err     *nixlapi.Error
	}
	PostArgs struct {
		Agent, ID int
		Mode      PostMode
		Msg       []byte
	}
	WaitArgs struct {
		Agent, ID, N int
		Timeout      time.Duration
	}
	PollingArgs struct {
		Agent int
		On    bool
		Pause time.Duration
	}
	NotifArgs struct {
		Agent  int
		Peer   string
		Msg    []byte
		Count  int
		Prefix string
	}
	NotifOut struct {
		Notifs []nixlapi.Notif
		Err    *nixlapi.Error
	}
)

// VisitArgs requests N rounds: load a peer, run a transfer with a notification (if Transfer), send Alone notifications
// without a transfer, forget the peer.
type VisitArgs struct {
	Agent, N      int
	Blob          []byte // the peer's metadata
	Prefix        string
	Transfer      bool
	Op            nixlapi.Op
	Local, Remote Side
	Alone         int
	Timeout       time.Duration
}

// VisitOut has the number of accepted notifications.
type VisitOut struct {
	Accepted int
	Err      *nixlapi.Error
}

// GPUMem describes an allocation of GPU memory.
type GPUMem struct {
	Device  int
	Kind    int  // see GPU.Alloc
	Handles int  // VMM: number of handles; 0: Kind's default
	Fabric  bool // VMM: only with a handle type for NVLink between hosts
	Private bool // VMM: without a shareable handle type
	Host    bool // VMM: memory of the host, which Device reaches, too (EGM). It is registered as DRAM
}
