package access

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOfMeta(t *testing.T) {
	for meta, want := range map[string]Rights{
		"":                                       Both,
		"remote_access=read":                     Read,
		"remote_access=write":                    Write,
		"remote_access=both":                     Both,
		"remote_access=READ":                     Read,
		"tag=7, remote_access=read;x":            Read,
		"remote_access=read\x00":                 Read,
		"remote_access=read remote_access=write": Write,
		"no_remote_access=read":                  Both,
		"remote_access":                          Both,
		"\xff\x00\x01 device=nvme0":              Both,
	} {
		got, err := OfMeta([]byte(meta), Both)
		require.NoError(t, err, "%q", meta)
		require.Equal(t, want, got, "%q", meta)
	}
	got, err := OfMeta([]byte("tag"), Read)
	require.NoError(t, err)
	require.Equal(t, Read, got, "the engine's option")
}

func TestOfMetaRefusesMisspelt(t *testing.T) {
	for _, meta := range []string{"remote_access=raed", "remote_access=", "remote_access=none"} {
		_, err := OfMeta([]byte(meta), Both)
		require.ErrorIs(t, err, ErrWord, meta)
	}
}

func TestAllow(t *testing.T) {
	require.True(t, Both.Allow(Read))
	require.True(t, Read.Allow(Read))
	require.False(t, Read.Allow(Write))
	require.False(t, Write.Allow(Read))
	require.False(t, Rights(0).Allow(Read))
	for _, r := range []Rights{Read, Write, Both} {
		back, err := Parse(r.String())
		require.NoError(t, err)
		require.Equal(t, r, back)
	}
}
