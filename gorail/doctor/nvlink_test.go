package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNVLink: what doctor says of machines of a rack, broken and with the remedy.
func TestNVLink(t *testing.T) {
	const tray = "file server\nlib nvml=3,0,ab,7;3,0,ab,7\ndev nvidia-caps-imex-channels/channel0\n"
	for name, c := range map[string]struct{ broken, id, says, remedy string }{
		"joining":              {"lib nvml=2,0,ab,7;3,0,ab,7", "nvlink-fabric", "1 of 2 GPUs have joined NVLink between hosts: GPU 0: in progress", "fabric manager"},
		"joining failed":       {"lib nvml=3,999,ab,7;3,999,ab,7", "nvlink-fabric", "GPU 1: completed, status 999", "fabric manager"},
		"two cliques":          {"lib nvml=3,0,ab,7;3,0,ab,8", "nvlink-fabric", "2 clusters or cliques", "one partition"},
		"no NVML":              {"fail nvml=not found", "nvlink-fabric", "NVML says nothing: not found", "utilities"},
		"no access to channel": {"fail channel=permission denied", "imex-channel", "channel0 in /dev/nvidia-caps-imex-channels cannot be opened", "access"},
		"no domain":            {"fail fabric=101", "imex-domain", "CUDA_ERROR_101", "one domain"},
		"not permitted":        {"fail fabric=800", "imex-domain", "CUDA_ERROR_800", "channel of its domain"},
		"no daemon":            {"fail fabric=801", "imex-domain", "CUDA_ERROR_801", "start the IMEX daemon"},
		"another refusal":      {"fail fabric=999", "imex-domain", "CUDA_ERROR_999", "driver's log"},
	} {
		t.Run(name, func(t *testing.T) {
			r := Run(load(t, tray+c.broken))
			require.False(t, r.Failed())
			found := false
			for _, l := range r.Checks {
				if l.ID == c.id {
					found = true
					require.Equal(t, Warn, l.Status)
					require.Contains(t, l.Text, c.says)
					require.Contains(t, l.Remedy, c.remedy)
					require.NotEmpty(t, l.Commands)
				}
			}
			require.True(t, found)
		})
	}
	lines := func(text string) (n int) {
		for _, l := range Run(load(t, text)).Checks {
			if l.ID == "nvlink-fabric" || l.ID == "imex-channel" || l.ID == "imex-domain" {
				require.Equal(t, Pass, l.Status, l.Text)
				n++
			}
		}
		return n
	}
	require.Equal(t, 3, lines(tray))
	require.Zero(t, lines("file server\n"), "a machine without such a fabric")
	require.Zero(t, lines("file server\nlib nvml=3,0,0,0;3,0,0,0\n"), "a machine whose NVLink ends in itself")
	r := Run(load(t, "file server\nlib nvml=3,0,ab,7\n"))
	for _, l := range r.Checks {
		if l.ID == "imex-channel" {
			require.Equal(t, Warn, l.Status)
			require.Contains(t, l.Remedy, "ComputeDomain")
		}
	}
}
