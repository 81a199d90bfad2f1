package option

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bare is a machine without devices and variables.
var bare = Machine{Sys: fstest.MapFS{}}

// machine has two Mellanox devices, two interfaces and lo. The second device has two ports.
func machine(environ ...string) Machine {
	sys := fstest.MapFS{}
	for _, path := range []string{"infiniband/mlx5_0/ports/1/state", "infiniband/mlx5_1/ports/1/state", "infiniband/mlx5_1/ports/2/state", "net/eth0/mtu", "net/eth1/mtu", "net/lo/mtu"} {
		sys["class/"+path] = &fstest.MapFile{}
	}
	return Machine{environ, sys}
}

// sockets is machine without RDMA devices.
func sockets(environ ...string) Machine {
	m := machine(environ...)
	maps.DeleteFunc(m.Sys.(fstest.MapFS), func(path string, _ *fstest.MapFile) bool { return strings.Contains(path, "infiniband") })
	return m
}

// amazon is sockets with an EFA device, and slingshot with a CXI device.
func amazon(environ ...string) Machine {
	m := sockets(environ...)
	m.Sys.(fstest.MapFS)["class/infiniband/rdmap0s6/device/vendor"] = &fstest.MapFile{Data: []byte("0x1d0f\n")}
	return m
}

func slingshot(environ ...string) Machine {
	m := sockets(environ...)
	m.Sys.(fstest.MapFS)["class/cxi/cxi0/device/vendor"] = &fstest.MapFile{Data: []byte("0x17db\n")}
	return m
}

func ucxOf(t *testing.T, on Machine, params ...string) Translated {
	t.Helper()
	got, err := translateUCX(on, params...)
	require.NoError(t, err)
	_, unknown, err := Parse(got.Params, on.getenv)
	require.NoError(t, err)
	require.Empty(t, unknown)
	return got
}

func translateUCX(on Machine, params ...string) (Translated, error) {
	given := map[string]string{}
	for i := 0; i < len(params); i += 2 {
		given[params[i]] = params[i+1]
	}
	return AliasOf("UCX").Translate(given, on)
}

const stays = "without cuda_ipc: a mapping of a peer's GPU memory ends when its owner deregisters or unmaps it, so it stays; option gpu_mapping=off forbids mappings"

// TestUCXTransports: each list of UCX_TLS, on a machine with InfiniBand, without RDMA, with EFA and with Slingshot. "": provider is not set; "-": an error. The
// words are UCX's own (ucp_tl_aliases).
func TestUCXTransports(t *testing.T) {
	for tls, want := range map[string][4]string{
		"all": {}, "^all": {}, "^cuda_ipc": {}, "^cuda": {}, "^knem": {}, "^mm": {}, "^rc": {}, "^dc,ud": {}, "^self": {}, "^ud:aux": {}, "^gga": {},
		"tcp": {"tcp", "tcp", "tcp", "tcp"}, "tcp,cuda_copy": {"tcp", "tcp", "tcp", "tcp"}, "tcp,cuda_copy,self": {"tcp", "tcp", "tcp", "tcp"}, `\tcp`: {"tcp", "tcp", "tcp", "tcp"},
		"tcp,cuda":               {"tcp,sm", "tcp,sm", "tcp,sm", "tcp,sm"},
		"tcp,cuda_copy,cuda_ipc": {"tcp,sm", "tcp,sm", "tcp,sm", "tcp,sm"},
		"sm":                     {"sm", "sm", "sm", "sm"}, "shm,self": {"sm", "sm", "sm", "sm"}, "mm": {"sm", "sm", "sm", "sm"}, "posix,cma": {"sm", "sm", "sm", "sm"}, "cuda_ipc,cuda_copy": {"sm", "sm", "sm", "sm"},
		"rc,tcp":              {"verbs", "tcp", "tcp", "tcp"},
		"tcp , rc ,":          {"verbs", "tcp", "tcp", "tcp"},
		"ib,tcp":              {"verbs", "tcp", "efa", "tcp"},
		"srd,tcp":             {"tcp", "tcp", "efa", "tcp"},
		"ud,tcp":              {"verbs", "tcp", "efa", "tcp"},
		"ud_x,tcp":            {"verbs", "tcp", "tcp", "tcp"},
		"dc,sm,cuda,tcp":      {"verbs,sm", "tcp,sm", "tcp,sm", "tcp,sm"},
		"rc_x,rc,dc_x,sm":     {"verbs,sm", "-", "-", "-"},
		"rc,cuda_copy,tcp,sm": {"verbs,sm", "tcp,sm", "tcp,sm", "tcp,sm"},
		"^ib":                 {"tcp,sm", "tcp,sm", "tcp,sm", "cxi,sm"},
		"^rc,dc,ud":           {"tcp,sm", "tcp,sm", "efa,sm", "cxi,sm"},
		"^tcp":                {"verbs,sm", "-", "efa,sm", "cxi,sm"},
		"^sm":                 {"verbs", "tcp", "efa", "cxi"},
		"^shm,cuda_ipc,tcp":   {"verbs", "-", "efa", "cxi"},
		"^posix,sysv,xpmem":   {},
	} {
		for i, on := range []func(...string) Machine{machine, sockets, amazon, slingshot} {
			got, err := translateUCX(on("UCX_TLS=" + tls))
			if want[i] == "-" {
				require.ErrorContains(t, err, "no network device of this machine is left")
				continue
			}
			require.NoError(t, err, tls)
			if want[i] == [...]string{"verbs,sm", "tcp,sm", "efa,sm", "cxi,sm"}[i] { // as auto, which fails where a list would go on with sm alone
				want[i] = ""
			}
			assert.Equal(t, want[i], got.Params["provider"], "%s, machine %d", tls, i)
			if want[i] != "" {
				assert.Equal(t, []string{"provider=" + want[i] + " (UCX_TLS=" + tls + ")"}, got.Taken)
			} else {
				assert.Len(t, got.Ignored, 1, "%s is said", tls)
			}
		}
	}
}

