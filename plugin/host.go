package plugin

import (
	"fmt"
	"log/slog"
	"sync/atomic"

	"gorail/backend/errcode"
)

// nixlHost describes the NIXL that loads the plugin, as found by the shim.
type nixlHost struct {
	nixl, releases, compared, difference, added string
	served                                      bool
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
	logs.Flush(lastWords)
}

// logHost logs, at debug level, the plugin that NIXL was compared with.
func logHost(agent string) {
	if h := lastHost.Load(); h != nil {
		slog.Debug("NIXL's table of backend functions", "agent", agent, "nixl", h.nixl, "compared_with", h.compared, "added", h.added)
	}
}

// hostWords names the NIXL that was served last, what it was taken for and why, for errors that show that it is another.
func hostWords() string {
	h := lastHost.Load()
	if h == nil {
		return "this NIXL was not compared with a known one"
	}
	return fmt.Sprintf("%s was taken for one of %s (compared with %s)", h.nixl, h.releases, h.compared)
}
