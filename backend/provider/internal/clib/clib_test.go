package clib

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReturned(t *testing.T) {
	for _, c := range []struct {
		rc    int
		errno error
		want  syscall.Errno
	}{
		{0, syscall.EINVAL, 0},
		{22, nil, syscall.EINVAL},
		{-22, syscall.EIO, syscall.EINVAL},
		{-1, syscall.ENOMEM, syscall.ENOMEM},
		{-1, nil, syscall.EIO},
	} {
		err := Returned("ibv_x", c.rc, c.errno)
		if c.want == 0 {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, c.want)
		require.EqualError(t, err, "ibv_x: "+c.want.Error())
		require.Equal(t, "ibv_x", As(err).Call)
	}
	require.ErrorIs(t, Failed("ibv_x", nil), syscall.EIO)
}

// The text of the library replaces the text of the errno.
func TestTextOfTheLibrary(t *testing.T) {
	err := &CallError{Call: "fi_x", Errno: syscall.EBUSY, Text: "Device busy"}
	require.EqualError(t, err, "fi_x: Device busy")
	require.ErrorIs(t, err, syscall.EBUSY)
	err.Call = ""
	require.EqualError(t, err, "Device busy")
}

func TestLoadSaysWhatIsMissing(t *testing.T) {
	var at *[0]byte
	require.ErrorContains(t, Load("/nowhere/libx.so", "libx", "1.2", nil), "/nowhere/libx.so: cannot open shared object file")
	err := Load("libdl.so.2", "libx", "1.2", []Symbol{{&at, "x_none", "X_1.0", true}, {&at, "x_call", "X_1.0", false}})
	require.EqualError(t, err, "the library has no x_call@X_1.0 (not libx, or older than 1.2)")
}

// After a failure Get calls load again. A success is cached.
func TestCache(t *testing.T) {
	var c Cache[int]
	calls := 0
	load := func(path string) (int, error) {
		if calls++; calls == 1 {
			return 0, errors.New("not now")
		}
		return len(path), nil
	}
	_, err := c.Get("abc", load)
	require.Error(t, err)
	for range 2 {
		n, err := c.Get("abc", load)
		require.NoError(t, err)
		require.Equal(t, 3, n)
	}
	require.Equal(t, 2, calls)
}
