package guest

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/testenv"
)

// Bounds of a cell of the table: UCX hangs in some.
const (
	answers = 5 * time.Second
	cell    = 3 * time.Minute
)

// TestSignalTable makes the table of docs/host.md: the matrix of TestSignals, with each backend that GORAIL_TEST_TABLE names ("GORAIL UCX").
// It is a measurement: a signal that differs fails nothing.
func TestSignalTable(t *testing.T) {
	backends := strings.Fields(os.Getenv("GORAIL_TEST_TABLE"))
	if len(backends) == 0 {
		t.Skip("a measurement: GORAIL_TEST_TABLE names its backends")
	}
	testenv.Need(t)
	path := Build(t)
	var mu sync.Mutex
	rows := map[string]string{}
	t.Run("cells", func(t *testing.T) {
		for _, c := range cases(false) {
			t.Run(c.String(), func(t *testing.T) {
				t.Parallel()
				row := ""
				want := cellOf(t, path, "", c)
				for _, backend := range backends {
					row += " | " + compare(want, cellOf(t, path, backend, c))
				}
				mu.Lock()
				defer mu.Unlock()
				rows[c.String()] = row
			})
		}
	})
	text := "| signals | " + strings.Join(backends, " | ") + " |\n" + strings.Repeat("|---", len(backends)+1) + "|\n"
	for _, c := range cases(false) {
		text += "| " + c.String() + rows[c.String()] + " |\n"
	}
	t.Log("\n" + text)
	if file := os.Getenv("GORAIL_TEST_TABLE_FILE"); file != "" {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
}

// cellOf returns what came of each signal, sent once. A process that has ended is followed by another one, for the signals that are left.
func cellOf(t *testing.T, path, backend string, c Case) map[int]string {
	t.Helper()
	got, until := map[int]string{}, time.Now().Add(cell)
	for _, round := range rounds(c.How) {
		for left := round; len(left) > 0 && time.Now().Before(until); {
			h := Start(t, path, backend, c, round...)
			h.patience = answers
			for len(left) > 0 && time.Now().Before(until) {
				sig := left[0]
				left = left[1:]
				if got[sig] = h.own(sig, h.Send(sig, c.How)); got[sig] == "silent" || strings.HasPrefix(got[sig], "ended") || strings.HasPrefix(got[sig], "[") {
					break
				}
			}
			_ = h.in.Close()
			_ = h.cmd.Process.Kill()
		}
	}
	return got
}

// own passes over lines that belong to an earlier signal, which came twice, or to a child that a backend has forked.
func (h *Host) own(sig int, outcome string) string {
	ping := fmt.Sprintf("ping %d", h.pings)
	for {
		_, number, isPing := strings.Cut(outcome, "ping ")
		of, _, came := strings.Cut(outcome, " host")
		if !came {
			of, _, came = strings.Cut(outcome, " foreign")
		}
		switch {
		case isPing && outcome == ping && number != "":
			return "lives"
		case outcome == "ready" || isPing || came && of != fmt.Sprint(sig):
			outcome = h.line()
		default:
			return outcome
		}
	}
}

// compare counts the signals that differ from what came of them without NIXL, and says how.
func compare(want, got map[int]string) string {
	kinds := map[string]int{}
	for sig, outcome := range want {
		switch is := got[sig]; {
		case is == outcome:
		case is == "":
			kinds[fmt.Sprintf("not reached in %v", cell)]++
		case is == "silent":
			kinds["lost, or the process hangs"]++
		case strings.HasSuffix(is, "foreign"):
			kinds["on a thread of the backend's"]++
		case strings.HasPrefix(is, "ended"):
			kinds["the process ends"]++
		case strings.HasPrefix(is, "["):
			kinds["the backend begins to log to standard output"]++
		default:
			kinds[is]++
		}
	}
	if len(kinds) == 0 {
		return "same"
	}
	var words []string
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		words = append(words, fmt.Sprintf("%d: %s", kinds[kind], kind))
	}
	return fmt.Sprintf("of %d, %s", len(want), strings.Join(words, "; "))
}
