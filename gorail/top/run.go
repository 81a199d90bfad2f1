package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/term"

	"gorail/gorail/live"
)

// LeastInterval is the shortest time between two readings.
const LeastInterval = 100 * time.Millisecond

// leastAnswer is how long an engine has to answer, or the interval if that is longer. A stopped engine does not keep the
// screen from being refreshed.
const leastAnswer = time.Second

// Reader asks the engines.
type Reader func(ctx context.Context) ([]live.Engine, error)

// Once writes the engines as text, without colours. Its rates are those of one interval. It is an error if none can be read.
func Once(ctx context.Context, out io.Writer, read Reader, every time.Duration) error {
	b := Board{}
	for i := range 2 {
		if i > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(every):
			}
		}
		engines, err := read(ctx)
		if err != nil {
			return err
		}
		b.Take(engines, nil, time.Now())
	}
	for _, l := range lines(&b) {
		if _, err := fmt.Fprintln(out, l); err != nil {
			return err
		}
	}
	return nil
}

// Run shows the engines until the user or ctx ends it. in and out are the terminal. env is as of os.Environ.
func Run(ctx context.Context, in, out *os.File, env []string, read Reader, every time.Duration) error {
	if !term.IsTerminal(int(in.Fd())) || !term.IsTerminal(int(out.Fd())) {
		return errors.New("no terminal: gorail top --once writes one reading as text")
	}
	m := &model{ctx: ctx, read: read, every: every, width: 80, height: 24}
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithEnvironment(env)).Run()
	if errors.Is(err, tea.ErrInterrupted) || ctx.Err() != nil {
		return nil
	}
	return err
}

// model is the program on the terminal.
type model struct {
	ctx   context.Context
	read  Reader
	every time.Duration
	board Board

	width, height int
	offset        int // lines that the list is scrolled by
}

// reading is a message: what the engines answered.
type reading struct {
	engines []live.Engine
	err     error
	begin   time.Time
}

// again is a message: it is time to ask.
type again struct{}

func (m *model) ask() tea.Msg {
	ctx, cancel := context.WithTimeout(m.ctx, max(m.every, leastAnswer))
	defer cancel()
	r := reading{begin: time.Now()}
	r.engines, r.err = m.read(ctx)
	return r
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return m.ask }

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case reading:
		now := time.Now()
		m.board.Take(msg.engines, msg.err, now)
		return m, tea.Tick(max(0, m.every-now.Sub(msg.begin)), func(time.Time) tea.Msg { return again{} })
	case again:
		return m, m.ask
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "ctrl+c":
			return m, tea.Quit
		case "up", "k":
			m.offset--
		case "down", "j":
			m.offset++
		case "pgup":
			m.offset -= m.height / 2
		case "pgdown", "space":
			m.offset += m.height / 2
		}
	}
	return m, nil
}

// View implements tea.Model.
func (m *model) View() tea.View {
	v := tea.NewView(m.paint())
	v.AltScreen = true
	return v
}

// paint is the whole screen: a part of the lines, and what the keys do.
func (m *model) paint() string {
	list := lines(&m.board)
	space := max(0, m.height-1)
	m.offset = max(0, min(m.offset, len(list)-space))
	var out []string
	for i := range space {
		painted := ""
		if at := m.offset + i; at < len(list) {
			painted = list[at].paint(m.width)
		}
		out = append(out, painted)
	}
	foot := text(dim, "q quit  up, down scroll: %d lines above, %d below", m.offset, max(0, len(list)-space-m.offset))
	return strings.Join(append(out, foot.paint(m.width)), "\n")
}
