package engine

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"sync"
)

// logLines keeps the log lines of engines.
type logLines struct {
	debug bool // debug lines are kept, too
	mu    sync.Mutex
	buf   bytes.Buffer
}

func (l *logLines) Enabled(_ context.Context, at slog.Level) bool {
	return at >= slog.LevelInfo || l.debug
}
func (l *logLines) WithAttrs(a []slog.Attr) slog.Handler { return withAttrs{l, a} }
func (l *logLines) WithGroup(string) slog.Handler        { return l }

func (l *logLines) Handle(ctx context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slog.NewTextHandler(&l.buf, &slog.HandlerOptions{Level: slog.LevelDebug}).Handle(ctx, r)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	const most = 4000
	return string(l.buf.Bytes()[max(0, l.buf.Len()-most):])
}

func (l *logLines) has(parts ...string) bool { return l.lines(parts...) > 0 }

// lines is the number of lines with all of these texts.
func (l *logLines) lines(parts ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.buf.Bytes()) {
		if !slices.ContainsFunc(parts, func(p string) bool { return !bytes.Contains(line, []byte(p)) }) {
			n++
		}
	}
	return n
}

func (l *logLines) count(part string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.buf.Bytes(), []byte(part))
}

type withAttrs struct {
	*logLines
	attrs []slog.Attr
}

func (w withAttrs) Handle(ctx context.Context, r slog.Record) error {
	r.AddAttrs(w.attrs...)
	return w.logLines.Handle(ctx, r)
}
