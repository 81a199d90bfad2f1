package worker

import (
	"time"

	"gorail/nixlapi"
)

// XferSpec describes a request.
type XferSpec struct {
	Op            nixlapi.Op
	Local, Remote Side
	Peer          string
	Notif         []byte // nil: none; empty: a notification with an empty message
	NoMerge       bool
}

// Xfer is a request in a worker.
type Xfer struct {
	a  *Agent
	id int
	// Prepared is the time to create the request.
	Prepared time.Duration
}

// Dlist is a prepared descriptor list in a worker.
type Dlist struct {
	a        *Agent
	id       int
	Prepared time.Duration
}

func (a *Agent) args(s XferSpec) XferArgs {
	return XferArgs{Agent: a.id, Op: s.Op, Local: s.Local, Remote: s.Remote, Peer: s.Peer,
		HasNotif: s.Notif != nil, Notif: s.Notif, NoMerge: s.NoMerge}
}

func (a *Agent) xfer(method string, args XferArgs) (*Xfer, error) {
	a.t.Helper()
	out := call[XferOut](a.Worker, method, args, 2*Deadline)
	return &Xfer{a: a, id: out.ID, Prepared: out.Took}, asErr(out.Err)
}

// TryXfer creates a request.
func (a *Agent) TryXfer(s XferSpec) (*Xfer, error) {
	a.t.Helper()
	return a.xfer("CreateXfer", a.args(s))
}

// Xfer creates a request or fails the test.
func (a *Agent) Xfer(s XferSpec) *Xfer {
	a.t.Helper()
	x, err := a.TryXfer(s)
	if err != nil {
		a.t.Fatalf("%s: %v\n%s", a.Name, err, a.Output())
	}
	return x
}

// Prep prepares a descriptor list for peer, or for the own side if peer is "".
func (a *Agent) Prep(peer string, s Side) *Dlist {
	a.t.Helper()
	out := call[XferOut](a.Worker, "PrepDlist", XferArgs{Agent: a.id, Peer: peer, Local: s}, 2*Deadline)
	if out.Err != nil {
		a.t.Fatalf("%s: %v\n%s", a.Name, out.Err, a.Output())
	}
	return &Dlist{a: a, id: out.ID, Prepared: out.Took}
}

// Release releases the list.
func (d *Dlist) Release() error {
	d.a.t.Helper()
	return asErr(call[ErrOut](d.a.Worker, "ReleaseDlist", Ref{d.a.id, d.id}, Deadline).Err)
}

// MakeXfer creates a request from indices into two prepared lists.
func (a *Agent) MakeXfer(s XferSpec, l *Dlist, li []int32, r *Dlist, ri []int32) *Xfer {
	a.t.Helper()
	args := a.args(s)
	args.LD, args.LI, args.RD, args.RI = l.id, li, r.id, ri
	x, err := a.xfer("MakeXfer", args)
	if err != nil {
		a.t.Fatalf("%s: %v\n%s", a.Name, err, a.Output())
	}
	return x
}

func (x *Xfer) post(mode PostMode, msg []byte) XferOut {
	x.a.t.Helper()
	return call[XferOut](x.a.Worker, "Post", PostArgs{x.a.id, x.id, mode, msg}, Deadline)
}

// Post posts with the notification given at creation.
func (x *Xfer) Post() nixlapi.Status { x.a.t.Helper(); return x.post(AsMade, nil).Status }

// PostTimed is Post; it also returns the time of the post in the worker.
func (x *Xfer) PostTimed() (nixlapi.Status, time.Duration) {
	x.a.t.Helper()
	out := x.post(AsMade, nil)
	return out.Status, out.Took
}

// PostNotif posts with its own notification.
func (x *Xfer) PostNotif(msg []byte) nixlapi.Status {
	x.a.t.Helper()
	return x.post(WithNotif, msg).Status
}

// PostQuiet posts without a notification.
func (x *Xfer) PostQuiet() nixlapi.Status { x.a.t.Helper(); return x.post(NoNotif, nil).Status }

// Status polls once.
func (x *Xfer) Status() nixlapi.Status {
	x.a.t.Helper()
	return call[XferOut](x.a.Worker, "Status", Ref{x.a.id, x.id}, Deadline).Status
}

// Wait polls until the request has ended. It returns InProgress if the time is up.
func (x *Xfer) Wait(timeout time.Duration) nixlapi.Status {
	x.a.t.Helper()
	return x.WaitAsync(timeout).Wait().Status
}

// WaitAsync starts Wait. Its reply has the waiting time.
func (x *Xfer) WaitAsync(timeout time.Duration) *Future[XferOut] {
	return async[XferOut](x.a.Worker, "Wait", WaitArgs{Agent: x.a.id, ID: x.id, Timeout: timeout}, timeout+grace)
}

// Try posts, waits for the end, and returns its status.
func (x *Xfer) Try(timeout time.Duration) nixlapi.Status {
	x.a.t.Helper()
	s := x.Post()
	if s == nixlapi.InProgress {
		s = x.Wait(timeout)
	}
	return s
}

// Do posts and waits for Success, or fails the test.
func (x *Xfer) Do(timeout time.Duration) {
	x.a.t.Helper()
	if s := x.Try(timeout); s != nixlapi.Success {
		x.a.t.Fatalf("%s: transfer: %s\n%s", x.a.Name, s, x.a.Output())
	}
}

// Release releases the request. A refused release may be repeated once.
func (x *Xfer) Release() error {
	x.a.t.Helper()
	return asErr(call[ErrOut](x.a.Worker, "Release", Ref{x.a.id, x.id}, Deadline).Err)
}

// Cost estimates the request and names the backend that carries it.
func (x *Xfer) Cost() (us int64, backend string, err error) {
	x.a.t.Helper()
	out := call[XferOut](x.a.Worker, "Cost", Ref{x.a.id, x.id}, Deadline)
	return out.Us, out.Backend, asErr(out.Err)
}

// LoopAsync posts the request repeatedly inside the worker.
func (x *Xfer) LoopAsync(l LoopArgs) *Future[LoopResult] {
	l.Agent, l.ID = x.a.id, x.id
	return async[LoopResult](x.a.Worker, "Loop", l, l.Timeout+grace)
}

// ID returns the request's number for LoopArgs.Beside.
func (x *Xfer) ID() int { return x.id }

// Loop runs LoopAsync to its end.
func (x *Xfer) Loop(l LoopArgs) LoopResult {
	x.a.t.Helper()
	return x.LoopAsync(l).Wait()
}
