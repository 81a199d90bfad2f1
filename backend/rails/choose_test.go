package rails_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/topo"
	"gorail/test/topotest"
)

func machine(t *testing.T, name string) *topo.Machine {
	t.Helper()
	return topotest.Read(t, "../topo/testdata/"+name+".txt")
}

// sockets are devices of libfabric's tcp provider, one for each name. "name=addr" gives the address; else the device has
// one of its own.
func sockets(names ...string) (all []provider.Device) {
	for i, n := range names {
		name, addr, ok := strings.Cut(n, "=")
		if !ok {
			addr = fmt.Sprintf("10.0.%d.1", i)
		}
		if name == "lo" {
			addr = "127.0.0.1"
		}
		ip := netip.MustParseAddr(addr)
		bits := 24
		if ip.Is6() {
			bits = 64
		}
		net, _ := ip.Prefix(bits)
		all = append(all, provider.Device{Provider: "ofi", Fabric: "net", Name: name, Subnet: net.String(), Addr: addr,
			Loopback: name == "lo", NUMA: -1})
	}
	return all
}

// hardware are devices of an RDMA provider, whose speed libfabric does not report.
func hardware(fabric, suffix string, names ...string) (all []provider.Device) {
	for _, n := range names {
		all = append(all, provider.Device{Provider: "ofi", Fabric: fabric, Name: n + suffix, Subnet: fabric, Hardware: true, NUMA: -1})
	}
	return all
}

func rdmaNames(m *topo.Machine) (all []string) {
	for _, r := range m.RDMA {
		all = append(all, r.Name)
	}
	return all
}

func netNames(m *topo.Machine) (all []string) {
	for _, n := range m.Nets() {
		all = append(all, n.Name)
	}
	return all
}

