package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/gorail/cli"
	"gorail/gorail/doctor"
)

const machines = "../backend/topo/testdata/"

func devices(t *testing.T, args ...string) (d doctor.Devices) {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, run(append([]string{"devices", "--json"}, args...), &out, io.Discard))
	require.NoError(t, json.Unmarshal(out.Bytes(), &d))
	return d
}

// TestDevices: the flags arrive, for a described machine and for this one.
func TestDevices(t *testing.T) {
	d := devices(t, "--topology", machines+"p5-48xlarge.txt")
	require.Len(t, d.Usable, 33)
	require.Empty(t, d.Regions)
	d = devices(t, "--plan", "--topology", machines+"p5-48xlarge.txt", "--rank", "2", "--ranks", "16", "--gpu", "3", "--param", "max_rails=3")
	require.Equal(t, []any{2, 16, 3, 2}, []any{d.Rank, d.Ranks, d.MaxRails, len(d.Regions)})
	require.Equal(t, "GPU 3", d.Regions[0].Memory)
	require.Len(t, d.Regions[0].Rails, 3, "of four")
	shares := 0.0
	for _, r := range d.Regions[0].Rails {
		shares += *r.Share
	}
	require.InDelta(t, 4.0/3, shares, 1e-9, "ranks 2, 3 and 11 have this GPU")

	t.Setenv("NCCL_TOPO_FILE", "/nosuch/topology.xml")
	here := devices(t, "--plan", "--param", "provider=tcp")
	require.Equal(t, "this machine", here.Machine)
	require.NotEmpty(t, here.Usable)
	require.NotEmpty(t, here.Regions)
	require.Contains(t, here.Places, "ignored: NCCL's topology file: open /nosuch/topology.xml")
	here = devices(t, "--param", "provider=tcp", "--topology", machines+"azure-nd-h100.xml")
	require.Contains(t, here.Places, "names no RDMA device of this machine")

	var text bytes.Buffer
	require.NoError(t, run([]string{"devices", "--plan", "--topology", machines + "laptop.txt"}, &text, io.Discard))
	require.Contains(t, text.String(), "tcp/enx00e04c680001")
}

func TestDevicesUsage(t *testing.T) {
	odd := filepath.Join(t.TempDir(), "machine.txt")
	require.NoError(t, os.WriteFile(odd, []byte("nic eth0"), 0o600))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--gpu", "1"}, "--gpu is about the plan: add --plan"},
		{[]string{"--ranks", "1"}, "--ranks is about the plan"},
		{[]string{"--plan", "--rank", "1"}, "--rank and --ranks belong together"},
		{[]string{"--plan", "--ranks", "2"}, "--rank and --ranks belong together"},
		{[]string{"--plan", "--rank", "2", "--ranks", "2"}, "--rank 2: write a number from 0 to 1"},
		{[]string{"--plan", "--rank", "0", "--ranks", "0"}, "--ranks 0: write a number from 1 to 4096"},
		{[]string{"--plan", "--gpu", "-1"}, "--gpu -1: write a number from 0"},
		{[]string{"--plan", "--gpu", "8", "--topology", machines + "p5-48xlarge.txt"}, "no GPU 8: this machine has 8"},
		{[]string{"--topology", odd}, "machine.txt: line 1 is not a device"},
		{[]string{"--topology", "/nosuch.txt"}, "/nosuch.txt"},
		{[]string{"--param", "max_rails"}, "write NAME=VALUE"},
		{[]string{"--param", "max_rails=0"}, "max_rails"},
		{[]string{"eth0"}, "takes no argument"},
	} {
		err := run(append([]string{"devices"}, c.args...), io.Discard, io.Discard)
		require.ErrorContains(t, err, c.want)
		require.Equal(t, 2, err.(cli.Exit).Code, c.args)
	}
}
