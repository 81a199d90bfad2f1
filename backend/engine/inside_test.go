package engine

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/session"
	"gorail/backend/transfer"
)

// remote is a session with this engine as initiator.
type remote struct{ *session.Initiator }

// remote is the session with a peer. Its Session is nil if there is none.
func (a *agent) remote(name string) *remote { return &remote{a.initiators.Of(name)} }

// inside returns the present state of the session.
func (r *remote) inside() (in session.Inside) {
	r.Inspect(func(i session.Inside) { in = i })
	in.Links = slices.Clone(in.Links)
	return in
}

func (r *remote) links() []*session.Link { return r.inside().Links }

func (r *remote) ready() bool { return r.Peer().View().State == transfer.Ready }

// change calls f as the session changes what posts read. The view stays the same.
func (r *remote) change(f func()) {
	r.Inspect(func(session.Inside) {
		v := r.Peer().View()
		r.Peer().Pause()
		f()
		r.Peer().Publish(v, false)
	})
}

// count returns the number of links for which is returns true.
func (r *remote) count(is func(l *session.Link) bool) (n int) {
	r.Inspect(func(in session.Inside) {
		for _, l := range in.Links {
			if is(l) {
				n++
			}
		}
	})
	return n
}

// atWork returns the number of working links.
func (r *remote) atWork() int {
	return r.count(func(l *session.Link) bool { return l.Phase == session.Working && l.Up })
}

// fail ends the session, as an error of the initiator does.
func (r *remote) fail(text string) { r.GiveUp(errors.New(text)) }

// fenceAll fences every link.
func (r *remote) fenceAll(why string) { r.Fence(r.Peer().View().Routes, why, false) }

// dropped waits until a session that has ended has closed the initiator's endpoints.
func (r *remote) dropped(t testing.TB) {
	t.Helper()
	until(t, "the endpoints are closed", func() bool { return !r.inside().Has })
}

// inFlight waits until the first link has a work request in flight.
func (r *remote) inFlight(x *request) {
	until(x.a.t, "the first link has posted something", func() bool { x.check(); return r.links()[0].Core.Stats().InflightOps > 0 })
}

// keysHere returns how many regions of the peer have keys.
func (r *remote) keysHere() int { return r.inside().Keyed }

// settled waits until all events that are in the peer's queue now have been handled.
func settled(a *agent, r *remote) {
	done := make(chan struct{})
	r.Peer().Events.Do(&a.life, func() { close(done) })
	<-done
}

// connected waits until a link to the peer works.
func (a *agent) connected(peer string) *remote {
	a.t.Helper()
	r := a.controlReady(peer)
	until(a.t, "a link to the peer works", func() bool {
		return r.ready() && r.count(func(l *session.Link) bool { return l.Phase == session.Working }) > 0
	})
	return r
}

// controlReady waits until the control channel is ready. The links need not work.
func (a *agent) controlReady(peer string) *remote {
	a.t.Helper()
	r := a.remote(peer)
	require.NotNil(a.t, r.Initiator)
	until(a.t, "the control channel is ready", r.ready)
	return r
}

// sessions returns the number of sessions with this engine as target.
func (a *agent) sessions() int { return len(a.targets.All()) }

// held returns how many messages of the latest session wait behind a gap.
func (a *agent) held() int {
	if t := a.targets.Latest(); t != nil {
		return t.Held()
	}
	return 0
}

// record returns the transfer.
func (x *request) record() *transfer.Transfer {
	t, err := x.a.transfers.Get(x.handle)
	require.NoError(x.a.t, err)
	return t
}

// shares returns how many bytes each link has moved in the last post.
func (x *request) shares() (all []uint64) {
	t := x.record()
	for _, r := range t.Peer().View().Routes {
		all = append(all, t.Slot().Share(r.Link))
	}
	return all
}

