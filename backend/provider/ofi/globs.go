package ofi

import (
	"fmt"
	"path"
	"strings"

	"gorail/backend/provider"
)

// globs is the option `devices`: patterns over device names; '!' in front excludes. Exclusions win; without an including
// pattern all devices are in.
type globs []string

func parseGlobs(patterns []string) (globs, error) {
	for _, p := range patterns {
		if _, err := path.Match(strings.TrimPrefix(p, "!"), ""); err != nil || strings.TrimPrefix(p, "!") == "" {
			return nil, fmt.Errorf("%w: option devices: %q is no pattern; use names or globs such as eth0, mlx5_*, !docker*",
				provider.ErrNoDevice, p)
		}
	}
	return patterns, nil
}

// match says whether a device with these names (domain, and hardware's own name or "") is wanted.
func (g globs) match(names ...string) bool {
	including, in := false, false
	for _, p := range g {
		pattern, exclude := strings.CutPrefix(p, "!")
		including = including || !exclude
		for _, n := range names {
			if ok, _ := path.Match(pattern, n); !ok || n == "" {
				continue
			}
			if exclude {
				return false
			}
			in = true
		}
	}
	return in || !including
}

func (g globs) String() string {
	if len(g) == 0 {
		return "(all)"
	}
	return strings.Join(g, ",")
}
