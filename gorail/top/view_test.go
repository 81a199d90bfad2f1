package top

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/require"

	"gorail/backend/stats"
	"gorail/backend/statsocket"
	"gorail/gorail/live"
)

// plainText is the screen without colours and without blanks at the ends of lines.
func plainText(s string) string {
	var out strings.Builder
	for l := range strings.Lines(ansi.Strip(s)) {
		out.WriteString(strings.TrimRight(l, " \n") + "\n")
	}
	return out.String()
}

// Any size has lines that fit, and the keys are in the last one.
func TestSizes(t *testing.T) {
	b := full(t)
	b.Rows[0].Agent = "漢字" + strings.Repeat("x", 100)
	wider, higher := 7, 3
	if testing.Short() {
		wider, higher = 23, 9
	}
	for width := 1; width < 200; width += wider {
		for height := 1; height < 60; height += higher {
			s := screen{width: width, height: height, order: ByAgent, offset: height}
			lines := strings.Split(s.paint(b), "\n")
			require.Len(t, lines, max(1, min(height, len(lines))))
			require.LessOrEqual(t, len(lines), height)
			for _, l := range lines {
				require.LessOrEqual(t, ansi.StringWidth(l), width)
			}
			require.Contains(t, "q quit  s sort", ansi.Strip(strings.TrimSuffix(ansi.Truncate(lines[len(lines)-1], min(width, 14), ""), "…"))[:min(width-1, 6)])
		}
	}
}

// Names and log lines of others cannot control the terminal.
func TestClean(t *testing.T) {
	b := full(t)
	b.Rows[0].Agent = "a\x1b[2Jb\r"
	b.Rows[0].Log[0].Text = "x\x1b]0;title\x07\u202e\ny"
	var out bytes.Buffer
	require.NoError(t, write(&out, b))
	require.NotContains(t, out.String(), "\x1b")
	require.Contains(t, out.String(), "a?[2Jb?")
	require.Contains(t, out.String(), "x?]0;title?? y")
	s := screen{width: 160, height: 30, order: ByAgent}
	require.NotContains(t, s.paint(b), "\x1b[2J")
}

func TestKeys(t *testing.T) {
	b := full(t)
	s := screen{width: 80, height: 8, order: ByAgent}
	press := func(name string) string {
		require.False(t, s.key(name))
		return plainText(s.paint(b))
	}
	require.Contains(t, press("s"), "sort: rate")
	require.Contains(t, press("t"), "queued")
	require.Contains(t, press("?"), "this help, or back")
	require.Contains(t, press("esc"), "ann")
	require.Contains(t, press("down"), "1 lines above, 1 below")
	for range 50 {
		press("pgdown")
	}
	require.Contains(t, press("pgdown"), " 0 below")
	require.NotContains(t, press("home"), "lines above, 0 below")
	require.True(t, s.key("q"))
	require.True(t, s.key("ctrl+c"))
}

type source struct{ n uint64 }

func (s *source) Live() (stats.Live, error) {
	s.n++
	return engine("ann", s.n), nil
}

func (s *source) Trace(context.Context, time.Duration) (stats.Trace, error) {
	return stats.Trace{}, errors.New("none")
}

// Once reads a socket twice and gives the rate between both. Transfer times are those since the start.
func TestOnce(t *testing.T) {
	folder := t.TempDir()
	server, err := statsocket.Listen(folder, "1", &source{}, nil)
	require.NoError(t, err)
	defer server.Close()
	var out bytes.Buffer
	require.NoError(t, Once(t.Context(), &out, live.Source{Folder: folder}.Read, time.Millisecond))
	require.Contains(t, out.String(), "34% W 1.0GiB/s of 2.9GiB/s")
	require.Contains(t, out.String(), "p50/p99 since start ≤4.0KiB <2µs/<8µs")
	require.ErrorIs(t, Once(t.Context(), &out, func(context.Context) ([]live.Engine, error) { return nil, os.ErrClosed }, 0), os.ErrClosed)
}
