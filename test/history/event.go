package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Engine is one life of an agent: a restart under the same name makes another engine.
type Engine struct {
	Agent string `json:"a"`
	Life  int    `json:"l"`
}

func (e Engine) String() string { return e.Agent + "/" + strconv.Itoa(e.Life) }

// Kind is what an event tells.
type Kind string

// The kinds of events.
const (
	Call    Kind = "call"    // a call of the agent begins
	End     Kind = "end"     // that call, or the transfer that it posted, has ended
	Got     Kind = "got"     // a notification was handed over
	Taken   Kind = "taken"   // deregisterMem has returned at a target: what was in a slot then
	Watched Kind = "watched" // memory that must not change has changed
	Killed  Kind = "killed"  // SIGKILL, and the process has ended
	Stopped Kind = "stopped" // SIGSTOP is about to be sent
	Resumed Kind = "resumed" // SIGCONT is about to be sent
	Cut     Kind = "cut"     // a connection or a rail is cut
	Mended  Kind = "mended"  // the rail is up again
	Altered Kind = "altered" // what is behind the addresses of a piece of memory changes, or has changed (State)
	Held    Kind = "held"    // a peer (To) holds memory that has been taken from under a piece, or of a dead owner; Wrong: bytes
)

// State is of a piece of an owner's memory.
type State string

// The states. Peers are not told of any.
const (
	Stable   State = "stable"   // it is mapped and registered, and has the bytes of a generation
	Changing State = "changing" // on the way to another state
	Away     State = "away"     // it is not mapped, or not registered
	Freed    State = "freed"    // the same, and the driver may give its addresses to somebody else in the owner's process
)

// What is the call of a Call event.
type What string

// The calls. Other calls than these have the same rules as Load.
const (
	Write      What = "WRITE"
	Read       What = "READ"
	Notify     What = "notify"
	Register   What = "register"
	Deregister What = "deregister"
	Release    What = "release"
	Load       What = "load"
	Invalidate What = "invalidate"
	Create     What = "create"
	Close      What = "close"
)

// Result is how a call or a transfer ended.
type Result string

// The results.
const (
	OK       Result = "ok"
	Failed   Result = "failed"
	NotFound Result = "not found" // the agent's own status after the application, or the agent, has removed the peer
	Released Result = "released"  // released in flight
)

// Place is the memory of an event.
type Place string

// The places: of the initiator, and of the target while it is registered and after deregisterMem.
const (
	Local  Place = "local"
	Remote Place = "remote"
	Gone   Place = "gone"
)

// Event is one line of a history.
type Event struct {
	At     int64  `json:"t"` // nanoseconds of CLOCK_MONOTONIC, the same in all processes of a host
	By     Engine `json:"by"`
	Kind   Kind   `json:"k"`
	Op     uint64 `json:"op,omitempty"` // number of a call within its engine. Got, Taken, Watched: of the call that it is about
	What   What   `json:"w,omitempty"`
	To     Engine `json:"to,omitzero"`
	Note   uint64 `json:"n,omitempty"` // number of the notification from By to To, from 1 on; 0: none
	Result Result `json:"r,omitempty"`
	Place  Place  `json:"p,omitempty"`
	Wrong  int64  `json:"x,omitempty"` // 1 + position of the first wrong byte; 0: none
	Unseen bool   `json:"u,omitempty"` // of a success: the target took its memory back before its bytes were compared
	Text   string `json:"s,omitempty"` // for the reader

	// Of transfers with memory that changes: the number of the target's piece of memory, from 1 on. Of Altered: the owner's piece.
	Piece int    `json:"pc,omitempty"`
	Gen   uint64 `json:"g,omitempty"`  // of Altered: the generation of the bytes. Of a READ's end: the oldest generation among its bytes
	State State  `json:"st,omitempty"` // of Altered
	Since int64  `json:"si,omitempty"` // of Held: when the memory was taken away
}

// String is one line for a reader, with the time in milliseconds since base.
func (e Event) String() string { return e.line(0) }

func (e Event) line(base int64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%10.3f %-8s %-8s", float64(e.At-base)/1e6, e.By, e.Kind)
	if e.Op != 0 {
		fmt.Fprintf(&b, " #%d", e.Op)
	}
	for _, s := range []string{string(e.What), string(e.Place), string(e.Result), e.Text} {
		if s != "" {
			b.WriteString(" " + s)
		}
	}
	if e.To != (Engine{}) {
		b.WriteString(" to " + e.To.String())
	}
	if e.Note != 0 {
		fmt.Fprintf(&b, " note %d", e.Note)
	}
	if e.Kind == Held {
		fmt.Fprintf(&b, " %d bytes", e.Wrong)
	} else if e.Wrong != 0 {
		fmt.Fprintf(&b, " WRONG at byte %d", e.Wrong-1)
	}
	if e.Unseen {
		b.WriteString(" bytes not seen")
	}
	if e.Piece != 0 {
		fmt.Fprintf(&b, " piece %d generation %d %s", e.Piece, e.Gen, e.State)
	}
	return b.String()
}

// Now is the time of an event.
func Now() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail
	return ts.Nano()
}

// Log appends events to a file, one write each. What is written outlives a SIGKILL of the writer. It is not safe for
// concurrent use.
type Log struct {
	f *os.File
	// By is the engine that all events are of.
	By Engine
}

// NewLog creates the file. The caller closes the log.
func NewLog(path string, by Engine) (*Log, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return &Log{f, by}, err
}

// Add writes an event with the time, and with the log's engine if it has none.
func (l *Log) Add(e Event) error {
	e.At = Now()
	if e.By == (Engine{}) {
		e.By = l.By
	}
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = l.f.Write(append(b, '\n'))
	return err
}

// Close closes the file.
func (l *Log) Close() error { return l.f.Close() }

// Parse reads what a Log has written. A last line without an end is left out: its writer was killed.
func Parse(r io.Reader) ([]Event, error) {
	var out []Event
	in := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		var e Event
		if err := json.Unmarshal(bytes.TrimSpace(line), &e); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(out)+1, err)
		}
		out = append(out, e)
	}
}

// Merge puts histories of several writers in the order of time. Events of one writer keep theirs.
func Merge(histories ...[]Event) []Event {
	all := slices.Concat(histories...)
	slices.SortStableFunc(all, func(a, b Event) int { return int(min(1, max(-1, a.At-b.At))) })
	return all
}

// ReadFiles merges the histories in some files.
func ReadFiles(paths ...string) ([]Event, error) {
	var all [][]Event
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		h, err := Parse(f)
		_ = f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, h)
	}
	return Merge(all...), nil
}
