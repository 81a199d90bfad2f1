package errcode

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestErrorf(t *testing.T) {
	err := TransferTimedOut.Errorf("rail 0: %w", io.EOF)

	require.EqualError(t, err, "rail 0: EOF")
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, ErrBackend, StatusOf(err))
	require.Equal(t, TransferTimedOut, Of(fmt.Errorf("post: %w", err)), "through a wrapper")
	require.Equal(t, UnknownPeer, Of(UnknownPeer.Errorf("post: %w", err)), "the outermost code wins")
	require.Equal(t, ErrNotFound, StatusOf(errors.Join(io.EOF, UnknownPeer.Errorf("x"))))
	require.Equal(t, Unclassified, Of(io.EOF))
	require.Nil(t, Of(nil))
}

// Only this package makes errors with a status, so each has a code.
func TestOnlyHere(t *testing.T) {
	makes := regexp.MustCompile(`\) Status\(\) (status\.)?Code\b`)
	read := 0
	for _, root := range []string{"..", "../../plugin"} {
		require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			read++
			text, err := os.ReadFile(path)
			if makes.Match(text) && filepath.Base(filepath.Dir(path)) != "errcode" {
				t.Errorf("%s makes errors with a status: use errcode.NAME.Errorf", path)
			}
			return err
		}))
	}
	require.Greater(t, read, 100)
}

// Log handlers print the code.
func TestInLog(t *testing.T) {
	var text, json strings.Builder
	slog.New(slog.NewTextHandler(&text, nil)).Error("x", Key, TransferTimedOut)
	slog.New(slog.NewJSONHandler(&json, nil)).Error("x", Key, TransferTimedOut)
	require.Contains(t, text.String(), "code=GR-1042\n")
	require.Contains(t, json.String(), `"code":"GR-1042"}`)
}

func TestFind(t *testing.T) {
	for _, text := range []string{"GR-1042", "gr-1042", "GR1042", " 1042"} {
		require.Equal(t, TransferTimedOut, Find(text), text)
	}
	for _, text := range []string{"", "GR-", "GR-9999", "timeout"} {
		require.Nil(t, Find(text), text)
	}
	require.Contains(t, TransferTimedOut.Explain(), "GR-1042: A transfer made no progress for xfer_timeout\n\nStatus:  NIXL_ERR_BACKEND\nCause:   ")
	require.Contains(t, BadOption.Explain(), "Correct the option. docs/options.md lists all options.\n")
	require.Contains(t, RailDown.Explain(), "Status:  none: no call fails\n")
}

// docs/errors.md is that of the table.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/errors.md")
	require.NoError(t, err)
	require.True(t, string(page) == string(Markdown()), "docs/errors.md is stale: go run ./internal/pages")
}

// Each row is complete, and its number is its own.
func TestRows(t *testing.T) {
	numbers := map[int]bool{}
	for _, c := range List() {
		require.False(t, numbers[c.Number], "two rows %s", c)
		numbers[c.Number] = true
		assert.Equal(t, c.Number >= 2001, c.Status == Success, "%s: only warnings fail no call", c)
		for what, text := range map[string]string{"cause": c.Cause, "look": c.Look, "remedy": c.Remedy} {
			assert.Regexp(t, `^[A-Z`+"`"+`].*\.$`, text, "%s %s", c, what)
			for sentence := range strings.SplitSeq(text, ". ") {
				assert.LessOrEqual(t, len(strings.Fields(sentence)), 24, "%s: %s", c, sentence)
			}
		}
		assert.Regexp(t, `^[A-Zen].*[^.]$`, c.Meaning, c)
	}
}

// variable is a row's declaration in this package.
var variable = regexp.MustCompile(`(?m)^\t([A-Z]\w+) += row\((\d+),`)

// Each row has a test that provokes it: the test exists, and its file names the row or its code.
func TestTests(t *testing.T) {
	names := map[string]string{}
	sources, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range sources {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range variable.FindAllSubmatch(text, -1) {
			names["GR-"+string(m[2])] = string(m[1])
		}
	}
	require.Len(t, names, len(list))
	for _, c := range List() {
		dir, test, ok := strings.Cut(c.Test, " ")
		require.True(t, ok, c)
		files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
		require.NoError(t, err)
		head := "func " + test + "("
		named := regexp.MustCompile(`\berrcode\.` + names[c.String()] + `\b|\b` + c.String() + `\b`)
		declared := regexp.MustCompile(`(?m)^func ` + test + `\(t \*testing\.T\)`)
		assert.True(t, slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(text), head) && declared.Match(text) && named.Match(text)
		}), "%s (%s): no file of %s has the test %s and names the code", c, names[c.String()], dir, test)
	}
}