func TestUCXDevices(t *testing.T) {
	for list, want := range map[string]struct{ devices, provider string }{
		"all": {}, "mlx5_0:1": {"mlx5_0,memory", ""}, "mlx5_0:1,mlx5_1:2": {"mlx5_0,mlx5_1:2,memory", ""}, "mlx5_1": {"mlx5_1,mlx5_1:*,memory", ""},
		"mlx5_[0-1]:1": {"mlx5_0,mlx5_1,memory", ""}, "mlx5_0:1,eth0": {"mlx5_0,eth0,memory", ""}, " mlx5_0:1 , eth0,": {"mlx5_0,eth0,memory", ""},
		"eth0": {"eth0,memory", "tcp,sm"}, "eth[0-1],lo": {"eth0,eth1,lo,memory", "tcp,sm"},
		"^mlx5_0:1": {"!mlx5_0", ""}, "^mlx5_[0-1]": {"!mlx5_0,!mlx5_0:*,!mlx5_1,!mlx5_1:*", "tcp,sm"}, "^mlx5_[0-1]:1": {"!mlx5_0,!mlx5_1", ""}, "^lo": {"!lo", ""},
	} {
		got := ucxOf(t, machine("UCX_NET_DEVICES="+list))
		assert.Equal(t, want.devices, got.Params["devices"], list)
		assert.Equal(t, want.provider, got.Params["provider"], list)
		assert.Empty(t, got.Wrong)
	}

	// As with UCX, a device that is not here is a warning, and what is here serves.
	got := ucxOf(t, machine("UCX_NET_DEVICES=mlx5_0:1,mlx5_[8-9]:1,eth*,../eth0"))
	assert.Equal(t, "mlx5_0,memory", got.Params["devices"])
	assert.Equal(t, []string{"UCX_NET_DEVICES=mlx5_0:1,mlx5_[8-9]:1,eth*,../eth0 (not on this machine: mlx5_8, mlx5_9, eth*, ../eth0)"}, got.Wrong)
	got = ucxOf(t, sockets("UCX_NET_DEVICES=mlx5_0:1", "UCX_TLS=sm"))
	assert.Equal(t, map[string]string{"provider": "sm"}, got.Params)
	assert.Equal(t, []string{"UCX_NET_DEVICES=mlx5_0:1 (not on this machine: mlx5_0)"}, got.Wrong)
	got = ucxOf(t, machine("UCX_NET_DEVICES=eth0", "UCX_TLS=rc,tcp"))
	assert.Equal(t, map[string]string{"provider": "tcp", "devices": "eth0"}, got.Params, "no shared memory: no word for its device")
	assert.Equal(t, []string{"provider=tcp (UCX_TLS=rc,tcp UCX_NET_DEVICES=eth0)", "devices=eth0 (UCX_NET_DEVICES=eth0)"}, got.Taken)
	got = ucxOf(t, amazon("UCX_NET_DEVICES=rdmap0s6:1"))
	assert.Equal(t, map[string]string{"devices": "rdmap0s6,memory"}, got.Params)
	assert.Len(t, expand([]string{"a[0-999999999]", "b[2-1]", "c[1-]", "d[99999999999999999999-0]", "e[1-2][3-4]"}), 128+4)
}

