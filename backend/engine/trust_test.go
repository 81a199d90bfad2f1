package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/status"
	"gorail/backend/transfer"
)

// With strict_names, only the engine of the loaded metadata may use a name. Other names are free.
func TestStrictNames(t *testing.T) {
	t.Parallel()
	h := onFake(t, placing())
	b := h.agent("bob", "strict_names", "on")
	ann, other, carol := h.agent("ann"), h.agent("ann"), h.agent("carol")
	require.NoError(t, b.LoadConn("ann", ann.Conn()))
	theirs := b.memory(4096)
	write := func(a *agent) *request {
		require.NoError(t, a.LoadConn("bob", b.Conn()))
		return a.whole(transfer.Write, a.memory(4096), theirs.seenBy(a)).post()
	}
	require.Equal(t, done, write(ann).wait())
	require.Equal(t, done, write(carol).wait())
	write(other).fails(status.ErrBackend)
	require.True(t, h.log.has("strict_names"))
	require.NoError(t, b.LoadConn("ann", other.Conn()))
	require.Equal(t, done, write(other).wait(), "its metadata is the newer one")
}

// Metadata that cannot work with our options is refused when it is loaded, with the option's name, and not as unsupported:
// the agent would take another backend in silence.
func TestLoadChecksTrust(t *testing.T) {
	t.Parallel()
	h := onFake(t, placing())
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte(strings.Repeat("s", 40)), 0o600))
	plain, proved := h.agent("plain"), h.agent("proved", "secret_file", secret)
	for _, c := range []struct {
		here, there *agent
		option      string
	}{{plain, proved, "secret_file"}, {proved, plain, "secret_file"}} {
		err := c.here.LoadConn(c.there.name, c.there.Conn())
		require.Equal(t, status.ErrMismatch, status.Of(err))
		require.ErrorContains(t, err, c.option)
	}
	again := h.agent("again", "secret_file", secret)
	require.NoError(t, again.LoadConn("proved", proved.Conn()))
	again.whole(transfer.Write, again.memory(64), proved.memory(64).seenBy(again)).run()
}
