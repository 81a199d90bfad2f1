package option

import (
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// vars returns an environment.
func vars(m map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := m[name]; return v, ok }
}

var wantDefaults = Options{
	Fabrics: Fabrics{Provider: []string{"auto"}, MaxRails: 8, RailShare: true, QPsPerRail: 1, RemoteAccess: PeersBoth, SharedKeys: true},
	Deadlines: Deadlines{XferTimeout: 30 * time.Second, RailTimeout: 500 * time.Millisecond, PeerTimeout: time.Minute, ConnectTimeout: 30 * time.Second,
		CancelTimeout: 2 * time.Second},
	Limits:        Limits{MaxSessions: 4096},
	Notifications: Notifications{NotifQueue: 16 * mib, NotifMemory: 256 * mib},
	Flow:          Flow{ChunkMin: 128 * kib, ChunkMax: mib, WindowMin: 256 * kib, WindowMax: 64 * mib, ReleaseWait: 50 * time.Millisecond},
	Libfabric:     Libfabric{LibfabricPath: "libfabric.so.1", HMEM: "auto"},
	Verbs: Verbs{IbverbsPath: "libibverbs.so.1",
		IB: IB{GIDIndex: -1, Timeout: 14, RetryCount: 6}},
	TCP:     TCP{Compression: "off"},
	Host:    Host{CopyThreads: -1, CopyForPeers: true, LocalDir: "auto", LocalPeers: SameUser},
	GPU:     GPU{CUDAPath: "libcuda.so.1", StageSize: 64 * mib, GPUCopy: "auto", GPUMapping: true, IMEXChannels: "/dev/nvidia-caps-imex-channels"},
	Logging: Logging{Log: slog.LevelWarn, StatsSocket: "auto"},
}

func TestDefaults(t *testing.T) {
	o, unknown, err := Parse(nil, nil)
	require.NoError(t, err)
	assert.Empty(t, unknown)
	assert.Equal(t, wantDefaults, o)

	params := map[string]string{}
	for _, p := range Defaults() {
		params[p.Name] = p.Value
	}
	assert.Len(t, params, len(table))
	o, unknown, err = Parse(params, nil)
	require.NoError(t, err)
	assert.Empty(t, unknown)
	assert.Equal(t, wantDefaults, o)
	assert.Equal(t, "provider", Defaults()[0].Name)
}

func TestTableIsWhole(t *testing.T) {
	for _, r := range table {
		assert.Equal(t, "GORAIL_"+strings.ToUpper(r.Name), r.Env)
		assert.NotEmpty(t, r.Type, r.Name)
		assert.NotEmpty(t, r.Range, r.Name)
		assert.True(t, strings.HasSuffix(r.Doc, "."), r.Name)
		assert.NotContains(t, r.Doc+r.When+r.Range, "|", r.Name)
		assert.NotEmpty(t, r.When, "%s: the case in which one sets it", r.Name)
		assert.False(t, strings.HasSuffix(r.When, "."), r.Name)
		assert.NoError(t, r.set(&Options{}, r.sample()), "the example of %s is allowed", r.Name)
	}
}

func TestPrecedence(t *testing.T) {
	env := vars(map[string]string{"GORAIL_XFER_TIMEOUT": "7s", "GORAIL_LOG": "info", "GORAIL_MAX_RAILS": ""})
	o, unknown, err := Parse(map[string]string{"xfer_timeout": "9s", "num_threads": "4", "engine_config": ""}, env)
	require.NoError(t, err)
	assert.Equal(t, 9*time.Second, o.XferTimeout, "a parameter beats the environment")
	assert.Equal(t, slog.LevelInfo, o.Log, "the environment beats the default")
	assert.Equal(t, 8, o.MaxRails, "an empty variable is none")
	assert.Equal(t, []string{"num_threads"}, unknown, "an empty one is not given")

	params := map[string]string{"log": ""}
	for _, p := range Defaults() {
		params[p.Name] = p.Value
	}
	o, _, err = Parse(params, env)
	require.NoError(t, err)
	assert.Equal(t, 7*time.Second, o.XferTimeout, "who hands the defaults back has not chosen them")
	assert.Equal(t, slog.LevelInfo, o.Log)
	assert.Len(t, params, len(table), "the caller's map is left alone")
}

