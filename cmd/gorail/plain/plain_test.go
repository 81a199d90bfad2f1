package plain

import (
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"tcp/eth0: 4.2 GB/s":          "tcp/eth0: 4.2 GB/s",
		"Zürich 東京 µs\n\tnext":        "Zürich 東京 µs\n\tnext",
		"\x1b]0;title\x07\x1b[2Jgone": "?]0;title??[2Jgone",
		"over\rwritten\b":             "over?written?",
		"\u009b31m":                   "?31m",
		"a\xff\xfeb":                  "a??b",
		"\u202egnp.exe\u2066":         "?gnp.exe?",
		"in\u200bvisible\ufeff":       "in?visible?",
		"":                            "",
	} {
		require.Equal(t, want, Text(in), "%q", in)
	}
	long := Text(strings.Repeat("x", 1<<20))
	require.Len(t, long, most+len(" ..."))
}

// Every string of an answer is made plain, however deep.
func TestValue(t *testing.T) {
	type inner struct {
		Text string
		At   time.Time
	}
	const bad, good = "\x1b[31mred", "?[31mred"
	v := struct {
		Name   string
		List   []string
		Inner  []inner
		Map    map[string]bool
		Deep   map[string]*inner
		Any    any
		Bytes  []byte
		Number float64
		None   *inner
	}{bad, []string{bad, "x"}, []inner{{bad, time.Now()}}, map[string]bool{bad: true}, map[string]*inner{"k": {Text: bad}}, bad, []byte(bad), 1.5, nil}
	at := v.Inner[0].At
	Value(&v)
	require.Equal(t, good, v.Name)
	require.Equal(t, []string{good, "x"}, v.List)
	require.Equal(t, inner{good, at}, v.Inner[0])
	require.Equal(t, map[string]bool{good: true}, v.Map)
	require.Equal(t, good, v.Deep["k"].Text)
	require.Equal(t, good, v.Any)
	require.Equal(t, bad, string(v.Bytes))
}

// No text keeps a character that a terminal acts on.
func FuzzText(f *testing.F) {
	f.Add("\x1b[2J\u202e\xff")
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range Text(s) {
			require.False(t, r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)), "%q", s)
		}
	})
}
