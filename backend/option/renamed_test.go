package option

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRenamed: an old name of a provider works. Renamed finds it in a parameter or a variable; the parameter comes
// first.
func TestRenamed(t *testing.T) {
	for name, c := range map[string]struct {
		param, env string
		want       []string
		old, now   string
	}{
		"parameter":          {"Local, tcp", "tcp", []string{"sm", "tcp"}, "local", "sm"},
		"variable":           {"", "local", []string{"sm"}, "local", "sm"},
		"parameter is first": {"tcp", "local", []string{"tcp"}, "", ""},
		"new":                {"sm", "local", []string{"sm"}, "", ""},
		"none":               {"", "", []string{"auto"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			params := map[string]string{"provider": c.param}
			getenv := func(name string) (string, bool) {
				if name != "GORAIL_PROVIDER" {
					return "", false
				}
				return c.env, c.env != ""
			}
			o, _, err := Parse(params, getenv)
			require.NoError(t, err)
			require.Equal(t, c.want, o.Provider)
			old, now := Renamed(params, getenv)
			require.Equal(t, []string{c.old, c.now}, []string{old, now})
		})
	}
}
