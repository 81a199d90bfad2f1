package engine

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider/fake"
	"gorail/backend/transfer"
)

// A log with debug lines has one line for each post, with the path.
func TestPathsInLog(t *testing.T) {
	t.Parallel()
	h := onRails(t, 2, fake.TCPCaps())
	h.log.debug = true
	p := h.pair(8 << 20)
	p.allUp(2)
	x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
	x.run()
	n := x.shares()
	want := fmt.Sprintf("[fake/fake0>fake/fake0:%d fake/fake1>fake/fake1:%d]", n[0], n[1])
	until(t, "the end of the transfer is logged without another call", func() bool {
		return h.log.has("transfer ended", "op=WRITE", "bytes=8388608", "status=NIXL_SUCCESS", want)
	})
	y := p.a.prep(transfer.Read, []Desc{p.mine.desc(0, 64)}, []Desc{p.theirs.desc(0, 64)}, "bob")
	y.run()
	y.run()
	require.EqualValues(t, 1, p.a.core.Counters()["reposts"], "debug lines do not send posts through Go")
	y.release()
	require.True(t, h.log.has("transfer ended", "op=READ", "bytes=64", "reposts=1", ":64]"), "the release logs the last post")
}

// Posts without Go have a line together, without another call and without an end of the cached post.
func TestRepostsInLog(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	h.log.debug = true
	p := h.pair(4096)
	x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
	x.run()
	const n = 1000
	for range n {
		x.run()
	}
	until(t, "all posts are in the log", func() bool { return h.log.sum("reposts=") == int(p.a.core.Counters()["reposts"]) })
	through := n - int(p.a.core.Counters()["reposts"])
	require.LessOrEqual(t, through, n/10, "posts through Go: each sweep may cost one")
	before := p.a.core.Counters()["reposts"]
	until(t, "the cached post is back after a line", func() bool { x.run(); return p.a.core.Counters()["reposts"] > before+10 })
	p.same()
}

// quiet is a log that takes warnings and errors only.
type quiet struct{ *logLines }

func (quiet) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (q quiet) WithAttrs([]slog.Attr) slog.Handler         { return q }

// A log without debug lines has no line for a transfer.
func TestPathsNotInLog(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	opt, _, err := option.Parse(nil, nil)
	require.NoError(t, err)
	e, err := New(Config{Agent: "ann", Options: opt, Provider: h.fabric.Provider(h.links...), Log: slog.New(quiet{h.log})})
	require.NoError(t, err)
	a := &agent{Engine: e, t: t}
	m := a.memory(4096)
	x := a.whole(transfer.Write, m, m)
	x.run()
	require.False(t, x.record().Unlogged())
	x.release()
	require.NoError(t, e.Close())
	require.Zero(t, h.log.count("transfer ended"))
}