func TestValues(t *testing.T) {
	o, _, err := Parse(map[string]string{
		"provider": " TCP, efa,tcp;ofi_rxm", "devices": "eth*, !lo,mlx5_[01]", "libfabric_path": "/opt/lib/libfabric.so",
		"xfer_timeout": "1500", "peer_timeout": "2m",
		"notif_queue": "1gib", "notif_memory": "2 GiB",
		"traffic_class": "Low_Latency", "cxi_auth_key": "5:234, cxi1=6:65535",
		"ibverbs_path": "/opt/lib/libibverbs.so", "cuda_path": "/opt/lib/libcuda.so", "fi_hmem": "Off", "gpu_copy": "Engine", "gpu_mapping": "Off", "imex_channels": "/imex", "gid_index": "3", "ib_service_level": "3", "ib_traffic_class": "104", "ib_pkey_index": "1",
		"ib_timeout": "20", "ib_retry_count": "7",
		"max_rails": "16", "rail_share": "Off", "qps_per_rail": "4", "mr_max": "4GiB", "remote_access": "Read", "shared_keys": "off", "log": "DEBUG", "stats_file": "/tmp/x.json", "stats_interval": "2s", "stats_socket": "/run/x", "control_port": "7000-7100", "control_devices": "eth0,!eth1",
		"tls_ca": "/c/ca", "tls_cert": "/c/cert", "tls_key": "/c/key", "tls_peers": "spiffe://a/*, *.b", "secret_file": "/c/s", "require_identity": "On",
		"peer_names": "Certified", "strict_names": "on", "encryption": "on", "rdma": "Trusted",
		"tcp_congestion": "BBR2x", "compression": "Auto",
	}, nil)
	require.NoError(t, err)
	want := wantDefaults
	want.Provider, want.Devices = []string{"tcp", "efa", "tcp;ofi_rxm"}, []string{"eth*", "!lo", "mlx5_[01]"}
	want.LibfabricPath, want.StatsFile, want.StatsInterval, want.StatsSocket = "/opt/lib/libfabric.so", "/tmp/x.json", 2*time.Second, "/run/x"
	want.XferTimeout, want.PeerTimeout = 1500*time.Millisecond, 2*time.Minute
	want.NotifQueue, want.NotifMemory = gib, 2*gib
	want.TrafficClass = "low_latency"
	want.IbverbsPath, want.CUDAPath = "/opt/lib/libibverbs.so", "/opt/lib/libcuda.so"
	want.HMEM, want.GPUCopy, want.GPUMapping, want.IMEXChannels = "off", "engine", false, "/imex"
	want.IB = IB{3, 3, 104, 1, 20, 7}
	want.CXIAuthKey = []CXIKey{{"", 5, 234}, {"cxi1", 6, 65535}}
	want.QPsPerRail, want.MRMax = 4, 4*gib
	want.RemoteAccess, want.SharedKeys = PeersRead, false
	want.MaxRails, want.RailShare, want.Log, want.ControlPort = 16, false, slog.LevelDebug, PortRange{7000, 7100}
	want.ControlDevices = []string{"eth0", "!eth1"}
	want.Trust = Trust{"/c/ca", "/c/cert", "/c/key", []string{"spiffe://a/*", "*.b"}, "/c/s", true, true, true, true, true}
	want.TCP = TCP{"BBR2x", "auto"}
	assert.Equal(t, want, o)

	o, _, err = Parse(map[string]string{"control_port": "7000"}, nil)
	require.NoError(t, err)
	assert.Equal(t, PortRange{7000, 7000}, o.ControlPort)
}

