package engine

import (
	"strings"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/backend/status"
)

const (
	inProg = int(status.InProg)
	done   = int(status.Success)
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
	require.Equal(r.a.t, status.Success, status.Code(r.post(notif...).wait()))
}

// fails waits for the end of the transfer, and requires this error.
func (r *request) fails(code status.Code) {
	r.a.t.Helper()
	require.Equal(r.a.t, code.String(), status.Code(r.wait()).String())
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
