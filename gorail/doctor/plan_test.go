package doctor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const fixtures = "../../backend/topo/testdata/"

// plan is the text of gorail devices for a described machine.
func plan(t *testing.T, file string, params map[string]string, q Question) (*Devices, string) {
	t.Helper()
	h, err := Described(file, nil, params)
	require.NoError(t, err)
	d, err := LookAtDevices(filepath.Base(file), h, q)
	require.NoError(t, err)
	d.Places = strings.ReplaceAll(d.Places, filepath.Dir(file)+"/", "")
	var text, object bytes.Buffer
	require.NoError(t, d.Text(&text))
	require.NoError(t, d.JSON(&object))
	var back Devices
	require.NoError(t, json.Unmarshal(object.Bytes(), &back))
	require.Equal(t, *d, back)
	return d, text.String()
}

// TestPlan compares the plans of all machines: one process alone, and the second of eight (of four with four GPUs).
func TestPlan(t *testing.T) {
	files, err := filepath.Glob(fixtures + "*.txt")
	require.NoError(t, err)
	require.Greater(t, len(files), 15)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) {
			d, text := plan(t, file, map[string]string{}, Question{Regions: true, GPU: -1})
			ranks := 8
			if gpus := strings.Count(text, "\n  GPU "); gpus > 0 {
				ranks = gpus
			}
			require.NotEmpty(t, d.Regions)
			_, shared := plan(t, file, map[string]string{}, Question{Regions: true, GPU: -1, Rank: 1, Ranks: max(2, ranks)})
			golden(t, "testdata/plan/"+name+".golden", []byte(text+shared[strings.Index(shared, "\nRails of a region"):]))
		})
	}
}

// All ranks of a machine together use each device that any of them uses just once, and each rank as much as the others.
func TestPlanShares(t *testing.T) {
	for name, c := range map[string]struct {
		ranks   int
		devices int     // that memory of GPUs uses
		each    float64 // of its own GPU, by each rank
	}{
		"p5-48xlarge":        {8, 32, 4},
		"p5en-48xlarge":      {8, 16, 2},
		"p6-b200-48xlarge":   {8, 8, 1},
		"p6e-gb200-36xlarge": {4, 8, 2},
		"p6e-gb300r":         {4, 2, 0.5},
		"dgx-h100":           {8, 8, 1},
		"dgx-b200":           {8, 8, 1},
		"gb300":              {4, 4, 1},
		"alps":               {4, 4, 1},
		"azure-nd-h100":      {8, 8, 1},
		"dgx-spark":          {2, 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			total := map[string]float64{}
			for rank := range c.ranks {
				d, _ := plan(t, fixtures+name+".txt", nil, Question{Regions: true, GPU: -1, Rank: rank, Ranks: c.ranks})
				own := 0.0
				for _, r := range d.Regions {
					if r.Memory == fmt.Sprintf("GPU %d", rank%gpus(d)) {
						for _, rail := range r.Rails {
							if own += *rail.Share; *rail.Share > 0 {
								total[rail.Name] += *rail.Share
							}
						}
					}
				}
				require.InDelta(t, c.each, own, 1e-9, "rank %d", rank)
			}
			require.Len(t, total, c.devices)
			for rail, sum := range total {
				require.InDelta(t, 1, sum, 1e-9, rail)
			}
		})
	}
}

func gpus(d *Devices) (n int) {
	for _, r := range d.Regions {
		if r.PCI != "" {
			n++
		}
	}
	return n
}

// Eight ranks share the sixteen devices of a node: two each, and six of the others' for failover.
func TestPlanHostMemory(t *testing.T) {
	seen := map[string]int{}
	for rank := range 4 {
		d, _ := plan(t, fixtures+"p5-48xlarge.txt", nil, Question{Regions: true, GPU: -1, Rank: rank, Ranks: 8})
		host := d.Regions[8]
		require.Equal(t, []any{"host", 0, 8}, []any{host.Memory, host.NUMA, len(host.Rails)})
		require.Contains(t, host.Why, "8 of 16, the least used")
		sum := 0.0
		for _, rail := range host.Rails {
			if sum += *rail.Share; *rail.Share > 0 {
				seen[rail.Name]++
			}
		}
		require.InDelta(t, 4, sum, 1e-9, "four of eight ranks have their GPU on the node")
		require.Nil(t, d.Regions[9].Rails[0].Share, "the other node's devices are other ranks'")
	}
	require.Len(t, seen, 16)
}

