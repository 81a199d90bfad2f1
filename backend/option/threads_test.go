package option_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
)

// TestThreadsStay: Go follows a container's quota. The number of threads, and of key slots in the core's tables, does not.
func TestThreadsStay(t *testing.T) {
	if runtime.NumCPU() < 8 {
		t.Skip("needs 8 processors: fewer always mean one thread")
	}
	o, _, err := option.Parse(nil, nil)
	require.NoError(t, err)
	before := o.Slots()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	require.Equal(t, before, o.Slots())
}
