package option

import "strings"

// oldProviders maps old values of the option provider to their new names. The old values work until the next release.
var oldProviders = map[string]string{"local": "sm"}

// Renamed finds an old name in the value of the option provider, given as a parameter or else in the environment.
// Without an old name both results are "". Safe for concurrent use.
func Renamed(params map[string]string, getenv func(string) (string, bool)) (old, now string) {
	v, _ := rowOf("provider").value(params, getenv)
	for _, name := range split(strings.ToLower(v)) {
		if now := oldProviders[name]; now != "" {
			return name, now
		}
	}
	return "", ""
}