// posted waits until the transfer has posted a work request.
func (x *request) posted() *request {
	x.a.t.Helper()
	slot := x.record().Slot()
	until(x.a.t, "the request has posted something", func() bool {
		x.check()
		slot.DropCachedPost()
		return x.a.core.Posted(slot, core.Link{})
	})
	return x
}

const (
	inProg = int(errcode.InProg)
	done   = int(errcode.Success)
)

// request is a prepared transfer.
type request struct {
	a      *agent
	handle uint64
	slot   unsafe.Pointer
}

func (a *agent) prep(op int, local, remote []Desc, peer string) *request {
	a.t.Helper()
	h, slot, err := a.Prep(op, local, remote, peer)
	require.NoError(a.t, err)
	return &request{a, h, slot}
}

// whole prepares a transfer of all bytes of the shorter memory.
func (a *agent) whole(op int, local, remote *memory) *request {
	a.t.Helper()
	n := min(len(local.b), len(remote.b))
	return a.prep(op, []Desc{local.desc(0, n)}, []Desc{remote.desc(0, n)}, remote.owner.name)
}

func (r *request) post(notif ...string) *request {
	r.a.t.Helper()
	_, err := r.Post(notif...)
	require.NoError(r.a.t, err)
	return r
}

// Post posts as the shim does: without Go if the transfer has a cached post. notif, if given, is the notification.
func (r *request) Post(notif ...string) (int32, error) {
	has, msg := len(notif) > 0, []byte(strings.Join(notif, ""))
	if rc, taken := r.a.core.Repost(r.slot, r.handle, has, msg); taken {
		return rc, nil
	}
	return r.a.Engine.Post(r.handle, has, msg)
}

func (r *request) check() int { return r.a.core.Check(r.slot, r.handle) }

// wait waits for the end of the transfer and returns its status.
func (r *request) wait() int {
	r.a.t.Helper()
	var s int
	until(r.a.t, "the transfer ends", func() bool { s = r.check(); return s != inProg })
	return s
}

// run posts, and requires success.
func (r *request) run(notif ...string) {
	r.a.t.Helper()
	require.Equal(r.a.t, errcode.Success, errcode.Status(r.post(notif...).wait()))
}

// fails waits for the end of the transfer, and requires this error.
func (r *request) fails(code errcode.Status) {
	r.a.t.Helper()
	require.Equal(r.a.t, code.String(), errcode.Status(r.wait()).String())
}

func (r *request) release() {
	r.a.t.Helper()
	require.NoError(r.a.t, r.a.Release(r.handle))
}

// take adds the notifications that have arrived to got.
func (a *agent) take() []string {
	for _, n := range a.core.TakeNotifs() {
		a.got = append(a.got, n.From+":"+string(n.Msg))
	}
	return a.got
}

// expect waits for these notifications, in this order, and empties got.
func (a *agent) expect(want ...string) {
	a.t.Helper()
	until(a.t, "all notifications arrive", func() bool { return len(a.take()) >= len(want) })
	require.Equal(a.t, want, a.got)
	a.got = nil
}

// quiet requires that no further notification has arrived.
func (a *agent) quiet() {
	a.t.Helper()
	require.Empty(a.t, a.take())
}

// pair is two agents with a buffer each. Agent a has loaded the metadata of b's buffer.
type pair struct {
	a, b         *agent
	mine, theirs *memory // a's buffer; b's buffer, as a sees it
}

func (h *harness) pair(n int, params ...string) *pair {
	h.Helper()
	p := &pair{a: h.agent("ann", params...), b: h.agent("bob", params...)}
	loadBoth(p.a, p.b)
	p.mine, p.theirs = p.a.memory(n), p.b.memory(n).seenBy(p.a)
	return p
}

// same compares the two buffers.
func (p *pair) same() {
	p.a.t.Helper()
	if string(p.mine.b) != string(p.theirs.b) {
		p.a.t.Fatal("the bytes differ")
	}
}

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
