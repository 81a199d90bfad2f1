// Package seeds says how many seeds a simulation runs. A seed is a subtest: -run 'TestName/17$' replays one.
package seeds

import (
	"os"
	"strconv"
	"testing"
)

// Variable is the environment variable with another number of seeds, for all simulations.
const Variable = "GORAIL_SEEDS"

// Count returns the number of seeds: short with -short, else full. The environment variable goes before both.
func Count(t testing.TB, short, full int) uint64 {
	t.Helper()
	if text := os.Getenv(Variable); text != "" {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			t.Fatalf("%s=%s: want a number of seeds", Variable, text)
		}
		return n
	}
	if testing.Short() {
		return uint64(short)
	}
	return uint64(full)
}
