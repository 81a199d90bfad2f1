package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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

// onceWidth is the width that the text of Once is made for. Longer lines are not cut.
const onceWidth = 132

// Reader asks the engines.
type Reader func(ctx context.Context) ([]live.Engine, error)

// Once writes the engines as text, without colours. Its rates are those of one interval. It is an error if none can be read.
func Once(ctx context.Context, out io.Writer, read Reader, every time.Duration) error {
	b := Board{Whole: true}
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
	return write(out, &b)
}

// write writes everything that is known.
func write(out io.Writer, b *Board) error {
	rows := b.Sorted(ByAgent)
	list := append([]line{summary(b)}, engines(rows, onceWidth)...)
	list = append(append(list, nil, text(title, "TRANSFERS IN FLIGHT")), transferLines(rows, onceWidth)...)
	list = append(list, nil, text(title, "LAST WARNINGS"))
	for _, e := range warnings(rows) {
		list = append(list, e.line(onceWidth))
	}
	for _, l := range list {
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
	m := &model{ctx: ctx, read: read, every: every, screen: screen{width: 80, height: 24, order: ByAgent}}
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithEnvironment(env)).Run()
	if errors.Is(err, tea.ErrInterrupted) || ctx.Err() != nil {
		return nil
	}
	return err
}

// model is the program on the terminal.
type model struct {
	ctx    context.Context
	read   Reader
	every  time.Duration
	board  Board
	screen screen
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
		m.screen.width, m.screen.height = msg.Width, msg.Height
	case reading:
		now := time.Now()
		m.board.Take(msg.engines, msg.err, now)
		return m, tea.Tick(max(0, m.every-now.Sub(msg.begin)), func(time.Time) tea.Msg { return again{} })
	case again:
		return m, m.ask
	case tea.KeyPressMsg:
		if m.screen.key(msg.String()) {
			return m, tea.Quit
		}
	}
	return m, nil
}

// key handles a key, and reports that the user wants to quit.
func (s *screen) key(name string) (quit bool) {
	switch name {
	case "q", "ctrl+c":
		return true
	case "s":
		s.order = s.order.next()
	case "t":
		s.transfers, s.help, s.offset = !s.transfers, false, 0
	case "?", "h":
		s.help, s.offset = !s.help, 0
	case "esc":
		s.help, s.transfers, s.offset = false, false, 0
	case "up", "k":
		s.offset--
	case "down", "j":
		s.offset++
	case "pgup":
		s.offset -= s.height / 2
	case "pgdown", "space":
		s.offset += s.height / 2
	case "home", "g":
		s.offset = 0
	}
	return false
}

// View implements tea.Model.
func (m *model) View() tea.View {
	v := tea.NewView(m.screen.paint(&m.board))
	v.AltScreen = true
	return v
}
