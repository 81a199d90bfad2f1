package topo_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/topo"
	"gorail/test/topotest"
)

// nested is a machine with two switches in a row below one processor.
const nested = `<?xml version="1.0" encoding="UTF-8"?>
<!-- a comment -->
<system version="1">
  <cpu numaid="0" arch="x86_64"><nic><net name="virtual0"/></nic>
    <pci busid="FFFF:FF:01.0" class="0x060400">
      <pci busid="ffff:ff:02.0" class="0x060400">
        <pci busid="0001:00:00.0" class="0x030200"><gpu dev="0"><nvlink target="0068:00:00.0" count="18"/></gpu></pci>
        <pci busid="0101:00:00.0" class="0x020700"><nic><net name="mlx5_0" dev="0"/></nic></pci>
        <pci busid="0101:00:00.1" class="0x020700"/>
      </pci>
      <pci busid="0102:00:00.0" class="0x020700"/>
    </pci>
    <pci busid="0103:00:00.0" class="0x020700"/>
  </cpu>
  <cpu numaid="1"><pci busid="0104:00:00.0"/><pci busid="0101:00:00.0"/></cpu>
</system>`

func TestParseNCCL(t *testing.T) {
	n, err := topo.ParseNCCL(strings.NewReader(nested))
	require.NoError(t, err)
	require.Len(t, n, 6, "no switches: %v", n)
	gpu := n["0001:00:00.0"]
	for address, want := range map[string]topo.Closeness{
		"0101:00:00.0": topo.SameSwitch, "0101:00:00.1": topo.SameSwitch, "0102:00:00.0": topo.SamePort,
		"0103:00:00.0": topo.SameRoot, "0104:00:00.0": topo.OtherRoot, "0001:00:00.0": topo.SameSlot,
	} {
		require.Equal(t, want, topo.Between(gpu, n[address]), address)
	}
	require.Equal(t, topo.SameSlot, topo.Between(n["0101:00:00.0"], n["0101:00:00.1"]))
	require.Equal(t, "ffff:ff:02.0", gpu.SwitchOrPort())
	require.Equal(t, "ffff:ff:01.0", n["0102:00:00.0"].SwitchOrPort())
	require.Equal(t, "0104:00:00.0", n["0104:00:00.0"].Addr())

	deep := `<system version="1"><cpu>` + strings.Repeat(`<pci busid="0000:00:01.0">`, 63)
	for name, c := range map[string]struct{ text, want string }{
		"empty":          {"", "names no PCI function"},
		"no processor":   {`<system version="1"><pci busid="0000:01:00.0"><pci busid="0000:02:00.0"/></pci></system>`, "names no PCI function"},
		"no functions":   {`<system version="1"><cpu numaid="0"/></system>`, "names no PCI function"},
		"another file":   {"<html><body/></html>", "not a topology of NCCL: it begins with <html"},
		"next version":   {`<system version="2"/>`, "not a topology of NCCL"},
		"graph":          {`<graphs version="1"/>`, "not a topology of NCCL"},
		"cut short":      {nested[:400], "unexpected EOF"},
		"no XML":         {"NCCL_DEBUG=INFO <", "unexpected EOF"},
		"odd address":    {`<system version="1"><cpu><pci busid="eth0"/></cpu></system>`, `busid: "eth0" is not a PCI address`},
		"no address":     {`<system version="1"><cpu><pci/></cpu></system>`, "is not a PCI address"},
		"deep":           {deep, "nest deeper than 64"},
		"large":          {`<system version="1">` + strings.Repeat(" ", 1<<20), "more than 1048576 bytes"},
		"one large word": {`<system version="` + strings.Repeat("1", 1<<20), "more than 1048576 bytes"},
	} {
		_, err := topo.ParseNCCL(strings.NewReader(c.text))
		require.ErrorContains(t, err, c.want, name)
	}
}

