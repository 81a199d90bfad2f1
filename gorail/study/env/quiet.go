package env

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"gorail/gorail/measure"
	"gorail/gorail/result"
)

// QuietName is the name of the check Quiet.
const QuietName = "quiet"

// busyLimit is the share of the cores above which other programs disturb a measurement.
const busyLimit = 0.1

// Quiet checks that other programs leave the cores to the study: it looks for a third of a second, while nothing is measured.
func Quiet() result.Check {
	before, ok := cores()
	time.Sleep(time.Second / 3)
	after, _ := cores()
	all := after[1] - before[1]
	if !ok || all <= 0 {
		return result.Check{Status: "WARN", What: QuietName, Text: "/proc/stat does not tell whether the cores are idle"}
	}
	busy := float64(after[0]-before[0]) / float64(all)
	text := fmt.Sprintf("other programs use %.0f %% of the cores", 100*busy)
	if busy > busyLimit {
		return result.Check{Status: "WARN", What: QuietName, Text: text + ": the numbers are lower than they could be, and vary", Remedy: "end other programs, and run the study again"}
	}
	return result.Check{Status: "PASS", What: QuietName, Text: text}
}

// cores returns the busy time and the whole time of all cores, in ticks.
func cores() (out [2]int, ok bool) {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 6 || fields[0] != "cpu" {
		return out, false
	}
	for i, f := range fields[1:min(len(fields), 9)] { // user nice system idle iowait irq softirq steal; guests count as users
		n, err := strconv.Atoi(f)
		if err != nil {
			return out, false
		}
		if out[1] += n; i != 3 && i != 4 {
			out[0] += n
		}
	}
	return out, true
}

// Micros is a percentile in microseconds as a cell. It is empty if there are too few times to tell.
func Micros(t *measure.Times, q float64) result.Cell {
	n := float64(t.Count())
	if n == 0 || q < 1 && n*(1-q) < 1-1e-9 {
		return result.Cell{}
	}
	return result.Num(t.Quantile(q) / 1e3)
}
