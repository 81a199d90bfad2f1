package ofi

import (
	"fmt"
	"strings"

	"gorail/backend/provider"
	"gorail/backend/topo"
)

// globs is the option `devices`: patterns over device names; a leading '!' or '^' excludes. Exclusions win. Without an
// including pattern all devices match. Numbers ("#0") match any device here: the code that chooses rails applies them.
type globs topo.Patterns

func parseGlobs(patterns []string) (globs, error) {
	g, err := topo.ParsePatterns(patterns)
	if err != nil {
		return nil, fmt.Errorf("%w: option devices: %w", provider.ErrNoDevice, err)
	}
	return globs(g), nil
}

// match reports whether a device with these names (domain, and the hardware's own name or "") may match.
func (g globs) match(names ...string) bool { return topo.Patterns(g).May(names...) }

func (g globs) String() string {
	if len(g) == 0 {
		return "(all)"
	}
	return strings.Join(g, ",")
}
