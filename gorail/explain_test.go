package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
)

// TestExplain prints each code of the list.
func TestExplain(t *testing.T) {
	var list strings.Builder
	require.NoError(t, run([]string{"explain"}, &list, io.Discard))
	require.Equal(t, len(errcode.List()), strings.Count(list.String(), "\n"))
	for _, c := range errcode.List() {
		require.Contains(t, list.String(), c.String()+"  "+c.Meaning)
		var out strings.Builder
		require.NoError(t, run([]string{"explain", c.String()}, &out, io.Discard))
		require.Equal(t, c.Explain(), out.String())
	}
	require.ErrorContains(t, run([]string{"explain", "GR-9999"}, io.Discard, io.Discard), `no code "GR-9999"`)
}
