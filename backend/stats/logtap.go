package stats

// A Tap keeps lines of a log for those who look at a running engine: the last warnings and errors, and for a
// while all lines from info on.

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	mostRecent = 32
	mostTraced = 4096
	mostBytes  = 1 << 10 // of a line
)

// Tap is a slog.Handler in front of another. It keeps lines that the other one's level leaves out, too.
type Tap struct {
	kept  *kept
	next  slog.Handler
	lines slog.Handler // formats lines for kept, with the attributes of With
}

// kept is what all handlers of a tap share.
type kept struct {
	tracing atomic.Bool

	mu     sync.Mutex
	buf    bytes.Buffer
	recent []Line
	traced []Line
	lost   int
}

// NewTap makes a tap in front of next.
func NewTap(next slog.Handler) *Tap {
	k := &kept{}
	drop := func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) { // Line has them
			return slog.Attr{}
		}
		return a
	}
	return &Tap{kept: k, next: next, lines: slog.NewTextHandler(&k.buf, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: drop})}
}

// Enabled implements slog.Handler.
func (t *Tap) Enabled(ctx context.Context, level slog.Level) bool {
	return t.wants(level) || t.next.Enabled(ctx, level)
}

func (t *Tap) wants(level slog.Level) bool {
	return level >= slog.LevelWarn || level >= slog.LevelInfo && t.kept.tracing.Load()
}

// Handle implements slog.Handler.
func (t *Tap) Handle(ctx context.Context, r slog.Record) error {
	if t.wants(r.Level) {
		t.keep(ctx, r)
	}
	if t.next.Enabled(ctx, r.Level) {
		return t.next.Handle(ctx, r)
	}
	return nil
}

func (t *Tap) keep(ctx context.Context, r slog.Record) {
	k := t.kept
	k.mu.Lock()
	defer k.mu.Unlock()
	k.buf.Reset()
	_ = t.lines.Handle(ctx, r) // a bytes.Buffer takes everything
	text := strings.TrimSpace(k.buf.String())
	if len(text) > mostBytes {
		text = strings.ToValidUTF8(text[:mostBytes], "") + "..."
	}
	line := Line{Time: r.Time, Level: strings.ToLower(r.Level.String()), Text: text}
	if r.Level >= slog.LevelWarn {
		if len(k.recent) == mostRecent {
			k.recent = append(k.recent[:0], k.recent[1:]...)
		}
		k.recent = append(k.recent, line)
	}
	switch {
	case !k.tracing.Load():
	case len(k.traced) == mostTraced:
		k.lost++
	default:
		k.traced = append(k.traced, line)
	}
}

// WithAttrs implements slog.Handler.
func (t *Tap) WithAttrs(a []slog.Attr) slog.Handler {
	return &Tap{t.kept, t.next.WithAttrs(a), t.lines.WithAttrs(a)}
}

// WithGroup implements slog.Handler.
func (t *Tap) WithGroup(name string) slog.Handler {
	return &Tap{t.kept, t.next.WithGroup(name), t.lines.WithGroup(name)}
}

// Recent returns the last warnings and errors, the oldest first.
func (t *Tap) Recent() []Line {
	t.kept.mu.Lock()
	defer t.kept.mu.Unlock()
	return append([]Line{}, t.kept.recent...)
}

// ErrTracing is for a second trace at the same time.
var ErrTracing = errors.New("another trace is under way")

// Start keeps all lines from info on until Stop.
func (t *Tap) Start() error {
	k := t.kept
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tracing.Swap(true) {
		return ErrTracing
	}
	k.traced, k.lost = []Line{}, 0
	return nil
}

// Tracing reports whether Start was called, and Stop not since.
func (t *Tap) Tracing() bool { return t.kept.tracing.Load() }

// Stop returns the lines since Start, and the number of those beyond the limit of 4096.
func (t *Tap) Stop() (lines []Line, lost int) {
	k := t.kept
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tracing.Store(false)
	lines, k.traced = k.traced, nil
	return lines, k.lost
}
