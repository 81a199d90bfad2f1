package env

import (
	"fmt"

	"gorail/gorail/bench/host"
	"gorail/gorail/measure"
	"gorail/gorail/result"
)

// QuietName is the name of the check Quiet.
const QuietName = "quiet"

// Quiet checks that other programs leave the cores to the study.
func Quiet() result.Check {
	busy := host.Busy()
	if busy > host.Limit {
		return result.Check{Status: "WARN", What: QuietName, Text: host.Disturbs(busy), Remedy: "end other programs, and run the study again"}
	}
	return result.Check{Status: "PASS", What: QuietName, Text: fmt.Sprintf("other programs use %.0f %% of the cores", 100*busy)}
}

// Micros is a percentile in microseconds as a cell. It is empty if there are too few times to tell.
func Micros(t *measure.Times, q float64) result.Cell {
	n := float64(t.Count())
	if n == 0 || q < 1 && n*(1-q) < 1-1e-9 {
		return result.Cell{}
	}
	return result.Num(t.Quantile(q) / 1e3)
}
