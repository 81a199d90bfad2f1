package option

import (
	"slices"
	"strings"
)

// Unknown is a name that belongs to no option.
type Unknown struct {
	Name string
	Near string // the option or variable that was probably meant; "": no name is near
	Gone string // why an option of that name is gone; "": there was none
}

// gone has the options of earlier versions, and what has become of them.
var gone = map[string]string{
	"chunk_max":                 "chunks have 128 KiB to 1 MiB, as measured",
	"chunk_min":                 "chunks have 128 KiB to 1 MiB, as measured",
	"control_memory":            "control frames of all peers may take 256 MiB",
	"cq_depth":                  "a rail's completion queue is as deep as the fabric makes it, up to 65536",
	"data_sources":              "it was for libfabric's tcp; provider=tcp knows a peer by its key, from any address",
	"gpu_blocks":                "copies take the number of blocks that was measured best; gpu_copy=engine takes no SM at all",
	"handshakes":                "64 TLS handshakes go on at a time, a quarter of them with peers behind one address",
	"ib_max_reads":              "16 READs are outstanding on a connection, or what the devices take",
	"ib_mtu":                    "the path MTU is what both ports have; lower a port's MTU in the system",
	"ib_odp":                    "registered memory is pinned, as on every fabric; raise RLIMIT_MEMLOCK (ulimit -l)",
	"ib_rnr_retry":              "a GORAIL peer always has a receive posted",
	"inflight_ops":              "bytes in flight and the fabric's queues are the limit",
	"libcrypto_path":            "the loader finds libcrypto.so.3, libcrypto.so.1.1 or libcrypto.so; LD_LIBRARY_PATH adds a folder",
	"local_ring":                "a ring has 2 MiB, which stay in the processor's caches",
	"max_endpoints":             "endpoints of peers take half of the process's file descriptors (ulimit -n), and are 16384 at most",
	"max_sessions_per_identity": "peers of one identity have three quarters of max_sessions, and more while no other identity asks",
	"max_sessions_per_source":   "peers behind one address have three quarters of max_sessions",
	"rdmacm_path":               "it was for iWARP, which is not driven any more",
	"release_wait":              "the release of a request in flight waits 50 ms for it",
	"rx_depth":                  "the fabric's own depth is used; FI_EFA_RX_SIZE or FI_CXI_DEFAULT_RX_SIZE sets it in libfabric",
	"spin_time":                 "the progress thread polls for 20 us before it sleeps, as measured",
	"tcp_busy_poll":             "no measurement with a network card needed it; the sysctl net.core.busy_read does the same for all sockets",
	"threading":                 "libfabric keeps its locks",
	"tls":                       "control channels always use TLS 1.3",
	"tx_depth":                  "the fabric's own depth is used; FI_EFA_TX_SIZE or FI_CXI_DEFAULT_TX_SIZE sets it in libfabric",
	"window_max":                "a window has 256 KiB to 64 MiB, by the measured rate",
	"window_min":                "a window has 256 KiB to 64 MiB, by the measured rate",
	"window_time":               "a window is what the measured rate moves in 4 ms",
}

// unknown finds what a name that belongs to no option means.
func unknown(name, option string) Unknown {
	if why := gone[option]; why != "" {
		return Unknown{Name: name, Gone: why}
	}
	return Unknown{Name: name, Near: nearest(option)}
}

// String implements fmt.Stringer: the form for messages.
func (u Unknown) String() string {
	switch {
	case u.Gone != "":
		return u.Name + " (is gone: " + u.Gone + ")"
	case u.Near == "":
		return u.Name
	}
	return u.Name + " (did you mean " + u.Near + "?)"
}

// Unknowns finds the nearest option for each unknown parameter name.
func Unknowns(names []string) []Unknown {
	out := make([]Unknown, len(names))
	for i, name := range names {
		out[i] = unknown(name, strings.ToLower(strings.TrimSpace(name)))
	}
	return out
}

const prefix = "GORAIL_"

// tools are variables of GORAIL's tests and build, without the prefix. A name that ends with '_' stands for all
// variables with that prefix.
var tools = []string{"BENCH_REMOTE", "FABRIC", "FABRIC_", "FAILURES", "FAILURES_JSON", "FRAMES", "MESON_ARGS", "OTHER_PLUGIN_DIR", "PEER_TOKEN", "PLUGIN_DIR", "PYTHON", "RDMA_DIR", "SEEDS", "SOAK", "STOP", "STOP_APART",
	"TEST_", "VISITS", "WORKER_", "YAMA"}

// UnknownVariables finds GORAIL_* variables that no option or tool reads, in a list of "NAME=value" as in environ(7).
// An empty value counts as not given.
func UnknownVariables(environ []string) (out []Unknown) {
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		rest, ours := strings.CutPrefix(name, prefix)
		known := slices.ContainsFunc(table, func(r row) bool { return r.Env == name }) || slices.ContainsFunc(tools, func(tool string) bool {
			return rest == tool || strings.HasSuffix(tool, "_") && strings.HasPrefix(rest, tool)
		})
		if !ours || value == "" || known {
			continue
		}
		u := unknown(name, strings.ToLower(rest))
		if u.Near != "" {
			u.Near = env(u.Near)
		}
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b Unknown) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// nearest returns the option that a name probably means, or "" if there is none. In this order: the option that another
// backend's parameter of that name sets, the option with the smallest edit distance, the only option with the name as
// one of its words.
func nearest(name string) string {
	for _, a := range aliases {
		for _, p := range a.params {
			if p.name == name && p.to != "" {
				return p.to
			}
		}
	}
	near, fewest := "", len(name)/3+1
	var holds []string
	for _, r := range table {
		if d := distance(name, r.Name); d < fewest {
			near, fewest = r.Name, d
		}
		if slices.Contains(strings.Split(r.Name, "_"), name) {
			holds = append(holds, r.Name)
		}
	}
	if near == "" && len(holds) == 1 {
		near = holds[0]
	}
	return near
}

// distance is the edit distance of a and b: insertions, deletions, changes, and swaps of neighbouring letters.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			rows[i][j] = min(change, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
