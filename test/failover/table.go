package failover

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"
)

// Wanted are the longest gaps that we want.
var Wanted = map[string]time.Duration{Down: 50 * time.Millisecond, Error: 50 * time.Millisecond, Silent: time.Second}

// Table has a line for each way to fail and each operation: for all failures, and with quiet > 0 for those at moments when so many
// threads of the machine at most could run. Times are in ms.
func Table(all []Failure, quiet int) string {
	table := "\n| failure | op | when | failures | gap p50 ms | p90 | p99 | max | above the wanted | no failure: p50 | p99 | max | echo p50 |\n" +
		"|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
	for _, kind := range Kinds {
		for _, op := range Ops {
			for _, when := range []string{"always", "quiet"} {
				some := slices.DeleteFunc(slices.Clone(all), func(f Failure) bool {
					return f.Kind != kind || f.Op != op.String() || when == "quiet" && f.Runnable > quiet
				})
				if len(some) == 0 || when == "quiet" && quiet == 0 {
					continue
				}
				over := 0
				for _, f := range some {
					if f.Gap > Wanted[kind] {
						over++
					}
				}
				of := func(what func(f Failure) time.Duration, percent int) string {
					slices.SortFunc(some, func(a, b Failure) int { return cmp.Compare(what(a), what(b)) })
					return fmt.Sprintf("%.1f", float64(what(some[min(len(some)-1, len(some)*percent/100)]))/1e6)
				}
				gap := func(f Failure) time.Duration { return f.Gap }
				before := func(f Failure) time.Duration { return f.Before }
				echo := func(f Failure) time.Duration { return f.Echo }
				table += fmt.Sprintf("| %s | %s | %s | %d | %s | %s | %s | %s | %d of %v | %s | %s | %s | %s |\n", kind, op, when, len(some), of(gap, 50),
					of(gap, 90), of(gap, 99), of(gap, 100), over, Wanted[kind], of(before, 50), of(before, 99), of(before, 100), of(echo, 50))
			}
		}
	}
	return table
}

// Save writes all failures as JSON to a file; "": nowhere.
func Save(file string, all []Failure) error {
	if file == "" {
		return nil
	}
	text, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}
