package option

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// Options that name a file, a folder or a library have the type path: gorail bench and doctor take none of those from another host.
func TestPaths(t *testing.T) {
	names := regexp.MustCompile(`_(path|file|dir|folder|socket)$|^tls_(key|cert|ca)$`)
	for _, p := range Defaults() {
		o, ok := Lookup(p.Name)
		require.True(t, ok)
		require.Equal(t, names.MatchString(o.Name), o.Type == "path", "%s has the type %s: %s", o.Name, o.Type, o.Range)
	}
	_, ok := Lookup("nothing")
	require.False(t, ok)
}