func TestChooseOnMachines(t *testing.T) {
	dgx, p5, sling, server, pod, hyper := machine(t, "dgx-h100"), machine(t, "p5-48xlarge"), machine(t, "slingshot"),
		machine(t, "server"), machine(t, "container"), machine(t, "hypervisor")
	verbs := hardware("verbs;ofi_rxm", "", rdmaNames(dgx)...)
	efa := hardware("efa", "-rdm", rdmaNames(p5)...)
	for name, c := range map[string]struct {
		m     *topo.Machine
		found []provider.Device
		opt   rails.ChooseOptions
		want  string
		left  string
	}{
		"dgx, verbs": {m: dgx, found: verbs, opt: rails.ChooseOptions{MaxRails: 8},
			want: "mlx5_0 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_9 mlx5_10 mlx5_11",
			left: "mlx5_1: over max_rails=8, mlx5_7: over max_rails=8"},
		"dgx, four": {m: dgx, found: verbs, opt: rails.ChooseOptions{MaxRails: 4}, want: "mlx5_0 mlx5_3 mlx5_6 mlx5_9",
			left: "mlx5_1: over max_rails=4, mlx5_4: over max_rails=4, mlx5_5: over max_rails=4, mlx5_7: over max_rails=4, " +
				"mlx5_10: over max_rails=4, mlx5_11: over max_rails=4"},
		"dgx, storage as asked": {m: dgx, found: verbs, opt: rails.ChooseOptions{Devices: []string{"mlx5_1", "mlx5_7"}, MaxRails: 8},
			want: "mlx5_1 mlx5_7", left: "mlx5_0: excluded by option devices, mlx5_3: excluded by option devices, " +
				"mlx5_4: excluded by option devices, mlx5_5: excluded by option devices, mlx5_6: excluded by option devices, " +
				"mlx5_9: excluded by option devices, mlx5_10: excluded by option devices, mlx5_11: excluded by option devices"},
		"dgx, sockets": {m: dgx, found: sockets("docker0", "eno3", "ens6f0", "bmc_redfish0", "ibp24s0", "ibp64s0", "lo", "enp41s0f0np0"),
			want: "lo ibp24s0 enp41s0f0np0 ibp64s0",
			left: "bmc_redfish0: management interface, eno3: 1 Gb/s beside 400 Gb/s, ens6f0: management interface, docker0: container bridge"},
		"p5": {m: p5, found: efa, opt: rails.ChooseOptions{MaxRails: 8, Slots: 8},
			want: "rdmap79s0-rdm rdmap96s0-rdm rdmap113s0-rdm rdmap130s0-rdm rdmap147s0-rdm rdmap164s0-rdm rdmap181s0-rdm rdmap198s0-rdm"},
		"p5, two of a switch": {m: p5, found: efa, opt: rails.ChooseOptions{MaxRails: 8, Devices: []string{"rdmap8?s0"}},
			want: "rdmap80s0-rdm rdmap81s0-rdm rdmap82s0-rdm"},
		"p5, sockets": {m: p5, found: sockets("ens32", "lo", "docker0"), want: "lo ens32", left: "docker0: link is down"},
		"p5, sockets beside": {m: p5, found: append(sockets("lo", "ens32"), efa[:2]...), opt: rails.ChooseOptions{Fabrics: []string{"efa", "tcp"}},
			want: "lo rdmap79s0-rdm rdmap80s0-rdm ens32"},
		"slingshot": {m: sling, found: hardware("cxi", "", "cxi3", "cxi1", "cxi0", "cxi2"), want: "cxi0 cxi1 cxi2 cxi3"},
		"slingshot, sockets": {m: sling, found: sockets("nmn0", "hsn3", "hsn2", "hsn1", "hsn0", "lo"),
			want: "lo hsn0 hsn1 hsn2 hsn3", left: "nmn0: 1 Gb/s beside 200 Gb/s"},
		"slingshot, nothing better": {m: sling, found: sockets("nmn0"), want: "nmn0"},
		"server": {m: server, found: sockets(netNames(server)...), want: "lo ens2f0np0 ens2f1np1 bond0 bond0.7",
			left: "eno1: 1 Gb/s beside 50 Gb/s, eno2: link is down, wlp5s0: wireless, ens10f0: port of bond bond0, " +
				"ens10f1: port of bond bond0, docker0: container bridge, tun0: tunnel, veth9a0b1c2: port of bridge docker0, virbr0: link is down"},
		"server, as asked": {m: server, found: sockets("eno1", "eno2", "docker0", "wlp5s0", "virbr0", "tun0"),
			opt:  rails.ChooseOptions{Devices: []string{"e*", "docker0", "virbr0", "tun0"}},
			want: "eno1 docker0 tun0", left: "eno2: link is down, wlp5s0: excluded by option devices, virbr0: link is down"},
		"server, by number": {m: server, found: sockets("docker0", "lo", "ens2f1np1", "ens2f0np0", "eno2", "eno1"),
			opt: rails.ChooseOptions{Devices: []string{"#2", "#0", "^lo"}}, want: "eno1 ens2f0np0",
			left: "lo: excluded by option devices, eno2: excluded by option devices, ens2f1np1: excluded by option devices, " +
				"docker0: excluded by option devices"},
		"server, not the first": {m: server, found: sockets("ens2f1np1", "ens2f0np0", "lo"), opt: rails.ChooseOptions{Devices: []string{"!#0"}},
			want: "lo ens2f1np1", left: "ens2f0np0: excluded by option devices"},
		"server, second address": {m: server, found: sockets("ens2f0np0=2001:db8::1", "ens2f0np0=10.9.0.9", "ens2f0np0=10.9.0.10"),
			want: "ens2f0np0", left: "ens2f0np0: a second address of ens2f0np0, ens2f0np0: a second address of ens2f0np0"},
		"container":              {m: pod, found: sockets("eth0", "lo"), opt: rails.ChooseOptions{MaxRails: 8, Slots: 8}, want: "lo eth0"},
		"container, one slot":    {m: pod, found: sockets("lo", "eth0"), opt: rails.ChooseOptions{MaxRails: 1, Slots: 1}, want: "eth0", left: "lo: over max_rails=1"},
		"container, lo as asked": {m: pod, found: sockets("lo"), opt: rails.ChooseOptions{MaxRails: 1, Slots: 1, Devices: []string{"lo"}}, want: "lo"},
		"bridge to a wire":       {m: hyper, found: sockets("lo", "br0"), want: "lo br0"},
		"bridge beside a wire":   {m: hyper, found: sockets("lo", "br0", "eth7"), want: "lo eth7", left: "br0: bridge"},
		"nothing known": {m: &topo.Machine{}, found: sockets("eth10", "eth2", "lo", "docker0"), opt: rails.ChooseOptions{MaxRails: 2},
			want: "lo docker0 eth2", left: "eth10: over max_rails=2"},
		"nothing": {m: pod},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(5) { // in any order of found
				found := slices.Clone(c.found)
				if seed > 0 {
					rand.New(rand.NewPCG(seed, 0)).Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
				}
				chosen, left := rails.Choose(found, rails.FactsOf(c.m), c.opt)
				var names []string
				for _, d := range chosen {
					names = append(names, d.Name)
				}
				require.Equal(t, c.want, strings.Join(names, " "))
				if c.left != "" {
					got := rails.Reasons(left)
					for _, fabric := range []string{"net/", "verbs;ofi_rxm/", "efa/", "cxi/"} {
						got = strings.ReplaceAll(got, fabric, "")
					}
					require.Equal(t, c.left, got)
				}
				require.Len(t, append(slices.Clone(chosen), devicesOf(left)...), len(found))
			}
		})
	}
}

