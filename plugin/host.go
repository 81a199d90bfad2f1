package main

import (
	"fmt"
	"log/slog"
	"sync/atomic"
)

// host is what the shim found of the NIXL that loads the plugin.
type host struct {
	nixl, releases, compared, difference string
	served                               bool
}

// lastHost is for the engines to log: the level is not set before.
var lastHost atomic.Pointer[host]

// meetHost logs a NIXL that we don't serve: it gets no plugin, so that no engine can say why.
func meetHost(h host) {
	if h.served {
		lastHost.Store(&h)
		return
	}
	slog.Error(fmt.Sprintf("no GORAIL backend: GORAIL %s knows the backend functions of %s, and those of %s are others: in %s, %s. "+
		"Use one of those releases of NIXL, or a GORAIL that knows this one", version, h.releases, h.nixl, h.compared, h.difference))
}

// logHost says at debug what NIXL was compared with.
func logHost(agent string) {
	if h := lastHost.Load(); h != nil {
		slog.Debug("NIXL's table of backend functions", "agent", agent, "nixl", h.nixl, "compared_with", h.compared)
	}
}
