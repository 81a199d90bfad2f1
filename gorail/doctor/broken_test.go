package doctor

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// rxe are two software RoCE devices over one server's interfaces.
const rxe = `
net lo ifindex=1 operstate=unknown carrier=1 mtu=65536 type=772
net eth0 ifindex=2 operstate=up carrier=1 speed=10000
net eth1 ifindex=3 operstate=up carrier=1 speed=10000
rdma rxe0 parent=eth0 state="4: ACTIVE" rate="10 Gb/sec (4X SDR)" link_layer=Ethernet
rdma rxe1 parent=eth1 state="4: ACTIVE" rate="10 Gb/sec (4X SDR)" link_layer=Ethernet
sys class/infiniband/rxe0/ports/1/gids/0=0000:0000:0000:0000:0000:ffff:c633:6407
sys class/infiniband/rxe0/ports/1/gid_attrs/types/0=RoCE v2
sys class/infiniband/rxe1/ports/1/gids/0=0000:0000:0000:0000:0000:ffff:c633:6408
sys class/infiniband/rxe1/ports/1/gid_attrs/types/0=RoCE v2
sys class/infiniband_verbs/uverbs0/ibdev=rxe0
sys class/infiniband_verbs/uverbs1/ibdev=rxe1
dev infiniband/uverbs0
dev infiniband/uverbs1
dev infiniband/rdma_cm
lib verbs=rdma-core 50
`

const pcieCard = `
net lo ifindex=1 operstate=unknown carrier=1 mtu=65536 type=772
rdma mlx5_0 nets=ib0 state="4: ACTIVE" rate="400 Gb/sec (4X NDR)" link_layer=InfiniBand driver=mlx5_core numa=0 pci=pci0000:15/0000:15:01.0/0000:18:00.0
sys class/infiniband_verbs/uverbs0/ibdev=mlx5_0
dev infiniband/uverbs0
dev infiniband/rdma_cm
pci 0000:18:00.0 current_link_speed=32.0 GT/s PCIe
pci 0000:18:00.0 max_link_width=16
pci 0000:18:00.0 max_link_speed=32.0 GT/s PCIe
`