func devicesOf(left []rails.Left) (all []provider.Device) {
	for _, l := range left {
		all = append(all, l.Device)
	}
	return all
}

// Choose takes from the machine what libfabric does not report of a device. Of two addresses it takes the IPv4 one.
func TestChooseFillsIn(t *testing.T) {
	m := machine(t, "p5-48xlarge")
	chosen, _ := rails.Choose(hardware("efa", "-rdm", "rdmap147s0"), rails.FactsOf(m), rails.ChooseOptions{})
	require.Equal(t, []any{uint64(100_000), 1}, []any{chosen[0].Mbps, chosen[0].NUMA})
	chosen, _ = rails.Choose(sockets("a=2001:db8::1", "a=10.0.0.9", "a=10.0.0.10"), nil, rails.ChooseOptions{})
	require.Equal(t, "10.0.0.9", chosen[0].Addr)
}

func TestDownRDMA(t *testing.T) {
	m := topo.Read(topotest.Parse(t, `
rdma mlx5_0 state="1: DOWN" rate="400 Gb/sec (4X NDR)"
rdma mlx5_1 state="2: INIT"
rdma mlx5_2 state="4: ACTIVE"
rdma mlx5_3
rdma cxi0 class=cxi nets=hsn0 pci=pci0000:20/0000:20:01.0/0000:21:00.0
net hsn0 operstate=down speed=-1 pci=pci0000:20/0000:20:01.0/0000:21:00.0`))
	chosen, left := rails.Choose(hardware("verbs", "", rdmaNames(m)...), rails.FactsOf(m), rails.ChooseOptions{Devices: []string{"*"}})
	require.Equal(t, "verbs/mlx5_2, verbs/mlx5_3", rails.Names(chosen))
	require.Equal(t, "verbs/cxi0: link is down, verbs/mlx5_0: link is down, verbs/mlx5_1: link is down", rails.Reasons(left))
	require.Equal(t, "none", rails.Names(nil))
}

// For any machine: no device is lost or doubled, the limits hold, each unused device has a reason, and the order of
// discovery does not matter.
func TestChooseAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		facts := map[string]rails.Facts{}
		n := rapid.IntRange(0, 12).Draw(t, "n")
		var found []provider.Device
		for i := range n {
			d := provider.Device{Fabric: rapid.SampledFrom([]string{"net", "efa"}).Draw(t, "fabric"), Name: fmt.Sprint("eth", i), NUMA: -1,
				Loopback: rapid.IntRange(0, 5).Draw(t, "loopback") == 0, Mbps: rapid.SampledFrom([]uint64{0, 1000, 25_000, 100_000}).Draw(t, "mbps")}
			facts[d.Name] = rails.Facts{Down: rapid.IntRange(0, 4).Draw(t, "down") == 0, Bridge: rapid.IntRange(0, 4).Draw(t, "bridge") == 0,
				Wired: rapid.Bool().Draw(t, "wired"), Management: rapid.IntRange(0, 4).Draw(t, "mgmt") == 0, RDMA: rapid.Bool().Draw(t, "rdma"),
				NUMA: rapid.IntRange(-1, 1).Draw(t, "numa")}
			found = append(found, d)
		}
		opt := rails.ChooseOptions{MaxRails: rapid.IntRange(0, 5).Draw(t, "rails"), Slots: rapid.IntRange(0, 6).Draw(t, "slots")}
		of := func(d provider.Device) rails.Facts { return facts[d.Name] }
		chosen, left := rails.Choose(found, of, opt)
		require.Len(t, found, len(chosen)+len(left))
		for _, l := range left {
			require.NotEmpty(t, l.Reason)
		}
		reals, eligible := 0, 0
		for _, d := range found {
			if !d.Loopback && !facts[d.Name].Down && !(facts[d.Name].Bridge && !facts[d.Name].Wired) {
				eligible++
			}
		}
		for _, d := range chosen {
			if !d.Loopback {
				reals++
				require.False(t, facts[d.Name].Down)
			}
		}
		require.True(t, opt.MaxRails == 0 || reals <= opt.MaxRails)
		require.True(t, opt.Slots == 0 || len(chosen) <= opt.Slots)
		require.Equal(t, eligible > 0, reals > 0, "one way out of the machine is kept")
		again, leftAgain := rails.Choose(rapid.Permutation(found).Draw(t, "order"), of, opt)
		require.Equal(t, chosen, again)
		require.Equal(t, left, leftAgain)
	})
}
