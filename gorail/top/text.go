package top

import (
	"fmt"
	"math"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"gorail/gorail/live"
)

// look is the meaning of a piece of text. Colours follow it.
type look int

const (
	plain look = iota
	title
	dim
	good
	warning
	bad
)

var styles = [...]lipgloss.Style{
	plain:   lipgloss.NewStyle(),
	title:   lipgloss.NewStyle().Bold(true),
	dim:     lipgloss.NewStyle().Faint(true),
	good:    lipgloss.NewStyle().Foreground(lipgloss.Green),
	warning: lipgloss.NewStyle().Foreground(lipgloss.Yellow),
	bad:     lipgloss.NewStyle().Foreground(lipgloss.Red).Bold(true),
}

type span struct {
	look look
	text string
}

// line is a line of the screen.
type line []span

func text(l look, format string, args ...any) line {
	return line{{l, live.Printable(fmt.Sprintf(format, args...))}}
}

// column adds text that is cut or filled to a width.
func (l line) column(look look, width int, s string) line {
	s = ansi.Truncate(live.Printable(s), width-1, "…")
	return append(l, span{look, s + strings.Repeat(" ", max(0, width-ansi.StringWidth(s)))})
}

func (l line) and(look look, s string) line { return append(l, span{look, live.Printable(s)}) }

// String is the line without colours.
func (l line) String() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.text)
	}
	return strings.TrimRight(b.String(), " ")
}

// paint is the line with colours, cut to a width.
func (l line) paint(width int) string {
	var b strings.Builder
	for _, s := range l {
		if s.look == plain {
			b.WriteString(s.text)
		} else {
			b.WriteString(styles[s.look].Render(s.text))
		}
	}
	return ansi.Truncate(b.String(), width, "…")
}

// size formats bytes in at most seven characters.
func size(v float64) string { return scaled(v, 1024, "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB") }

// rate formats bytes a second, without "/s", in the units of networks and of gorail bench: powers of ten.
func rate(v float64) string { return scaled(v, 1000, "B", "kB", "MB", "GB", "TB", "PB", "EB") }

func scaled(v, base float64, units ...string) string {
	i := 0
	for ; v >= base-0.5 && i < len(units)-1; i++ {
		v /= base
	}
	if i > 0 && v < 9.95 {
		return fmt.Sprintf("%.1f%s", v, units[i])
	}
	return fmt.Sprintf("%.0f%s", v, units[i])
}

// short formats a time in at most six characters.
func short(d time.Duration) string {
	switch {
	case d <= 0:
		return "-"
	case d < time.Millisecond:
		return fmt.Sprintf("%dµs", d.Microseconds())
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1fms", d.Seconds()*1e3)
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < 10*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 100*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// latency formats a bound of a histogram, whose bounds are powers of two, with two significant digits.
func latency(d time.Duration) string {
	v, unit := float64(d.Microseconds()), "µs"
	for _, next := range []string{"ms", "s"} {
		if v >= 1000 {
			v, unit = v/1000, next
		}
	}
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f %s", math.Round(v/10)*10, unit)
	case v >= 10 || unit == "µs":
		return fmt.Sprintf("%.0f %s", v, unit)
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