// TestBroken: the first FAIL of a broken set-up is the cause, and with the remedy nothing fails.
func TestBroken(t *testing.T) {
	const server = "file server\n"
	for name, c := range map[string]struct{ base, broken, remedied, first, says string }{
		"wrong device":           {server, "env GORAIL_DEVICES=eth9", "env GORAIL_DEVICES=bond0", "devices-option", `"eth9"`},
		"glob of nothing":        {server, "env GORAIL_DEVICES=mlx5_*", "env GORAIL_DEVICES=bond*,!docker7", "devices-option", `"mlx5_*"`},
		"wrong value":            {server, "env GORAIL_MAX_RAILS=many", "env GORAIL_MAX_RAILS=2", "options", "max_rails"},
		"unknown parameter":      {server, "param device=eth0", "param devices=bond0", "options", "did you mean devices"},
		"no /dev/infiniband":     {pcieCard, "sys class/infiniband_verbs/uverbs0/ibdev=other\nfail rails=is /dev/infiniband there?\nfail engine=no rail", "", "rdma-nodes", "mlx5_0"},
		"closed /dev/infiniband": {rxe, "fail open=permission denied", "", "rdma-nodes", "permission denied"},
		"memlock":                {rxe, "host memlock=65536\nhost uid=1000\nfail engine=cannot allocate memory", "host uid=1000", "memlock", "64 KiB"},
		"IPC_LOCK of no use":     {rxe, "host memlock=65536\nhost uid=1000\nproc self/status=CapEff:	0\\nCapBnd:	0000000000004000", "host uid=1000", "memlock", "64 KiB"},
		"seccomp":                {server, "proc self/status=Seccomp:	2\nfail reach=pidfd_open: operation not permitted (or seccomp forbids the call)", "", "seccomp", "seccomp"},
		"no folder":              {server, "env GORAIL_LOCAL_DIR=/meet\nfail localdir=no such file or directory", "env GORAIL_LOCAL_DIR=/meet", "local-dir", "no such file"},
		"no user in the map":     {server, "fail reach=check: value too large (this user's id is the overflow id)", "", "process-vm", "overflow id"},
		"old libfabric":          {server, "env GORAIL_PROVIDER=efa,tcp\nfail libfabric=version 1.8 is too old", "env GORAIL_PROVIDER=tcp", "libfabric", "too old"},
		"no libfabric":           {"file p5-48xlarge\n", "fail libfabric=cannot open libfabric.so.1\nfail rails=no library", "", "libfabric", "libfabric.so.1"},
		"no libibverbs":          {rxe, "fail verbs=cannot open libibverbs.so.1\nfail rails=no library", "", "rdma-core", "libibverbs"},
		"two wheels, torch":      {server, "soft wheels=cu12 cu13\nsoft wheel.err=torch is built for CUDA 11", "soft wheels=cu12 cu13", "wheel", "CUDA 11"},
		"two wheels, folder":     {server, "soft wheels=cu12 cu13\nsoft wheel.takes=cu13", "soft wheels=cu12 cu13\nsoft wheel.takes=cu13\nsoft folder.variant=cu13", "plugin-dir", "nixl-cu13"},
		"a wheel removed":        {server, "soft files=GORAIL! UCX?", "", "plugin-dir", "UCX"},
		"no GORAIL":              {server, "soft files=UCX POSIX\nfail nixl=not found", "soft files=UCX! GORAIL!", "plugin-dir", "no GORAIL"},
		"another version":        {server, "soft plugin.version=0.9", "", "version", "0.9"},
		"old glibc":              {server, "soft glibc=2.17", "", "glibc", "2.17"},
		"another processor":      {server, "soft plugin.err=is for EM_AARCH64, and this machine is amd64", "", "plugin", "EM_AARCH64"},
		"PCIe x8":                {pcieCard, "pci 0000:18:00.0 current_link_width=8", "pci 0000:18:00.0 current_link_width=16", "pcie", "x8 at 32 GT/s"},
		"a rail down":            {rxe, "sys class/infiniband/rxe1/ports/1/state=1: DOWN", "sys class/infiniband/rxe1/ports/1/state=1: DOWN\nenv GORAIL_DEVICES=!rxe1", "ports", "rxe1"},
		"full disk":              {server, "fail write=ENOSPC", "", "disk", "no space"},
		"64 descriptors":         {server, "host nofile=64", "", "nofile", "64"},
		"no rail":                {server, "env GORAIL_PROVIDER=verbs\nlib verbs=x\nfail rails=no InfiniBand device\nfail engine=x", "", "rails", "no InfiniBand device"},
		"engine":                 {server, "fail engine=port in use", "", "engine", "port in use"},
		"agent":                  {server, "fail nixl=its table is unknown", "", "nixl", "table"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.first != "" {
				r := Run(load(t, c.base+c.broken))
				require.True(t, r.Failed())
				first := first(r)
				require.Equal(t, c.first, first.ID, first.Text)
				require.Contains(t, first.Text, c.says)
				require.NotEmpty(t, first.Remedy)
			}
			r := Run(load(t, c.base+c.remedied))
			require.False(t, r.Failed(), "%+v", first(r))
		})
	}
}

// TestOptionsLeftOut: wrong parameters and variables fail one by one, and all other checks go on with those that are right.
func TestOptionsLeftOut(t *testing.T) {
	h := load(t, "file server\nparam max_rails=1\nparam device=eth0\nparam rail_timeout=soon\nenv GORAIL_QPS_PER_RAIL=few\nenv GORAIL_DEVICES=bond0")
	r := Run(h)
	var fails []string
	for _, c := range r.Checks {
		if c.Status == Fail {
			fails = append(fails, c.ID+" "+c.Text)
		}
	}
	require.Len(t, fails, 3)
	wrong := strings.Join(fails[:2], "\n")
	require.Contains(t, wrong, `rail_timeout="soon"`)
	require.Contains(t, wrong, `qps_per_rail="few" (from GORAIL_QPS_PER_RAIL)`)
	require.Contains(t, fails[2], "did you mean devices?")
	require.Equal(t, map[string]string{"max_rails": "1"}, h.Params)
	require.Greater(t, len(r.Checks), 20)
	_, err := Look(load(t, "file server\nparam device=eth0"))
	require.ErrorContains(t, err, "did you mean devices?")

	twice := load(t, "file server\nparam max_rails=many\nenv GORAIL_MAX_RAILS=more\nparam peer_names=certified")
	r = Run(twice)
	require.Equal(t, Fail, r.Checks[2].Status, "%+v", r.Checks[:4])
	require.NotEqual(t, "options", r.Checks[3].ID)
}

// TestEnabled: where the package nixl_gorail is beside NIXL, nobody needs NIXL_PLUGIN_DIR.
func TestEnabled(t *testing.T) {
	r := Run(load(t, "file server\nsoft folder=\nsoft folder.enabled=yes"))
	for _, c := range r.Checks {
		require.Equal(t, Pass, c.Status, "%+v", c)
	}
}

