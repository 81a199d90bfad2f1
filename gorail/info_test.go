package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/engine"
	"gorail/backend/option"
	"gorail/backend/provider/auto"
	"gorail/gorail/cli"
	"gorail/gorail/doctor"
)

// TestInfoRails: an engine of this machine opens the rails that gorail info shows.
func TestInfoRails(t *testing.T) {
	for _, provider := range []string{"auto", "tcp"} {
		var out bytes.Buffer
		require.NoError(t, run([]string{"info", "--json", "--param", "provider=" + provider}, &out, io.Discard))
		var shown doctor.Info
		require.NoError(t, json.Unmarshal(out.Bytes(), &shown))
		var names, opened []string
		for _, r := range shown.Rails {
			if r.Waits == "" {
				names = append(names, r.Name)
			}
		}
		o, _, err := option.Parse(map[string]string{"provider": provider}, os.LookupEnv)
		require.NoError(t, err)
		quiet := slog.New(slog.DiscardHandler)
		e, err := engine.New(engine.Config{Agent: "info", Options: o, Provider: auto.New(o, quiet), Log: quiet})
		require.NoError(t, err)
		counted, err := e.Snapshot()
		require.NoError(t, err)
		for _, r := range counted.Rails {
			opened = append(opened, r.Name)
		}
		require.NoError(t, e.Close())
		require.ElementsMatch(t, opened, names)
	}
	err := run([]string{"info", "--param", "rail_timout=1s"}, io.Discard, io.Discard)
	require.ErrorContains(t, err, "rail_timeout")
	require.Equal(t, 2, err.(cli.Exit).Code)
}
