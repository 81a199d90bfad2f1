package nixlapi

// Mem is nixl_capi_mem_type_t.
type Mem int

// The types of host and GPU memory. The C API has more.
const (
	DRAM Mem = 0
	VRAM Mem = 1
)

// Desc is a range of memory with the layout of gn_desc.
type Desc struct {
	Addr uint64
	Len  uint64
	Dev  uint64
}

// Op is nixl_capi_xfer_op_t.
type Op int

// The two directions, seen from the initiator.
const (
	Read  Op = 0
	Write Op = 1
)

func (o Op) String() string { return [...]string{"READ", "WRITE"}[o] }

// Sync is nixl_capi_thread_sync_t.
type Sync int

// The sync modes of an agent.
const (
	SyncNone   Sync = 0
	SyncStrict Sync = 1
	SyncRW     Sync = 2
)

// Config is nixl_capi_agent_config_t.
type Config struct {
	ProgThread  bool   // NIXL's progress thread
	ProgDelayUs uint64 // microseconds between its rounds
	Sync        Sync
	ListenPort  int // 0: no listener thread
	Telemetry   bool
}

// Notif is one received notification.
type Notif struct {
	From string
	Msg  []byte
}