func TestUCXNumbers(t *testing.T) {
	for setting, want := range map[string]string{
		"UCX_IB_GID_INDEX=3": "gid_index=3", "UCX_IB_GID_INDEX=auto": "", "UCX_IB_GID_INDEX= 3 ": "gid_index=3", "UCX_IB_TRAFFIC_CLASS=106": "ib_traffic_class=106",
		"UCX_IB_TRAFFIC_CLASS=AUTO": "", "UCX_IB_SL=5": "ib_service_level=5", "UCX_MAX_RMA_RAILS=9": "max_rails=9", "UCX_MAX_RMA_RAILS=inf": "max_rails=32",
		"UCX_MAX_RMA_RAILS=0": "", "UCX_MAX_RMA_RAILS=1": "", "UCX_MAX_RMA_RAILS=8": "", "UCX_MAX_RMA_RAILS=64": "max_rails=32",
		// As sscanf reads them, and into variables of their size.
		"UCX_MAX_RMA_RAILS=4x": "", "UCX_MAX_RMA_RAILS=9x": "max_rails=9", "UCX_MAX_RMA_RAILS=+012 rails": "max_rails=12", "UCX_MAX_RMA_RAILS=0x10": "", "UCX_MAX_RMA_RAILS=9.5": "max_rails=9",
		"UCX_MAX_RMA_RAILS=-1": "max_rails=32", "UCX_MAX_RMA_RAILS=-2": "max_rails=32", "UCX_MAX_RMA_RAILS=-4294967286": "max_rails=10", "UCX_MAX_RMA_RAILS=4294967306": "max_rails=10",
		"UCX_MAX_RMA_RAILS=99999999999999999999": "max_rails=32", "UCX_MAX_RMA_RAILS=-99999999999999999999": "max_rails=32",
		"UCX_IB_GID_INDEX=3abc": "gid_index=3", "UCX_IB_GID_INDEX=0x3": "gid_index=0", "UCX_IB_GID_INDEX=-2": "", "UCX_IB_GID_INDEX=18446744073709551614": "", "UCX_IB_GID_INDEX=4294967299": "gid_index=3",
		"UCX_IB_TRAFFIC_CLASS=+106,": "ib_traffic_class=106", "UCX_IB_TRAFFIC_CLASS=256": "ib_traffic_class=0", "UCX_IB_TRAFFIC_CLASS=362": "ib_traffic_class=106", "UCX_IB_TRAFFIC_CLASS=-1": "ib_traffic_class=255",
		"UCX_IB_TRAFFIC_CLASS=Inf": "ib_traffic_class=255", "UCX_IB_TRAFFIC_CLASS=-2": "", "UCX_IB_SL=5 5": "ib_service_level=5", "UCX_IB_SL=-18446744073709551611": "ib_service_level=5", "UCX_IB_SL=-2": "",
	} {
		got := ucxOf(t, machine(setting))
		if want == "" {
			assert.Empty(t, got.Params, setting)
			assert.Len(t, got.Ignored, 1, setting)
			continue
		}
		name, value, _ := strings.Cut(want, "=")
		assert.Equal(t, map[string]string{name: value}, got.Params, setting)
		assert.Equal(t, []string{want + " (" + setting + ")"}, got.Taken)
	}
}

// TestUCXNumbersWithoutDevice: UCX reads its settings of InfiniBand for a device alone, so a wrong one stops no engine of a machine without.
func TestUCXNumbersWithoutDevice(t *testing.T) {
	for _, setting := range []string{"UCX_IB_GID_INDEX=x", "UCX_IB_GID_INDEX=-1", "UCX_IB_GID_INDEX=256", "UCX_IB_SL=16", "UCX_IB_SL=inf", "UCX_IB_SL=- 5", "UCX_IB_TRAFFIC_CLASS=infinity", "UCX_IB_TRAFFIC_CLASS=--1"} {
		got := ucxOf(t, sockets(setting))
		assert.Empty(t, got.Params, setting)
		require.Len(t, got.Wrong, 1)
		assert.Contains(t, got.Wrong[0], setting+" (no value of ")
		for _, on := range []Machine{machine(setting), amazon(setting)} {
			_, err := translateUCX(on)
			require.ErrorContains(t, err, setting)
		}
	}
}

