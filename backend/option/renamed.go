package option

import (
	"slices"
	"strings"
)

// oldProviders are values of the option provider that have another name since this release. They work until the next one.
var oldProviders = map[string]string{"local": "sm"}

// Renamed finds an old name in what was given for the option provider: as a parameter, or else in the environment. Both are "" without one. Safe for
// concurrent use.
func Renamed(params map[string]string, getenv func(string) (string, bool)) (old, now string) {
	given := table[slices.IndexFunc(table, func(r row) bool { return r.Name == "provider" })]
	v, _ := given.value(params, getenv)
	for _, name := range split(strings.ToLower(v)) {
		if now := oldProviders[name]; now != "" {
			return name, now
		}
	}
	return "", ""
}
