package plugin

import (
	"fmt"
	"log/slog"
	"sync/atomic"

	"gorail/backend/errcode"
)

// nixlHost describes the NIXL that loads the plugin, as found by the shim.
type nixlHost struct {
	nixl, releases, compared, difference string
	served                               bool
}

// lastHost keeps the host for engines to log: the log level is not set earlier.
var lastHost atomic.Pointer[nixlHost]

// recordHost stores the host, or logs an unsupported NIXL. An unsupported NIXL gets no plugin, so no engine could log
// the reason.
func recordHost(h nixlHost) {
	if h.served {
		lastHost.Store(&h)
		return
	}
	slog.Error(fmt.Sprintf("no GORAIL backend: GORAIL %s supports the backend functions of %s, but %s has others: in %s, %s. "+
		"Use one of those releases of NIXL, or a GORAIL release that supports this one", version, h.releases, h.nixl, h.compared, h.difference), errcode.Key, errcode.HostUnsupported)
}

// logHost logs, at debug level, the plugin that NIXL was compared with.
func logHost(agent string) {
	if h := lastHost.Load(); h != nil {
		slog.Debug("NIXL's table of backend functions", "agent", agent, "nixl", h.nixl, "compared_with", h.compared)
	}
}
