package ofi

import (
	"fmt"
	"strings"

	"gorail/backend/provider"
	"gorail/backend/topo"
)

// globs is the option `devices`: patterns over device names; '!' or '^' in front excludes. Exclusions win; without an
// including pattern all devices are in. Numbers ("#0") say nothing yet: the order of devices is decided by who chooses rails.
type globs topo.Patterns

func parseGlobs(patterns []string) (globs, error) {
	g, err := topo.ParsePatterns(patterns)
	if err != nil {
		return nil, fmt.Errorf("%w: option devices: %w", provider.ErrNoDevice, err)
	}
	return globs(g), nil
}

// match says whether a device with these names (domain, and hardware's own name or "") may be wanted.
func (g globs) match(names ...string) bool { return topo.Patterns(g).May(names...) }

func (g globs) String() string {
	if len(g) == 0 {
		return "(all)"
	}
	return strings.Join(g, ",")
}
