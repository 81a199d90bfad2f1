package weights

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/bench/cuda"
	"gorail/gorail/drive"
	"gorail/gorail/result"
	"gorail/gorail/study/env"
	"gorail/gorail/study/weights/rank"
	imitation "gorail/test/cuda"
	"gorail/test/testenv"
)

// TestMain lets the test binary run as a rank.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != rank.Command {
		os.Exit(m.Run())
	}
	if err := rank.Main(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// TestGPUs: tensors of GPUs move in all layouts, from an arena of several VMM handles too, with the right bytes.
func TestGPUs(t *testing.T) {
	w := testenv.Need(t)
	t.Setenv("GORAIL_PLUGIN_DIR", w.PluginDir)
	t.Setenv(cuda.EnvPath, imitation.Build(t).Path)
	e := &env.Env{Version: "test", Effort: env.Smallest, Progress: drive.NewProgress(io.Discard), Time: time.Millisecond, Repeats: 1}
	require.NoError(t, e.Find(w.WheelDir, ""))
	e.Plugins = w.PluginDir
	r := &result.Result{}
	require.NoError(t, Run(context.Background(), e, Options{Memory: "vram", Workers: 2, FanOut: 1, Scale: 2048}, r))
	require.Empty(t, r.Failed)
	refits, registered, further := r.Sections[0].Tables[refits].Rows, r.Sections[0].Tables[registration].Rows, r.Sections[0].Tables[beside].Rows
	require.Len(t, refits, 9, "three layouts, READ in two ways and WRITE")
	require.Len(t, r.Sections[0].Tables[plain].Rows, 3, "three layouts")
	for _, row := range r.Sections[0].Tables[plain].Rows {
		require.Equal(t, "cuMemcpyAsync", row[1].Text)
		require.Positive(t, *row[4].Value, "GB/s: %v", row)
	}
	require.Equal(t, "291", registered[0][3].String(), "regions")
	require.Len(t, registered, 6, "trainer and worker in three layouts")
	require.Equal(t, "1", registered[2][3].String(), "the arena is one")
	require.Zero(t, *registered[0][4].Value, "handles")
	require.Greater(t, *registered[2][4].Value, 1.0, "handles")
	for _, row := range registered {
		require.LessOrEqual(t, *row[5].Value, 1e3**row[6].Value, "the first of all: %v", row)
		require.Positive(t, *row[7].Value, "again: %v", row)
	}
	require.Greater(t, *refits[6][4].Value, *refits[6][3].Value, "columns are lists of ranges")
	require.InDelta(t, *refits[0][5].Value/2, *refits[6][5].Value, 0.1**refits[0][5].Value, "half of each matrix")
	for _, row := range r.Sections[0].Tables[reposts].Rows {
		require.Less(t, *row[12].Value, *row[6].Value/100, "posts through Go, also of requests that wait for others for long: %v", row)
	}
	require.Len(t, further, 6, "the reader and the trainer register in three layouts")
	for _, row := range further {
		require.Positive(t, *row[10].Value, "regions: %v", row)
		require.Equal(t, "0", row[11].String(), "failed: %v", row)
		require.Positive(t, *row[7].Value, "ratio: %v", row)
	}
}