// TestUCXErrors: each error names the setting, and an option that says something else.
func TestUCXErrors(t *testing.T) {
	for want, of := range map[string]struct {
		on     Machine
		params []string
	}{
		"bad option: UCX_IB_GID_INDEX=x: not a whole number; it sets option gid_index: write a whole number from 0 to 255, or auto":                                                                                                                     {on: machine("UCX_IB_GID_INDEX=x")},
		"bad option: engine_config IB_SL=16: out of range; it sets option ib_service_level: write a whole number from 0 to 15, or auto":                                                                                                                 {on: machine(), params: []string{"engine_config", "IB_SL=16"}},
		"bad option: UCX_MAX_RMA_RAILS=auto: not a whole number; it sets option max_rails: write a whole number, or inf":                                                                                                                                {on: machine("UCX_MAX_RMA_RAILS=auto")},
		"bad option: UCX_MAX_RMA_RAILS=-: not a whole number; it sets option max_rails: write a whole number, or inf":                                                                                                                                   {on: machine("UCX_MAX_RMA_RAILS=-")},
		"bad option: UCX_MAX_RMA_RAILS=x4: not a whole number; it sets option max_rails: write a whole number, or inf":                                                                                                                                  {on: machine("UCX_MAX_RMA_RAILS=x4")},
		"bad option: UCX_TLS=all,tcp: all stands alone":                                                                                                                                                                                                 {on: machine("UCX_TLS=all,tcp")},
		"bad option: UCX_NET_DEVICES=,: the list is empty; name some, or unset it":                                                                                                                                                                      {on: machine("UCX_NET_DEVICES=,")},
		"bad option: UCX_TLS=rc_x,cuda_copy: no network device of this machine is left; name transports and devices that it has (tcp, ib), or sm alone for peers of this host, or unset it":                                                             {on: sockets("UCX_TLS=rc_x,cuda_copy")},
		`bad option: UCX_TLS=TCP: no network device of this machine is left: UCX_TLS=TCP ("TCP" is no transport of UCX); name transports and devices that it has (tcp, ib), or sm alone for peers of this host, or unset it`:                            {on: sockets("UCX_TLS=TCP")},
		"bad option: UCX_TLS=tcp UCX_NET_DEVICES=eth9: no network device of this machine is left: UCX_NET_DEVICES=eth9 (not on this machine: eth9); name transports and devices that it has (tcp, ib), or sm alone for peers of this host, or unset it": {on: sockets("UCX_TLS=tcp", "UCX_NET_DEVICES=eth9")},
		"bad option: UCX_NET_DEVICES=mlx5_0:1: no network device of this machine is left: UCX_NET_DEVICES=mlx5_0:1 (not on this machine: mlx5_0); name transports and devices that it has (tcp, ib), or sm alone for peers of this host, or unset it":   {on: sockets("UCX_NET_DEVICES=mlx5_0:1")},
		"bad option: UCX_TLS=^: the list is empty; name some, or unset it":                                                                                                                                                                              {on: sockets("UCX_TLS=^")},
		`bad option: provider="sm" (from GORAIL_PROVIDER) contradicts UCX_TLS=tcp, which means provider=tcp here; remove one of the two, or write provider=tcp`:                                                                                         {on: machine("UCX_TLS=tcp", "GORAIL_PROVIDER=sm")},
		`bad option: provider="auto" (from GORAIL_PROVIDER) contradicts UCX_TLS=tcp, which means provider=tcp here; remove one of the two, or write provider=tcp`:                                                                                       {on: machine("UCX_TLS=tcp", "GORAIL_PROVIDER=auto")},
		`bad option: provider="tcp,sm" contradicts engine_config TLS=tcp, which means provider=tcp here; remove one of the two, or write provider=tcp`:                                                                                                  {on: machine(), params: []string{"engine_config", "TLS=tcp", "provider", "tcp,sm"}},
		`bad option: devices="eth1" (from GORAIL_DEVICES) contradicts UCX_NET_DEVICES=lo, which means devices=lo,memory here; remove one of the two, or write devices=lo,memory`:                                                                        {on: sockets("UCX_NET_DEVICES=lo", "GORAIL_DEVICES=eth1")},
		`bad option: devices="eth0" contradicts device_list=mlx5_0, which means devices=mlx5_0,memory here; remove one of the two, or write devices=mlx5_0,memory`:                                                                                      {on: machine(), params: []string{"device_list", "mlx5_0", "devices", "eth0"}},
		`bad option: devices="eth*" contradicts device_list=^eth1, which means devices=!eth1 here; remove one of the two, or write devices=!eth1`:                                                                                                       {on: machine(), params: []string{"device_list", "^eth1", "devices", "eth*"}},
		`bad option: max_rails="4" contradicts UCX_MAX_RMA_RAILS=16, which means max_rails=16 here; remove one of the two, or write max_rails=16`:                                                                                                       {on: machine("UCX_MAX_RMA_RAILS=16"), params: []string{"max_rails", "4"}},
	} {
		got, err := translateUCX(of.on, of.params...)
		require.ErrorIs(t, err, ErrValue, want)
		assert.EqualError(t, err, want)
		assert.Zero(t, got)
	}
	// The same settings mean nothing to another name.
	got, err := AliasOf("LIBFABRIC").Translate(map[string]string{"devices": "eth0"}, machine("UCX_IB_GID_INDEX=x", "UCX_TLS=tcp", "UCX_NET_DEVICES=lo"))
	require.NoError(t, err)
	assert.Equal(t, Translated{Params: map[string]string{"devices": "eth0"}}, got)
}

