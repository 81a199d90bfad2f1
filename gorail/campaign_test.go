package main

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/gorail/result"
	"gorail/gorail/study/kv/campaign"
	"gorail/test/skip"
)

// firstGood is within how many ms each pair of a victim has a good request after the peer is back, where a core is not shared, beyond the longest
// request of the quiet times. A lost packet may be a last one, of which TCP hears nothing for 60 ms, or is lost again. A control connection over an
// address that is gone is silent until TCP has sent on it again.
var firstGood = map[string]float64{"": 100, "loss": 250, "address": 400}

// share is how many tasks share a core.
func share(t *testing.T) float64 {
	t.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	require.NoError(t, err)
	var load float64
	_, err = fmt.Sscan(string(text), &load)
	require.NoError(t, err)
	return max(1, load/float64(runtime.NumCPU()))
}

// TestStudyCampaign is the short form of the campaign: 13 faults, 2 prefill and 2 decode nodes. No byte is wrong, no request fails but those in flight
// to and from the victim, all pairs recover in time, and survivors hold no more than before. In the long form UCX has the same faults, without bars.
func TestStudyCampaign(t *testing.T) {
	skip.UnlessRoot(t, "network namespaces")
	args := []string{"--chaos", campaign.All, "--prefill", "2", "--decode", "2", "--seed", "58"}
	if !testing.Short() {
		args = append(args, "--compare", "UCX")
	}
	cores := share(t)
	r, page := studied(t, "kv", args...)
	cores = max(cores, share(t))
	require.Contains(t, page, "A serving cluster under faults")
	require.Equal(t, "GORAIL", r.Sections[0].Title)
	seen, flying := 0, 0.0
	for _, row := range rowsOf(r.Sections[0].Tables[0]) {
		name := row[campaign.ColFault].Text
		for _, zero := range []string{campaign.ColWrong, campaign.ColOthers, campaign.ColAfter, campaign.ColWaiting, campaign.ColHung, campaign.ColDuring} {
			if name == "memory" && zero == campaign.ColDuring { // the process may die of it, with requests in flight
				require.LessOrEqual(t, *row[zero].Value, 4.0)
				continue
			}
			require.Zero(t, *row[zero].Value, "%s: %s: %+v", name, zero, row["notes"])
		}
		bar, special := firstGood[name]
		if !special {
			bar = firstGood[""]
		}
		require.LessOrEqual(t, *row[campaign.ColLongest].Value, cores*bar+*row[campaign.ColUndisturbed].Value, "%s: ms until each of the victim's pairs has a good request; %.1f tasks share a core", name, cores)
		require.Equal(t, 2.0, *row["pairs"].Value, name)
		if name != "none" {
			seen++
		}
		flying += *row[campaign.ColInFlight].Value
	}
	require.Positive(t, flying, "kills meet requests in flight")
	left := 0
	for _, s := range r.Sections {
		if s.Title == "Faults that were left out" {
			left = len(s.Tables[0].Rows)
		}
	}
	require.Equal(t, len(campaign.Names()), seen+left)
	require.GreaterOrEqual(t, seen, 12, "without the stops of 9 s and 70 s, and without a clock where a process cannot have its own")
	survivors := rowsOf(r.Sections[0].Tables[1])
	require.GreaterOrEqual(t, len(survivors), 2)
	for _, row := range survivors {
		require.Empty(t, row[campaign.ColMore].Text, "%+v", row)
		require.Equal(t, 2.0, *row[campaign.ColSessions].Value)
		require.Positive(t, *row[campaign.ColFDs].Value)
	}
}

// rowsOf are the rows of a table by the names of columns. Of columns with one name the first counts.
func rowsOf(t result.Table) (out []map[string]result.Cell) {
	for _, row := range t.Rows {
		m := map[string]result.Cell{}
		for i, c := range row {
			if _, ok := m[t.Columns[i]]; !ok {
				m[t.Columns[i]] = c
			}
		}
		out = append(out, m)
	}
	return out
}
