package ofi

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/provider/fake/conform"
	"gorail/test/fabric"
)

// TestExternalProvider: a provider that libfabric loads from FI_PROVIDER_PATH is listed, and used only on request. The
// test runs in a child process, because libfabric reads the variable when it is loaded.
func TestExternalProvider(t *testing.T) {
	const child = "GORAIL_TEST_EXTERNAL"
	if os.Getenv(child) != "" {
		t.Run("named", externalNamed)
		t.Run("traffic", func(t *testing.T) {
			// Over net of 1.17 no thread can sleep: its fi_trywait leaves the queue's signal set.
			conform.RunTraffic(t, traits, func(t *testing.T) provider.Rail { return openLoopback(t, "relay") }, "Sleeps")
		})
		return
	}
	require.NoError(t, openLoopback(t, "tcp;ofi_rxm").Close()) // skips if there is no libfabric
	cmd := exec.Command(os.Args[0], "-test.run=^TestExternalProvider$", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1", "FI_PROVIDER_PATH="+fabric.BuildProvider(t))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	timer := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer timer.Stop()
	require.NoError(t, cmd.Wait(), out.String())
	require.Contains(t, out.String(), "--- PASS: TestExternalProvider/traffic")
}

func externalNamed(t *testing.T) {
	p := New(Options{LibraryPath: testLibrary()})
	discover := func(names ...string) []provider.Device {
		devs, err := p.Discover(context.Background(), provider.Filter{Fabrics: names})
		require.NoError(t, err)
		require.NotEmpty(t, devs)
		return devs
	}
	for _, d := range discover("relay") {
		require.Equal(t, "relay", d.Fabric)
	}
	_, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{"nosuch"}})
	require.ErrorContains(t, err, "relay", "the error lists all providers")
}