// TestStyle: what is wrong comes last, --quiet has nothing else, and colours come only when they are asked for.
func TestStyle(t *testing.T) {
	r := Run(load(t, "file half-container"))
	var quiet, coloured strings.Builder
	require.NoError(t, r.Text(&quiet, Style{Quiet: true}))
	lines := strings.Split(strings.TrimSpace(quiet.String()), "\n")
	require.Equal(t, "29 passed, 8 warnings, 3 failed; begin with rdma-nodes", lines[len(lines)-1])
	require.Len(t, lines, 12)
	for i, l := range lines[:11] {
		require.True(t, strings.HasPrefix(l, map[bool]string{true: "WARN ", false: "FAIL "}[i < 8]), l)
	}
	require.NoError(t, r.Text(&coloured, Style{Colour: true}))
	require.Contains(t, coloured.String(), "\x1b[1;31mFAIL\x1b[0m rdma-nodes")
}

func first(r *Report) Check {
	for _, c := range r.Checks {
		if c.Status == Fail {
			return c
		}
	}
	return Check{}
}

// TestWarnings: what costs something and may be intended is a warning.
func TestWarnings(t *testing.T) {
	for name, c := range map[string]struct{ lines, id, says string }{
		"read-only root":     {"file server\nfail write=EROFS", "disk", "/tmp"},
		"slower interface":   {"file server\nsys class/net/ens2f1np1/speed=20000", "link-speed", "ens2f1np1 runs at 20 Gbit/s, and an equal interface at 25 Gbit/s"},
		"glob beside others": {"file server\nenv GORAIL_DEVICES=mlx5_*,bond0", "devices-option", "mlx5_*"},
		"misspelt variable":  {"file server\nenv GORAIL_DEVICE=bond0", "variables", "did you mean GORAIL_DEVICES?"},
		"no plugin folder":   {"file server\nsoft folder=", "plugin-dir", "NIXL_PLUGIN_DIR"},
		"no wheel":           {"file server\nsoft wheels=\nsoft wheel.takes=", "wheel", "no NIXL wheel"},
		"NIXL elsewhere":     {"file server\nsoft wheel.own=/opt/tool", "wheel", "own environment (/opt/tool) has no NIXL; shown is that of python3 in PATH: nixl-cu12 in"},
		"slower than equal":  {rxe + "sys class/infiniband/rxe1/ports/1/rate=2.5 Gb/sec (1X SDR)", "link-speed", "rxe1"},
		"a port of two":      {"file dgx-spark", "ports", "roceP2p1s0f0"},
		"PCIe of a card":     {"file dgx-spark", "pcie", "108.4 Gbit/s"},
		"only this host":     {"net lo ifindex=1 operstate=unknown carrier=1 type=772\naddr lo=127.0.0.1", "rails", "no rail leaves this host"},
		"few descriptors":    {"file server\nhost nofile=512", "nofile", "512"},
		"Yama 1":             {"file server\nproc sys/kernel/yama/ptrace_scope=1\nlib reach=ring (process_vm_readv: operation not permitted (Yama's scope is 1))", "yama", "ptrace_scope 1 forbids direct copies"},
		"Yama 2":             {"file server\nproc sys/kernel/yama/ptrace_scope=2\nlib reach=ring (process_vm_readv: operation not permitted (Yama's scope is 2))", "yama", "ptrace_scope 2 forbids direct copies"},
		"seccomp":            {"file server\nproc self/status=Seccomp:	2\nlib reach=ring (process_vm_readv: operation not permitted (or seccomp forbids the call))", "seccomp", "peers take the ring"},
		"other groups":       {"file server\nlib reach=ring (process_vm_readv: operation not permitted)", "process-vm", "peers take the ring"},
		"no folder":          {"file server\nproc self/ns/pid=pid:[1]", "local-dir", "use the network"},
		"a closed folder":    {"file server\nfail localdir=EPERM", "local-dir", "EPERM"},
		"no socket":          {"file server\nfail socket=", "stats-socket", "see no engine of this user: folder /run/gorail: permission denied"},
		"a socket elsewhere": {"file server\nenv GORAIL_STATS_SOCKET=/no\nfail socket=", "stats-socket", "folder /no: permission denied"},
		"some memory pinned": {rxe + "host uid=1000\nhost memlock=1073741824", "memlock", "1 GiB"},
	} {
		t.Run(name, func(t *testing.T) {
			r := Run(load(t, c.lines))
			require.False(t, r.Failed(), "%+v", first(r))
			var texts []string
			for _, w := range r.Checks {
				if w.ID == c.id && w.Status == Warn {
					texts = append(texts, w.Text+"; "+w.Remedy)
				}
			}
			require.NotEmpty(t, texts)
			require.Contains(t, texts[0], c.says)
		})
	}
}