// The file gives places where sysfs shows none, and leaves those that sysfs shows.
func TestNest(t *testing.T) {
	n, err := topo.ParseNCCL(strings.NewReader(nested))
	require.NoError(t, err)
	sys := topotest.Parse(t, `
gpu 0 pci=pci0001:00/0001:00:00.0
rdma a nets=ia pci=pci0101:00/0101:00:00.0
net ia pci=pci0101:00/0101:00:00.0
rdma b pci=pci0102:00/0102:00:00.0
rdma c pci=pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0104:00:00.0
rdma d pci=pci0200:00/0200:00:00.0`)
	m := topo.Read(sys)
	require.Equal(t, topo.OtherRoot, topo.Between(m.Path("0001:00:00.0"), m.Device("a").PCI))
	m = topo.Read(sys)
	m.Nest(n)
	gpu := m.Path("0001:00:00.0")
	require.Equal(t, topo.SameSwitch, topo.Between(gpu, m.Device("a").PCI))
	require.Equal(t, topo.SameSwitch, topo.Between(gpu, m.Net("ia").PCI))
	require.Equal(t, topo.SamePort, topo.Between(gpu, m.Device("b").PCI))
	require.Equal(t, "pci0000:00", m.Device("c").PCI[0], "sysfs shows a switch")
	require.Equal(t, topo.PCIPath{"pci0200:00", "0200:00:00.0"}, m.Device("d").PCI)
	require.Nil(t, m.Path("0300:00:00.0"))
	require.Nil(t, (&topo.Machine{}).Path("0001:00:00.0"))

	azure, dgx := topo.Read(topotest.FS(t, "testdata/azure-nd-h100.txt")), topo.Read(topotest.FS(t, "testdata/dgx-h100.txt"))
	require.NoError(t, azure.NestFile("testdata/azure-nd-h100.xml"))
	require.Equal(t, topo.SameSwitch, topo.Between(azure.Path("000a:00:00.0"), azure.Device("mlx5_ib5").PCI))
	require.ErrorContains(t, dgx.NestFile("testdata/azure-nd-h100.xml"), "azure-nd-h100.xml names no RDMA device of this machine")
	require.ErrorContains(t, dgx.NestFile("testdata/nosuch.xml"), "no such file")
	require.Equal(t, "pci0000:15", dgx.Device("mlx5_0").PCI[0])
}

// NCCL's own order: the environment, the user's file, the daemon's.
func TestNCCLFile(t *testing.T) {
	dir := t.TempDir()
	own := filepath.Join(dir, ".nccl.conf")
	require.NoError(t, os.WriteFile(own, []byte("# NCCL\nNCCL_DEBUG=INFO\nNCCL_TOPO_FILE=/opt/own.xml\n"), 0o600))
	other := filepath.Join(dir, "other.conf")
	require.NoError(t, os.WriteFile(other, []byte("NCCL_TOPO_FILE=/opt/other.xml"), 0o600))
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"NCCL_TOPO_FILE": "/opt/env.xml", "HOME": dir}, "/opt/env.xml"},
		{map[string]string{"HOME": dir}, "/opt/own.xml"},
		{map[string]string{"HOME": dir, "NCCL_CONF_FILE": other}, "/opt/other.xml"},
	} {
		require.Equal(t, c.want, topo.NCCLFile(func(name string) (string, bool) { v, ok := c.env[name]; return v, ok }))
	}
	_, err := topo.ReadNCCLFile(filepath.Join(dir, "nosuch.xml"))
	require.ErrorContains(t, err, "nosuch.xml: no such file")
	_, err = topo.ReadNCCLFile(own)
	require.ErrorContains(t, err, ".nccl.conf: it names no PCI function")
	_, err = topo.ReadNCCLFile(dir)
	require.ErrorContains(t, err, "is not a regular file")
	_, err = topo.ReadNCCLFile("/dev/zero")
	require.ErrorContains(t, err, "is not a regular file")
	n, err := topo.ReadNCCLFile("testdata/azure-nd-h100.xml")
	require.NoError(t, err)
	require.Len(t, n, 16)
}

// No file makes trouble, and each path that comes out is one that Between and SwitchOrPort take.
func FuzzNCCL(f *testing.F) {
	f.Add(nested)
	f.Add(`<system version="1"><cpu><pci busid="0000:01:00.0"><pci busid="0000:01:00.0"/></pci></cpu></system>`)
	f.Add(`<system version="1"><pci busid="0000:01:00.0"><pci busid="0000:02:00.0"/></pci></system>`)
	f.Add("<!DOCTYPE x [<!ENTITY a \"b\">]><system version='1'>&a;</system>")
	f.Fuzz(func(t *testing.T, text string) {
		n, err := topo.ParseNCCL(strings.NewReader(text))
		if (err == nil) != (len(n) > 0) {
			t.Fatalf("%d functions, error %v", len(n), err)
		}
		var before topo.PCIPath
		for address, p := range n {
			if p.Addr() != address || len(p) < 3 || len(p) > 200 || p.SwitchOrPort() == "" {
				t.Fatalf("%s: %q", address, p)
			}
			if topo.Between(p, p) != topo.SameSlot || topo.Between(p, before) != topo.Between(before, p) {
				t.Fatalf("%q and %q", p, before)
			}
			before = p
		}
	})
}