func TestBadValues(t *testing.T) {
	for _, tt := range []struct{ name, value, want string }{
		{"provider", ",", "provider"},
		{"provider", "auto,tcp", "auto stands alone"},
		{"provider", "tcp efa", "character"},
		{"devices", "eth0,", "empty"},
		{"devices", "!", "empty"},
		{"devices", "eth[", "glob"},
		{"xfer_timeout", "soon", "not a duration"},
		{"xfer_timeout", "1ms", "out of range"},
		{"xfer_timeout", "-5", "out of range"},
		{"xfer_timeout", "9223372036854775807", "out of range"},
		{"xfer_timeout", "99999999999999999999", "not a duration"},
		{"remote_access", "none", "write read, write or both"},
		{"notif_queue", "many", "not a size"},
		{"notif_queue", "-1", "not a size"},
		{"notif_queue", "MiB", "not a size"},
		{"notif_queue", "1.5MiB", "not a size"},
		{"notif_queue", "1", "out of range"},
		{"notif_queue", "99999999999999999999", "out of range"},
		{"notif_queue", "18446744073709551615GiB", "out of range"},
		{"max_rails", "0", "out of range"},
		{"gpu_copy", "dma", "unknown word"},
		{"gpu_mapping", "no", "unknown word"},
		{"qps_per_rail", "9", "out of range"},
		{"mr_max", "64KiB", "out of range"},
		{"mr_max", "2TiB", "not a size"},
		{"fi_hmem", "maybe", "unknown word"},
		{"gid_index", "-2", "out of range"},
		{"ib_service_level", "16", "out of range"},
		{"max_rails", "33", "out of range"},
		{"max_rails", "99999999999999999999", "out of range"},
		{"max_rails", "x", "not a whole number"},
		{"traffic_class", "fast", "unknown word"},
		{"traffic_class", "104", "unknown word"},
		{"cxi_auth_key", "5", "service id"},
		{"cxi_auth_key", "5:0", "VNI"},
		{"cxi_auth_key", "5:65536", "VNI"},
		{"cxi_auth_key", "cxi0=", "service id"},
		{"cxi_auth_key", "=5:1", "service id"},
		{"cxi_auth_key", "5:1,6:1", "two keys"},
		{"tls_peers", "a,,b", "empty"},
		{"tls_peers", "!a", "character"},
		{"tls_peers", "spiffe://a/**", "glob"},
		{"tls_peers", "[a", "glob"},
		{"peer_names", "any", "unknown word"},
		{"log", "loud", "unknown word"},
		{"tcp_congestion", "bbr,cubic", "unknown word"},
		{"tcp_congestion", "sixteen_letters_", "unknown word"},
		{"control_port", "65536", "not a port"},
		{"control_port", "7-6", "not a port"},
		{"control_port", "0-6", "not a port"},
		{"control_port", "7-", "not a port"},
		{"control_port", "http", "not a port"},
	} {
		t.Run(tt.name+"="+tt.value, func(t *testing.T) {
			o, _, err := Parse(map[string]string{tt.name: tt.value}, nil)
			require.ErrorIs(t, err, ErrValue)
			assert.Zero(t, o)
			assert.ErrorContains(t, err, tt.want)
			assert.ErrorContains(t, err, tt.name+`="`+tt.value+`"`)
			assert.ErrorContains(t, err, "; write ")
			assert.ErrorContains(t, err, ", for example "+tt.name+"=")
		})
	}
}

// TestMessages checks complete messages, as a user reads them.
func TestMessages(t *testing.T) {
	_, _, err := Parse(nil, vars(map[string]string{"GORAIL_PEER_TIMEOUT": "5h"}))
	assert.EqualError(t, err, `bad option: peer_timeout="5h" (from GORAIL_PEER_TIMEOUT): out of range; `+
		"write a duration from 100ms to 1h (500ms, 30s; a plain number means milliseconds), for example peer_timeout=60s")
	_, _, err = Parse(map[string]string{"staging_memory": "2MiB"}, nil)
	assert.EqualError(t, err, "bad option: staging_memory=2MiB is less than two sets of stage_size=64MiB; write staging_memory=128MiB or more")
	for text, given := range map[string]map[string]string{
		"peer_names=certified without tls_ca":       {"peer_names": "certified", "secret_file": "/s"},
		"require_identity=on, and no identity is g": {"require_identity": "on"},
	} {
		_, _, err = Parse(given, nil)
		assert.ErrorIs(t, err, ErrValue)
		assert.ErrorContains(t, err, text)
	}
}

func TestPageIsUpToDate(t *testing.T) {
	page, err := os.ReadFile("../../docs/options.md")
	require.NoError(t, err)
	assert.Equal(t, string(Markdown()), string(page), "run: go run ./internal/pages")
}

func TestSizes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64().Draw(t, "n") << rapid.IntRange(0, 63).Draw(t, "shift")
		back, err := ParseSize(FormatSize(n))
		require.NoError(t, err)
		require.Equal(t, n, back)
	})
}