// TestUCXAgrees: an option that says the same, or less of the same, stays.
func TestUCXAgrees(t *testing.T) {
	for _, on := range []Machine{
		machine("UCX_TLS=tcp", "GORAIL_PROVIDER=TCP"), machine("UCX_TLS=rc,tcp,sm", "GORAIL_PROVIDER=sm, tcp"), machine("UCX_TLS=shm", "GORAIL_PROVIDER=local"), sockets("UCX_TLS=^ib", "GORAIL_PROVIDER=tcp"),
		machine("UCX_NET_DEVICES=mlx5_1:1,mlx5_0:1", "GORAIL_DEVICES=mlx5_0,mlx5_1"), machine("UCX_NET_DEVICES=mlx5_1:1,mlx5_0:1", "GORAIL_DEVICES=mlx5_0,memory"),
		machine("UCX_NET_DEVICES=^eth1", "GORAIL_DEVICES=!eth1"), machine("UCX_NET_DEVICES=^eth1", "GORAIL_DEVICES=eth0"), machine("UCX_IB_GID_INDEX=3", "GORAIL_GID_INDEX=3"),
		machine("UCX_MAX_RMA_RAILS=99", "GORAIL_MAX_RAILS=32"), machine("UCX_IB_SL=0", "GORAIL_IB_SERVICE_LEVEL=0"),
	} {
		got := ucxOf(t, on)
		assert.Empty(t, got.Params, on.Environ)
		assert.Empty(t, got.Wrong, on.Environ)
		require.Len(t, got.Ignored, 1, on.Environ)
		assert.Contains(t, got.Ignored[0], "is given and agrees")
	}
	got := ucxOf(t, machine("UCX_TLS=tcp"), "provider", "auto")
	assert.Equal(t, "tcp", got.Params["provider"], "a default that is handed back is not given")
}

// TestUCXPrecedence: as in NIXL's plugin, a variable beats engine_config, and device_list both. Of two in engine_config the last counts.
func TestUCXPrecedence(t *testing.T) {
	got := ucxOf(t, machine("UCX_TLS=tcp", "UCX_NET_DEVICES=eth0", "UCX_TLS=sm"), "engine_config", "TLS=sm,IB_SL=1, IB_SL = 2 ,NET_DEVICES=eth1", "device_list", "lo", "ucx_devices", "eth0")
	assert.Equal(t, map[string]string{"provider": "tcp", "devices": "lo", "ib_service_level": "2"}, got.Params)
	assert.Equal(t, []string{"engine_config TLS=sm (UCX_TLS=tcp takes precedence)", "engine_config IB_SL=1 (given again)", "engine_config NET_DEVICES=eth1 (UCX_NET_DEVICES=eth0 takes precedence)",
		"UCX_NET_DEVICES=eth0 (ucx_devices takes precedence)", "ucx_devices=eth0 (device_list takes precedence)"}, got.Ignored)
	assert.Empty(t, got.Wrong)

	got = ucxOf(t, machine("UCX_TLS=", "UCX_NET_DEVICES= ", "ucx_tls=tcp", "UCX=1", "XUCX_TLS=tcp"), "engine_config", " , TLS=,=,", "device_list", " , ")
	assert.Equal(t, Translated{Params: map[string]string{}}, got, "an empty value is not given")
}

