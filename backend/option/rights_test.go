package option

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOfMeta(t *testing.T) {
	for meta, want := range map[string]Rights{
		"":                                       PeersBoth,
		"remote_access=read":                     PeersRead,
		"remote_access=write":                    PeersWrite,
		"remote_access=both":                     PeersBoth,
		"remote_access=READ":                     PeersRead,
		"tag=7, remote_access=read;x":            PeersRead,
		"remote_access=read\x00":                 PeersRead,
		"remote_access=read remote_access=write": PeersWrite,
		"no_remote_access=read":                  PeersBoth,
		"remote_access":                          PeersBoth,
		"\xff\x00\x01 device=nvme0":              PeersBoth,
	} {
		got, err := RightsOfMeta([]byte(meta), PeersBoth)
		require.NoError(t, err, "%q", meta)
		require.Equal(t, want, got, "%q", meta)
	}
	got, err := RightsOfMeta([]byte("tag"), PeersRead)
	require.NoError(t, err)
	require.Equal(t, PeersRead, got, "the engine's option")
}

func TestOfMetaRefusesMisspelt(t *testing.T) {
	for _, meta := range []string{"remote_access=raed", "remote_access=", "remote_access=none"} {
		_, err := RightsOfMeta([]byte(meta), PeersBoth)
		require.ErrorIs(t, err, ErrRights, meta)
	}
}

func TestRightsAllow(t *testing.T) {
	require.True(t, PeersBoth.Allow(PeersRead))
	require.True(t, PeersRead.Allow(PeersRead))
	require.False(t, PeersRead.Allow(PeersWrite))
	require.False(t, PeersWrite.Allow(PeersRead))
	require.False(t, Rights(0).Allow(PeersRead))
	for _, r := range []Rights{PeersRead, PeersWrite, PeersBoth} {
		back, err := ParseRights(r.String())
		require.NoError(t, err)
		require.Equal(t, r, back)
	}
}
