// Package option is the only table of GORAIL's options. The table feeds get_backend_options, the parsing of user values
// (parameters of createBackend, GORAIL_* variables), the errors, and docs/options.md.
//
// A parameter beats the environment, which beats the default. One exception: a parameter that equals the default letter
// for letter counts as not given. nixlbench and other callers hand all of get_backend_options back, and would otherwise
// override the environment. An empty value counts as not given, too.
package option

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"
)

// Options are the options of one engine. Parse makes them; all values are within their ranges.
type Options struct {
	Fabrics
	Deadlines
	Trust
	Limits
	Notifications
	Flow
	Libfabric
	Verbs
	TCP
	Host
	GPU
	Ports
	Logging
}

// Fabrics selects the rails and sets how memory is registered on them.
type Fabrics struct {
	Provider   []string // "auto", "sm", "verbs" and libfabric provider names, in order of preference
	Devices    []string // globs over device names; a leading '!' excludes; empty: all
	MaxRails   int
	RailShare  bool // among the engines of a host
	QPsPerRail int
	TCPThreads int    // 0: by the number of processors; see Threads
	MRMax      uint64 // bytes; 0: the fabric's own limit

	RemoteAccess Rights // of peers to registrations whose metaInfo names none
	SharedKeys   bool   // a registration shares the keys of one around it
}

// Deadlines are time limits.
type Deadlines struct {
	XferTimeout    time.Duration
	RailTimeout    time.Duration
	PeerTimeout    time.Duration
	ConnectTimeout time.Duration
	CancelTimeout  time.Duration
}

// Trust sets who may be a peer, and what a peer must prove.
type Trust struct {
	TLSCA           string // PEM files; empty: none
	TLSCert         string
	TLSKey          string
	TLSPeers        []string // patterns of certificates' names; empty: all
	SecretFile      string   // "": none
	RequireIdentity bool
	CertifiedNames  bool // peer_names=certified
	StrictNames     bool
	Encryption      bool // of what leaves the host
	TrustedRDMA     bool // rdma=trusted: rails that cannot encrypt may carry data all the same
}

// Limits are the resources that peers may take.
type Limits struct {
	MaxSessions   int
	MaxEndpoints  int    // of peers; 0, but in tests: by the process's descriptor limit
	StagingMemory uint64 // bytes; 0: by stage_size and the number of GPUs
}

// Notifications limits the queued notifications.
type Notifications struct {
	NotifQueue  uint64 // bytes a peer
	NotifMemory uint64 // bytes of all peers
}

// Flow sets how transfers are cut, how much is in flight, and how soon it is given up. Parse sets what was measured; tests change it.
type Flow struct {
	ChunkMin    uint64        // bytes. Descriptors above it are cut into chunks; no chunk is smaller if that can be avoided
	ChunkMax    uint64        // bytes. A fabric's own limit takes precedence
	WindowMin   uint64        // bytes in flight to a peer that a link is always allowed
	WindowMax   uint64        // the most bytes in flight to a peer on a link
	ReleaseWait time.Duration // how long the release of a request in flight waits for the request to drain
}

var flow = Flow{ChunkMin: 128 << 10, ChunkMax: 1 << 20, WindowMin: 256 << 10, WindowMax: 64 << 20, ReleaseWait: 50 * time.Millisecond}

// Libfabric sets how libfabric devices are opened.
type Libfabric struct {
	LibfabricPath string   // the argument of dlopen
	TrafficClass  string   // "": the fabric's own
	CXIAuthKey    []CXIKey // empty: libfabric's choice
	HMEM          string   // "auto", "on" or "off"
}

// Verbs sets how libibverbs devices are opened.
type Verbs struct {
	IbverbsPath string // the argument of dlopen
	IB          IB
}

// GPU sets how memory of GPUs is handled.
type GPU struct {
	CUDAPath  string // the argument of dlopen
	StageSize uint64 // bytes of a ring of bounce buffers
	GPUCopy   string // "auto", "kernel" or "engine"

	GPUMapping   bool   // of memory between processes
	IMEXChannels string // folder of device nodes
}

// Ports sets the ports that peers connect to, and which sources may connect.
type Ports struct {
	ControlPort    PortRange // zero: the system chooses
	DataPort       PortRange // zero: the system chooses
	ControlDevices []string  // globs over interface names; empty: those of the rails
}

// Logging sets what an engine logs and writes.
type Logging struct {
	Log       slog.Level
	LogFile   string // "": standard error
	LogJSON   bool   // log_format=json
	StatsFile string // "": no file

	StatsInterval time.Duration // 0: stats_file is written at the end only
	StatsSocket   string        // "auto", "off", or a folder
}

