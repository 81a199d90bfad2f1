package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/option"
	"gorail/backend/status"
)

// TestCodesOfCalls: the line of each error has its code, and the call its status.
func TestCodesOfCalls(t *testing.T) {
	create := func(params ...string) func() error {
		return func() error {
			a := createArgs{Agent: "ann", Type: name, Params: map[string]string{}}
			for i := 0; i < len(params); i += 2 {
				a.Params[params[i]] = params[i+1]
			}
			_, err := createEngine(a)
			return err
		}
	}
	for code, call := range map[*errcode.Code]func() error{
		errcode.Unclassified:    func() error { return errors.New("of a library") },
		errcode.Panic:           func() error { var nothing *fakeEngine; return nothing.Close() },
		errcode.BadHandle:       func() error { _, err := engines.get(12345); return err },
		errcode.BadOption:       create("xfer_timeout", "soon"),
		errcode.LogFileUnusable: create("log_file", filepath.Join(t.TempDir(), "none", "log")),
	} {
		text := logged(t, func() { require.EqualValues(t, code.Status, answer("call", call), code) })
		require.Contains(t, text, " code="+code.String()+"\n")
	}
	text := logged(t, func() { recordHost(host{nixl: "9.9.9"}) })
	require.Contains(t, text, " code="+errcode.HostUnsupported.String()+"\n")
	text = logged(t, func() { require.EqualValues(t, status.ErrInvalidParam, answer("call", create("no_such_option", "1"))) })
	require.Contains(t, text, " code="+errcode.BadOption.String()+"\n")
}

// The newest engine sets the file, the format and the level. Loggers that exist follow. A file is opened once.
func TestLogOptions(t *testing.T) {
	t.Cleanup(func() { require.NoError(t, setLog(&option.Logging{Log: 4})) })
	first, second := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")
	require.NoError(t, os.WriteFile(first, []byte("before\n"), 0o600))
	require.NoError(t, setLog(&option.Logging{LogFile: first}))
	log := processLog().With("agent", "ann")
	log.Info("one", errcode.Key, errcode.TransferTimedOut)
	require.NoError(t, setLog(&option.Logging{LogFile: second, LogJSON: true}))
	log.Info("two", errcode.Key, errcode.TransferTimedOut)
	log.Debug("not at this level")
	require.NoError(t, os.Rename(first, first+".old"))
	require.NoError(t, setLog(&option.Logging{LogFile: first, Log: 4}))
	log.Info("not at this level")
	log.Warn("three")
	require.Error(t, setLog(&option.Logging{LogFile: filepath.Join(first, "none")}))
	log.Warn("four")

	old, err := os.ReadFile(first + ".old")
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(old)), "\n")
	require.Len(t, lines, 4)
	require.Equal(t, "before", lines[0])
	require.Contains(t, lines[1], "level=INFO msg=one backend=GORAIL agent=ann code=GR-1042")
	require.Contains(t, lines[2], "msg=three")
	require.Contains(t, lines[3], "msg=four")
	require.NoFileExists(t, first, "the file is opened once")
	text, err := os.ReadFile(second)
	require.NoError(t, err)
	var line map[string]any
	require.NoError(t, json.Unmarshal(text, &line), "one line: %s", text)
	require.Equal(t, []any{"two", "GORAIL", "ann", "GR-1042"}, []any{line["msg"], line["backend"], line["agent"], line["code"]})
}
