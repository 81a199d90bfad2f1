package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/engine"
	"gorail/backend/errcode"
	"gorail/backend/option"
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
		errcode.Panic:           func() error { var nothing *engine.Engine; return nothing.Close() },
		errcode.BadHandle:       func() error { _, err := engines.get(12345); return err },
		errcode.BadOption:       create("xfer_timeout", "soon"),
		errcode.LogFileUnusable: create("log_file", filepath.Join(t.TempDir(), "none", "log")),
	} {
		text := logged(t, func() { require.EqualValues(t, code.Status, answer("call", call), code) })
		require.Contains(t, text, " code="+code.String()+"\n")
	}
	text := logged(t, func() { recordHost(nixlHost{nixl: "9.9.9"}) })
	require.Contains(t, text, " code="+errcode.HostUnsupported.String()+"\n")
	text = logged(t, func() { require.EqualValues(t, errcode.ErrInvalidParam, answer("call", create("no_such_option", "1"))) })
	require.Contains(t, text, " code="+errcode.BadOption.String()+"\n")
}

// The newest engine sets the file, the format and the level. Loggers that exist follow. A file is opened once.
func TestLogOptions(t *testing.T) {
	t.Cleanup(func() { require.NoError(t, setLog(&option.Logging{Log: 4}, "ann")) })
	first, second := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")
	require.NoError(t, os.WriteFile(first, []byte("before\n"), 0o600))
	require.NoError(t, setLog(&option.Logging{LogFile: first}, "ann"))
	log := processLog().With("agent", "ann")
	log.Info("one", errcode.Key, errcode.TransferTimedOut)
	require.NoError(t, setLog(&option.Logging{LogFile: second, LogJSON: true}, "ann"))
	log.Info("two", errcode.Key, errcode.TransferTimedOut)
	log.Debug("not at this level")
	require.NoError(t, os.Rename(first, first+".old"))
	require.NoError(t, setLog(&option.Logging{LogFile: first, Log: 4}, "ann"))
	log.Info("not at this level")
	log.Warn("three")
	require.Error(t, setLog(&option.Logging{LogFile: filepath.Join(first, "none")}, "ann"))
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

// TestCodesOfShim: each refusal of the shim has a line with its code, and the status of its code. cshim/test has the calls that lead
// there.
func TestCodesOfShim(t *testing.T) {
	seen := map[*errcode.Code]bool{}
	for why := range refusedCount {
		err := refused(why)
		code := errcode.Of(err)
		require.NotEqual(t, errcode.Unclassified, code, "%d", why)
		require.False(t, seen[code] && code != errcode.HostMismatch, "%v twice", code)
		seen[code] = true
		text := logged(t, func() { require.EqualValues(t, code.Status, answer("checkXfer", func() error { return err })) })
		require.Contains(t, text, "call=checkXfer")
		require.Contains(t, text, " code="+code.String()+"\n")
	}
	require.Equal(t, errcode.Unclassified, errcode.Of(refused(refusedCount)))
	for _, code := range []*errcode.Code{errcode.NoMemoryInCall, errcode.NoHandle, errcode.NoMemoryView} {
		require.True(t, seen[code], "%v", code)
	}
}

// TestLogFilePattern: log_file takes the patterns of stats_file. Names without end do not take descriptors without end, and each file has
// its agent's lines.
func TestLogFilePattern(t *testing.T) {
	t.Cleanup(func() { require.NoError(t, setLog(&option.Logging{Log: 4}, "")) })
	dir := t.TempDir()
	pattern := filepath.Join(dir, "%a-%p.log")
	file := func(agent string) string { return filepath.Join(dir, fmt.Sprintf("%s-%d.log", agent, os.Getpid())) }
	const agents = 2*mostFiles + 3
	for i := range agents {
		name := fmt.Sprint("ann/", i)
		require.NoError(t, setLog(&option.Logging{LogFile: pattern}, name))
		processLog().Warn("line", "agent", name)
	}
	require.NoError(t, setLog(&option.Logging{LogFile: pattern}, "ann/0")) // its file was closed, and is opened again
	processLog().Warn("line", "agent", "again")
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	logs := 0
	for _, fd := range open {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, dir) {
			logs++
		}
	}
	require.Positive(t, logs)
	require.LessOrEqual(t, logs, mostFiles)
	for i := range agents {
		text, err := os.ReadFile(file(fmt.Sprint("ann_", i)))
		require.NoError(t, err)
		want := 1
		if i == 0 {
			want = 2
			require.Contains(t, string(text), "agent=again")
		}
		require.Equal(t, want, strings.Count(string(text), "\n"), "%s", text)
		require.Contains(t, string(text), fmt.Sprintf("agent=ann/%d\n", i))
	}
}