// Info describes one option.
type Info struct {
	Name    string // as a parameter of createBackend
	Env     string // as an environment variable
	Type    string
	Default string
	Range   string // the allowed values, in words
	Doc     string
	When    string // the case in which one sets it: the end of "set it when"
}

// TypePath is the Type of the options whose value names a file, a folder, a socket or a library of the host.
const TypePath = "path"

// NamesFile reports that a parameter's value makes the process open, write or load a file of the value's name. It is for tools that take
// parameters from other hosts. The default, and the words auto and off, name no file of the caller's choice.
func NamesFile(name, value string) bool {
	r := rowOf(name)
	return r.Type == TypePath && value != "" && value != r.Default && value != "auto" && value != "off"
}

// Known reports that a parameter belongs to an option, or to a backend whose name GORAIL can have.
func Known(name string) bool {
	return rowOf(name).Name != "" || slices.ContainsFunc(others(Alias{}), func(p aliasParam) bool { return p.name == name })
}

// Pair is an option's name and a value.
type Pair struct{ Name, Value string }

// ErrValue is wrapped by all errors of Parse.
var ErrValue = errors.New("bad option")

// Defaults returns all names and defaults in the table's order, for get_backend_options.
func Defaults() []Pair {
	pairs := make([]Pair, len(table))
	for i, r := range table {
		pairs[i] = Pair{r.Name, r.Default}
	}
	return pairs
}

// Parse makes the options of an engine from the parameters of createBackend and the environment (os.LookupEnv; nil:
// none). It returns the names of parameters outside the table, sorted; the caller decides whether these are an error.
// An error wraps ErrValue and names the option, the source of the value, the value, and the allowed values.
func Parse(params map[string]string, getenv func(string) (string, bool)) (Options, []string, error) {
	if getenv == nil {
		getenv = func(string) (string, bool) { return "", false }
	}
	o := Options{Flow: flow}
	given := maps.Clone(params)
	for _, r := range table {
		value, from := r.value(given, getenv)
		delete(given, r.Name)
		if err := r.set(&o, value); err != nil {
			return Options{}, nil, fmt.Errorf("%w: %s=%q%s: %w; write %s, for example %s=%s",
				ErrValue, r.Name, value, from, err, r.allowed(), r.Name, r.sample())
		}
	}
	if err := o.check(); err != nil {
		return Options{}, nil, err
	}
	maps.DeleteFunc(given, func(_, value string) bool { return value == "" })
	return o, slices.Sorted(maps.Keys(given)), nil
}

// rowOf finds an option; the zero row: there is none.
func rowOf(name string) row {
	if i := slices.IndexFunc(table, func(r row) bool { return r.Name == name }); i >= 0 {
		return table[i]
	}
	return row{}
}

// allowed are the option's values, in words for messages.
func (r row) allowed() string { return strings.ReplaceAll(r.Range, "`", "") }

// value finds an option's value, and its source for messages.
func (r row) value(params map[string]string, getenv func(string) (string, bool)) (value, from string) {
	if v := params[r.Name]; v != "" && v != r.Default {
		return v, ""
	}
	if v, _ := getenv(r.Env); v != "" {
		return v, " (from " + r.Env + ")"
	}
	return r.Default, ""
}

// sample returns a value to show: the default, or the example of an option whose default is empty.
func (r row) sample() string {
	if r.Default == "" {
		return r.example
	}
	return r.Default
}

// check compares options with each other.
func (o *Options) check() error {
	if least := 2 * o.StageSize; o.StagingMemory != 0 && o.StagingMemory < least {
		return fmt.Errorf("%w: staging_memory=%s is less than two sets of stage_size=%s; write staging_memory=%s or more", ErrValue,
			FormatSize(o.StagingMemory), FormatSize(o.StageSize), FormatSize(least))
	}
	return o.Trust.check()
}

// check finds options that would protect less than they say. Package identity checks the files.
func (t *Trust) check() error {
	switch {
	case t.CertifiedNames && t.TLSCA == "":
		return fmt.Errorf("%w: peer_names=certified without tls_ca: names come from certificates; set tls_ca, tls_cert and tls_key, or write peer_names=claimed", ErrValue)
	case t.RequireIdentity && t.TLSCA == "" && t.SecretFile == "":
		return fmt.Errorf("%w: require_identity=on, and no identity is given; set tls_ca, tls_cert and tls_key, or secret_file", ErrValue)
	}
	return nil
}

// OnOff is the text of a switch, as setSwitch reads it.
func OnOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