// FuzzParse: any value gives an error or options within their ranges, and never a panic.
func FuzzParse(f *testing.F) {
	for i, r := range table {
		f.Add(uint8(i), r.sample())
	}
	f.Add(uint8(8), "1 GiB")
	f.Add(uint8(1), "[a-")
	f.Add(uint8(len(table)-1), "1-2-3")
	f.Fuzz(func(t *testing.T, which uint8, value string) {
		r := table[int(which)%len(table)]
		o, _, err := Parse(map[string]string{r.Name: value}, nil)
		if err != nil {
			require.ErrorIs(t, err, ErrValue)
			return
		}
		require.LessOrEqual(t, o.ControlPort.First, o.ControlPort.Last)
		require.NotEmpty(t, o.Provider)
		require.Positive(t, o.XferTimeout)
	})
}

// TestPathOptionsAreMarked: an option whose name or allowed values speak of a file, a folder, a path or dlopen has the type path, and
// no other has it.
func TestPathOptionsAreMarked(t *testing.T) {
	names := regexp.MustCompile(`(_path|_file|_dir|_socket|_folder|_library|_ca|_cert|_key)$`)
	words := regexp.MustCompile(`(?i)\b(files?|folders?|paths?|dlopen|librar(y|ies)|sockets?)\b`)
	marked := 0
	for _, r := range table {
		like := words.MatchString(r.Range) || words.MatchString(r.sample()) || regexp.MustCompile(`^\.{0,2}/|\.so\b`).MatchString(r.sample()) ||
			names.MatchString(r.Name) && r.Name != "cxi_auth_key" // numbers
		require.Equal(t, like, r.Type == TypePath, "%s: mark it as %s in the table, so that tools refuse it from other hosts", r.Name, TypePath)
		if like {
			marked++
		}
	}
	require.GreaterOrEqual(t, marked, 11)
}

// TestNamesFile: values of marked options name files, unless they are the default or say that there is none.
func TestNamesFile(t *testing.T) {
	for name, value := range map[string]string{"libfabric_path": "/tmp/x.so", "log_file": "/etc/profile.d/x.sh", "stats_file": "x", "stats_socket": "/tmp", "local_dir": "/tmp",
		"secret_file": "/etc/shadow", "tls_ca": "x", "tls_key": "x", "tls_cert": "x", "cuda_path": "x.so", "ibverbs_path": "x.so", "imex_channels": "/x"} {
		require.True(t, NamesFile(name, value), name)
		require.True(t, Known(name))
	}
	for name, value := range map[string]string{"provider": "tcp", "libfabric_path": "libfabric.so.1", "stats_socket": "off", "local_dir": "auto", "log_file": "", "nosuch": "/x"} {
		require.False(t, NamesFile(name, value), name)
	}
	require.True(t, Known("num_workers"))
	require.False(t, Known("nosuch"))
}

// TestLibrariesAreFiles: dlopen of a pipe without a writer never returns. What is not there is left to dlopen.
func TestLibrariesAreFiles(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "x.so")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	for _, name := range []string{"libfabric_path", "ibverbs_path", "cuda_path"} {
		for _, bad := range []string{pipe, filepath.Dir(pipe), "/dev/zero"} {
			_, _, err := Parse(map[string]string{name: bad}, nil)
			require.ErrorContains(t, err, name)
			require.ErrorIs(t, err, errLibrary)
		}
		_, _, err := Parse(map[string]string{name: pipe + ".1"}, nil)
		require.NoError(t, err)
	}
}

// TestRenamed: an old name of a provider works. Renamed finds it in a parameter or a variable; the parameter comes
// first.
func TestRenamed(t *testing.T) {
	for name, c := range map[string]struct {
		param, env string
		want       []string
		old, now   string
	}{
		"parameter":          {"Local, tcp", "tcp", []string{"sm", "tcp"}, "local", "sm"},
		"variable":           {"", "local", []string{"sm"}, "local", "sm"},
		"parameter is first": {"tcp", "local", []string{"tcp"}, "", ""},
		"new":                {"sm", "local", []string{"sm"}, "", ""},
		"none":               {"", "", []string{"auto"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			params := map[string]string{"provider": c.param}
			getenv := func(name string) (string, bool) {
				if name != "GORAIL_PROVIDER" {
					return "", false
				}
				return c.env, c.env != ""
			}
			o, _, err := Parse(params, getenv)
			require.NoError(t, err)
			require.Equal(t, c.want, o.Provider)
			old, now := Renamed(params, getenv)
			require.Equal(t, []string{c.old, c.now}, []string{old, now})
		})
	}
}
