package worker

import (
	"fmt"
	"time"

	"gorail/nixlapi"
)

// Agent is an agent in a worker.
type Agent struct {
	*Worker
	Name   string
	Thread int // calls NIXL for the agent, unless AgentConfig.Concurrent is set
	id     int
}

// TryAgent makes an agent and its backend.
func (w *Worker) TryAgent(c AgentConfig) (*Agent, error) {
	w.t.Helper()
	out := call[AgentOut](w, "Agent", AgentArgs{c}, Deadline)
	return &Agent{Worker: w, Name: c.Name, Thread: out.Thread, id: out.ID}, asErr(out.Err)
}

// Agent makes an agent and its backend, or fails the test.
func (w *Worker) Agent(c AgentConfig) *Agent {
	w.t.Helper()
	a, err := w.TryAgent(c)
	if err != nil {
		w.t.Fatalf("agent %s: %v\n%s", c.Name, err, w.Output())
	}
	return a
}

// Close releases the agent's requests and destroys it.
func (a *Agent) Close() error {
	a.t.Helper()
	return asErr(call[ErrOut](a.Worker, "CloseAgent", Ref{Agent: a.id}, Deadline).Err)
}

// manyRegions limits the registration of a hundred thousand regions on four rails of a busy machine.
var manyRegions = 5 * Deadline

// Register registers every block of the sides in one call.
func (a *Agent) Register(s ...Side) error {
	a.t.Helper()
	return asErr(call[ErrOut](a.Worker, "Register", RegArgs{Agent: a.id, Sides: s}, manyRegions).Err)
}

// RegisterMeta is Register with metaInfo for each block.
func (a *Agent) RegisterMeta(meta string, s ...Side) error {
	a.t.Helper()
	return asErr(call[ErrOut](a.Worker, "Register", RegArgs{Agent: a.id, Sides: s, Meta: meta}, manyRegions).Err)
}

// Deregister undoes Register.
func (a *Agent) Deregister(s ...Side) error {
	a.t.Helper()
	return asErr(call[ErrOut](a.Worker, "Deregister", RegArgs{Agent: a.id, Sides: s}, manyRegions).Err)
}

// Metadata exports the agent.
func (a *Agent) Metadata() []byte {
	a.t.Helper()
	out := call[MDOut](a.Worker, "Metadata", MDArgs{Agent: a.id}, Deadline)
	if out.Err != nil {
		a.t.Fatalf("%s: %v", a.Name, out.Err)
	}
	return out.Blob
}

// PartialMetadata exports the regions of the sides; without sides only the connection info.
func (a *Agent) PartialMetadata(s ...Side) ([]byte, error) {
	a.t.Helper()
	out := call[MDOut](a.Worker, "PartialMD", RegArgs{Agent: a.id, Sides: s}, manyRegions)
	return out.Blob, asErr(out.Err)
}

// Load loads a peer's metadata and returns its name.
func (a *Agent) Load(md []byte) (string, error) {
	a.t.Helper()
	out := call[MDOut](a.Worker, "Load", MDArgs{Agent: a.id, Blob: md}, Deadline)
	return out.Name, asErr(out.Err)
}

// Learn loads a peer's metadata or fails the test.
func (a *Agent) Learn(peer *Agent) {
	a.t.Helper()
	if _, err := a.Load(peer.Metadata()); err != nil {
		a.t.Fatalf("%s: loading %s: %v\n%s", a.Name, peer.Name, err, a.Output())
	}
}

// Invalidate forgets a peer.
func (a *Agent) Invalidate(peer string) error {
	a.t.Helper()
	return asErr(call[MDOut](a.Worker, "Invalidate", MDArgs{Agent: a.id, Name: peer}, Deadline).Err)
}

// Connect asks for a connection to a loaded peer.
func (a *Agent) Connect(peer string) error {
	a.t.Helper()
	return asErr(call[MDOut](a.Worker, "Connect", MDArgs{Agent: a.id, Name: peer}, Deadline).Err)
}

// Knows reports whether a peer is loaded. See nixlapi.Agent.Knows.
func (a *Agent) Knows(peer string) bool {
	a.t.Helper()
	return call[MDOut](a.Worker, "Knows", MDArgs{Agent: a.id, Name: peer}, Deadline).Known
}

// GenNotif sends one notification.
func (a *Agent) GenNotif(peer string, msg []byte) error {
	a.t.Helper()
	return asErr(call[ErrOut](a.Worker, "GenNotif", NotifArgs{Agent: a.id, Peer: peer, Msg: msg}, Deadline).Err)
}

// GenNotifsAsync sends n notifications with prefix and their number as text.
func (a *Agent) GenNotifsAsync(peer, prefix string, n int) *Future[ErrOut] {
	return async[ErrOut](a.Worker, "GenNotif", NotifArgs{Agent: a.id, Peer: peer, Prefix: prefix, Count: n}, 2*Deadline)
}

// Polling turns polling for notifications in the background on or off.
func (a *Agent) Polling(on bool) {
	a.t.Helper()
	call[ErrOut](a.Worker, "Polling", PollingArgs{a.id, on, pollPause}, Deadline)
}

// PollEvery is Polling(true) for an application that polls seldom. It pauses after each poll, for a millisecond at
// least.
func (a *Agent) PollEvery(pause time.Duration) {
	a.t.Helper()
	call[ErrOut](a.Worker, "Polling", PollingArgs{a.id, true, pause}, Deadline)
}

// Spinning is Polling(true) without pauses.
func (a *Agent) Spinning() {
	a.t.Helper()
	call[ErrOut](a.Worker, "Polling", PollingArgs{a.id, true, 0}, Deadline)
}

// WaitNotifs polls until n notifications have come. It returns fewer if the time is up.
func (a *Agent) WaitNotifs(n int, timeout time.Duration) []nixlapi.Notif {
	a.t.Helper()
	return a.WaitNotifsAsync(n, timeout).Wait().Notifs
}

// WaitNotifsAsync starts WaitNotifs.
func (a *Agent) WaitNotifsAsync(n int, timeout time.Duration) *Future[NotifOut] {
	return async[NotifOut](a.Worker, "WaitNotifs", WaitArgs{Agent: a.id, N: n, Timeout: timeout}, timeout+grace)
}

// Seq is the i-th message of GenNotifsAsync and of a Loop with a prefix.
func Seq(prefix string, i int) []byte { return fmt.Appendf(nil, "%s%d", prefix, i) }

// Visit loads, notifies and forgets a peer in.N times. The first error ends it.
func (a *Agent) Visit(in VisitArgs) (accepted int, err error) {
	a.t.Helper()
	in.Agent = a.id
	out := call[VisitOut](a.Worker, "Visit", in, in.Timeout+grace)
	return out.Accepted, asErr(out.Err)
}