// What the question narrows, and what a file beside the description changes.
func TestPlanQuestions(t *testing.T) {
	d, text := plan(t, fixtures+"p5-48xlarge.txt", nil, Question{GPU: -1})
	require.Empty(t, d.Regions)
	require.NotContains(t, text, "Rails of a region")
	require.Equal(t, "0000:4f:00.0", d.Usable[1].PCI)
	d, _ = plan(t, fixtures+"p5-48xlarge.txt", map[string]string{"max_rails": "2", "devices": "!rdmap19*"}, Question{Regions: true, GPU: 7})
	require.Len(t, d.Regions, 2)
	require.Equal(t, []PlannedRail{{Name: "efa/rdmap200s0-rdm"}, {Name: "efa/rdmap201s0-rdm"}}, d.Regions[0].Rails)
	require.Equal(t, "NUMA node 1; 2 of 14, spread over switches", d.Regions[1].Why)
	require.Equal(t, []string{"devices=!rdmap19*", "max_rails=2"}, d.Options)

	few := map[string]string{"max_rails": "4"}
	d, _ = plan(t, fixtures+"azure-nd-h100.txt", few, Question{Regions: true, GPU: 5})
	require.Equal(t, "from NCCL's topology file azure-nd-h100.xml", d.Places)
	require.Equal(t, []PlannedRail{{Name: "verbs/mlx5_ib4"}, {Name: "verbs/mlx5_ib5"}}, d.Regions[0].Rails)
	alone := filepath.Join(t.TempDir(), "machine.txt")
	text2, err := os.ReadFile(fixtures + "azure-nd-h100.txt")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(alone, text2, 0o600))
	d, _ = plan(t, alone, few, Question{Regions: true, GPU: 5})
	require.Empty(t, d.Places)
	require.Equal(t, []string{"NUMA node 1", "NUMA node 1"}, []string{d.Regions[0].Why, d.Regions[1].Why})
	beside := strings.TrimSuffix(alone, ".txt") + ".xml"
	for content, want := range map[string]string{
		"<html/>": "ignored: NCCL's topology file machine.xml: not a topology of NCCL",
		`<system version="1"><cpu><pci busid="0000:01:00.0"/></cpu></system>`: "names no RDMA device of this machine",
	} {
		require.NoError(t, os.WriteFile(beside, []byte(content), 0o600))
		d, _ = plan(t, alone, few, Question{Regions: true, GPU: 5})
		require.Contains(t, d.Places, want)
		require.Equal(t, "NUMA node 1", d.Regions[0].Why)
	}

	h, err := Described(fixtures+"laptop.txt", nil, map[string]string{"provider": "verbs"})
	require.NoError(t, err)
	_, err = LookAtDevices("laptop", h, Question{})
	require.ErrorContains(t, err, "no usable device")
	h.Params = map[string]string{}
	_, err = LookAtDevices("laptop", h, Question{Regions: true})
	require.ErrorContains(t, err, "no GPU 0: this machine has 0 on its PCI bus")
	h.Params = map[string]string{"max_rail": "1"}
	_, err = LookAtDevices("laptop", h, Question{})
	require.ErrorContains(t, err, "max_rails")
	_, err = Described("testdata/nosuch.txt", nil, nil)
	require.ErrorContains(t, err, "nosuch.txt")
	_, err = Described("testdata/p5-48xlarge.txt", nil, nil)
	require.ErrorContains(t, err, "testdata/p5-48xlarge.txt: line 2 is not a device")
}
