package broken

import (
	"fmt"
	"os"
	"testing"

	"gorail/gorail/doctor/peer"
	"gorail/test/worker"
)

// TestMain lets the test binary run as a worker, or as a peer of gorail doctor whose clock is wrong.
func TestMain(m *testing.M) {
	worker.MaybeRun()
	for _, p := range []struct {
		is  bool
		run func() error
	}{{len(os.Args) > 1 && os.Args[1] == peer.Command, serveSkewed}, {os.Getenv(envListen) != "", listenSkewed}} {
		if !p.is {
			continue
		}
		if err := p.run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
