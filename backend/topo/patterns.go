package topo

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// Patterns selects devices: globs over names, or "#n" for the n-th device in order, from 0. A leading '!' or '^'
// excludes. Exclusions win. Without an including pattern every other device is included.
type Patterns []string

// Verdict is the decision of Patterns about a device.
type Verdict int

const (
	Unsaid   Verdict = iota // included: no pattern matches
	Named                   // included by a pattern
	Excluded                // excluded
)

// ParsePatterns checks patterns. The error names the bad pattern.
func ParsePatterns(list []string) (Patterns, error) {
	for _, p := range list {
		glob, _ := splitPattern(p)
		if _, err := path.Match(glob, ""); err != nil || glob == "" {
			return nil, fmt.Errorf("%q is not a pattern; use names or globs such as eth0, mlx5_*, !docker*, or #0 for the first", p)
		}
		if number, ok := strings.CutPrefix(glob, "#"); ok {
			if _, err := strconv.ParseUint(number, 10, 16); err != nil {
				return nil, fmt.Errorf("%q is not a device number; #0 is the first", p)
			}
		}
	}
	return list, nil
}

func splitPattern(p string) (glob string, exclude bool) {
	if strings.HasPrefix(p, "!") || strings.HasPrefix(p, "^") {
		return p[1:], true
	}
	return p, false
}

// String joins the patterns as in the option.
func (ps Patterns) String() string {
	if len(ps) == 0 {
		return "(all)"
	}
	return strings.Join(ps, ",")
}

// Judge decides about a device with these names and this number (-1: without a number).
func (ps Patterns) Judge(number int, names ...string) Verdict {
	verdict := Unsaid
	for _, p := range ps {
		glob, exclude := splitPattern(p)
		hit := hits(glob, number, names)
		switch {
		case hit && exclude:
			return Excluded
		case hit:
			verdict = Named
		case !exclude && verdict == Unsaid:
			verdict = Excluded // unless a later pattern includes the device
		}
	}
	return verdict
}

// May reports whether a device with these names can be included while its number is unknown.
func (ps Patterns) May(names ...string) bool {
	named := make(Patterns, 0, len(ps))
	numbered := false
	for _, p := range ps {
		glob, exclude := splitPattern(p)
		if !strings.HasPrefix(glob, "#") {
			named = append(named, p)
		} else if !exclude {
			numbered = true
		}
	}
	if !numbered {
		return named.Judge(-1, names...) != Excluded
	}
	for _, p := range named { // including patterns need not match the name
		if glob, exclude := splitPattern(p); exclude && hits(glob, -1, names) {
			return false
		}
	}
	return true
}

func hits(glob string, number int, names []string) bool {
	if n, ok := strings.CutPrefix(glob, "#"); ok {
		want, err := strconv.Atoi(n)
		return err == nil && number >= 0 && want == number
	}
	for _, name := range names {
		if ok, _ := path.Match(glob, name); ok && name != "" {
			return true
		}
	}
	return false
}
