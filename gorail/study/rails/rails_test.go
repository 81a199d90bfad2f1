package rails

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/bench/cuda"
	"gorail/gorail/doctor/machine"
	"gorail/gorail/drive"
	"gorail/gorail/result"
	"gorail/gorail/side"
	"gorail/gorail/study/env"
	imitation "gorail/test/cuda"
	"gorail/test/skip"
	"gorail/test/testenv"
)

// TestMain lets the test binary run as a process of a benchmark and as the second process of doctor.
func TestMain(m *testing.M) {
	var err error
	switch {
	case len(os.Args) < 2:
		os.Exit(m.Run())
	case os.Args[1] == side.Command:
		err = side.Main()
	case os.Args[1] == machine.Command:
		err = machine.Child()
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// TestGPUs: each GPU's memory is measured over this machine's rails, without UCX.
func TestGPUs(t *testing.T) {
	w := testenv.Need(t)
	t.Setenv("GORAIL_PLUGIN_DIR", w.PluginDir)
	t.Setenv(cuda.EnvPath, imitation.Build(t).Path)
	e := &env.Env{Version: "test", Effort: env.Smallest, Progress: drive.NewProgress(io.Discard), Time: time.Millisecond}
	require.NoError(t, e.Find(w.WheelDir, ""))
	e.Plugins = w.PluginDir
	r := &result.Result{}
	err := Run(context.Background(), e, r)
	if err != nil && strings.Contains(err.Error(), "no rail but shared memory") {
		skip.OrFail(t, err)
	}
	require.NoError(t, err)
	require.Empty(t, r.Failed)
	var titles []string
	for _, s := range r.Sections {
		titles = append(titles, s.Title)
	}
	require.Subset(t, titles, []string{"WRITE, host memory", "WRITE, memory of GPU 0", "READ, memory of GPU 0"})
}