// TestUCXSays: what is not taken is named with the reason, once.
func TestUCXSays(t *testing.T) {
	got := ucxOf(t, sockets(), "engine_config", "RCACHE_ENABLE=n,TLS=^cuda_ipc") // vLLM's sleep mode
	assert.Equal(t, Translated{Params: map[string]string{}, Ignored: []string{"engine_config TLS=^cuda_ipc (" + stays + ")", "engine_config RCACHE_ENABLE=n (GORAIL has no registration cache)"}}, got)
	got = ucxOf(t, amazon("UCX_TLS=^cuda_ipc,ib"))
	assert.Equal(t, []string{"provider=tcp,sm (UCX_TLS=^cuda_ipc,ib)"}, got.Taken)
	assert.Equal(t, []string{"UCX_TLS=^cuda_ipc,ib (" + stays + ")"}, got.Ignored)
	got = ucxOf(t, sockets("UCX_TLS=tcp,sm,cuda_copy"))
	assert.Equal(t, []string{"UCX_TLS=tcp,sm,cuda_copy (" + stays + ")"}, got.Ignored)
	assert.Equal(t, []string{"UCX_TLS=tcp,sm (auto takes the same here)"}, ucxOf(t, sockets("UCX_TLS=tcp,sm")).Ignored, "no word of GPUs")

	got = ucxOf(t, sockets("UCX_LOG_LEVEL=info", "UCX_HANDLE_ERRORS=none", "HOME=/"), "engine_config", "tls=tcp,RNDV_THRESH=inf", "num_workers", "2", "num_threads", "3")
	assert.Equal(t, []string{"UCX_HANDLE_ERRORS, UCX_LOG_LEVEL, engine_config RNDV_THRESH, engine_config tls (no GORAIL equivalent)", "num_workers (no GORAIL equivalent)"}, got.Ignored)
	assert.Equal(t, []string{"copy_threads=3 (num_threads=3)"}, got.Taken)

	got = ucxOf(t, sockets("UCX_TLS=tcp,Sm,foo"), "engine_config", "UCX_IB_SL=1,TLS=rc,cuda")
	assert.Equal(t, []string{"engine_config UCX_IB_SL=1 (names in engine_config have no UCX_)", `engine_config cuda (no "=": NIXL cuts engine_config at each comma; lists can be given in the environment)`,
		`UCX_TLS=tcp,Sm,foo ("Sm" is no transport of UCX)`, `UCX_TLS=tcp,Sm,foo ("foo" is no transport of UCX)`}, got.Wrong)
	assert.Equal(t, "tcp", got.Params["provider"])
}

// TestUCXWords: all of auto's fabrics are here, and a word that stands for transports stands for known ones.
func TestUCXWords(t *testing.T) {
	for word, stands := range transports {
		for _, transport := range stands {
			assert.Contains(t, transports, transport, word)
		}
	}
	for _, f := range fabrics {
		require.NoError(t, rowOf("provider").set(&Options{}, f.name))
		for _, transport := range f.transports {
			assert.Contains(t, transports, transport, f.name)
		}
	}
	for _, n := range ucxNumbers {
		assert.NotEmpty(t, rowOf(n.to).Name, n.name)
	}
}

// FuzzUCX: any settings give an error that names one, or options that Parse takes.
func FuzzUCX(f *testing.F) {
	f.Add("^cuda_ipc", "mlx5_[0-9]:1,lo", "TLS=^sm,IB_SL=1", "eth0")
	f.Add("all", "^eth[0-1]", "RCACHE_ENABLE=n,", "all")
	f.Fuzz(func(t *testing.T, tls, net, config, list string) {
		got, err := translateUCX(machine("UCX_TLS="+tls, "UCX_NET_DEVICES="+net), "engine_config", config, "device_list", list)
		if err != nil {
			require.ErrorIs(t, err, ErrValue)
			return
		}
		_, unknown, err := Parse(got.Params, nil)
		require.NoError(t, err)
		require.Empty(t, unknown)
		require.True(t, slices.IsSorted(unknown))
	})
}
