package page

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"gorail/gorail/result"
)

// Width and height of a plot. At this width its text is readable on a phone, too.
const (
	width  = 11.5 * vg.Centimeter
	height = 8 * vg.Centimeter
)

// lines are the colours of curves, those of the page's style sheet: --c0, --c1, ...
var lines = []color.RGBA{{0x1b, 0x6c, 0xa8, 0xff}, {0xd1, 0x49, 0x2c, 0xff}, {0x57, 0x79, 0x2c, 0xff}, {0x7d, 0x5b, 0xa6, 0xff},
	{0x55, 0x55, 0x56, 0xff}, {0xa8, 0x74, 0x0f, 0xff}, {0x14, 0x80, 0x7c, 0xff}, {0xb5, 0x3c, 0x83, 0xff}}

var grid = color.RGBA{0xdd, 0xdd, 0xde, 0xff}

// drawable are the curves with two points at least that the axes can show.
func drawable(p result.Plot) (out []result.Line) {
	for _, l := range p.Lines {
		var kept [][2]float64
		for _, v := range l.XY {
			if !(p.LogX && v[0] <= 0 || p.LogY && v[1] <= 0) {
				kept = append(kept, v)
			}
		}
		if l.XY = kept; len(kept) >= 2 {
			out = append(out, l)
		}
	}
	return out
}

// SVG draws a plot for the page; "" if there is nothing to draw.
func SVG(p result.Plot) (template.HTML, error) {
	curves := drawable(p)
	if len(curves) == 0 {
		return "", nil
	}
	g := plot.New()
	g.X.Label.Text, g.Y.Label.Text = p.X, p.Y
	if p.LogX {
		g.X.Scale = plot.LogScale{}
		g.X.Tick.Marker = decades{p.Bytes}
	}
	if p.LogY {
		g.Y.Scale = plot.LogScale{}
		g.Y.Tick.Marker = decades{}
	}
	low, high := math.Inf(1), math.Inf(-1)
	mesh := plotter.NewGrid()
	mesh.Horizontal.Color, mesh.Vertical.Color = grid, grid
	g.Add(mesh)
	g.BackgroundColor = nil // the figure's
	for _, a := range []*plot.Axis{&g.X, &g.Y} {
		a.Label.TextStyle.Font.Variant, a.Tick.Label.Font.Variant = "Sans", "Sans"
		a.Label.TextStyle.Font.Size, a.Tick.Label.Font.Size = vg.Points(10), vg.Points(9)
	}
	for i, l := range curves {
		xy := make(plotter.XYs, len(l.XY))
		for k, v := range l.XY {
			xy[k] = plotter.XY{X: v[0], Y: v[1]}
			low, high = math.Min(low, v[1]), math.Max(high, v[1])
		}
		line, dots, err := plotter.NewLinePoints(xy)
		if err != nil {
			return "", fmt.Errorf("plot %s: %w", p.Title, err)
		}
		c := lines[i%len(lines)]
		line.Color, dots.Color, dots.Shape, dots.Radius = c, c, draw.CircleGlyph{}, vg.Points(2)
		line.Width = vg.Points(1.5)
		if l.Dashed {
			line.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
			g.Add(line)
			continue
		}
		g.Add(line, dots)
	}
	room(g, p.LogY, low, high)
	canvas := vgsvg.New(width, height)
	g.Draw(draw.Crop(draw.New(canvas), 0, -vg.Points(14), 0, -vg.Points(6))) // the last ticks' labels need room
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return "", err
	}
	return inline(b.String(), p.Title), nil
}

// room sets the range of the vertical axis: from zero unless it is logarithmic.
func room(g *plot.Plot, log bool, low, high float64) {
	if log {
		g.Y.Min, g.Y.Max = low/1.3, high*1.3
		return
	}
	g.Y.Min, g.Y.Max = math.Min(0, low), high*1.05
	if g.Y.Max <= g.Y.Min {
		g.Y.Max = g.Y.Min + 1
	}
}

// Entry is a curve in a legend.
type Entry struct {
	Name   string
	Color  int // of the style sheet
	Dashed bool
}

// legend names the curves of a plot.
func legend(p result.Plot) (out []Entry) {
	for i, l := range drawable(p) {
		out = append(out, Entry{l.Name, i % len(lines), l.Dashed})
	}
	return out
}

// inline is the SVG without what comes before it in a file. The style sheet sets its width.
func inline(svg, title string) template.HTML {
	_, element, _ := strings.Cut(svg, "<svg")
	return template.HTML(`<svg role="img" aria-label="` + template.HTMLEscapeString(title) + `"` + element) // of numbers and labels that the library has escaped
}

// decades marks powers of ten, or powers of two of sizes, at most seven.
type decades struct{ bytes bool }

// Ticks implements plot.Ticker.
func (d decades) Ticks(low, high float64) (out []plot.Tick) {
	base := 10.0
	if d.bytes {
		base = 2
	}
	first, last := math.Ceil(math.Log(low)/math.Log(base)-1e-9), math.Floor(math.Log(high)/math.Log(base)+1e-9)
	if !d.bytes && last-first < 2 { // less than two decades: 1, 2, 5
		for e := math.Floor(math.Log10(low)); e <= last+1; e++ {
			for _, m := range []float64{1, 2, 5} {
				if v := m * math.Pow(10, e); v >= low && v <= high {
					out = append(out, plot.Tick{Value: v, Label: compact(v)})
				}
			}
		}
		return out
	}
	step := math.Max(1, math.Ceil((last-first)/7))
	for e := first; e <= last; e += step {
		v := math.Pow(base, e)
		label := compact(v)
		if d.bytes {
			label = unit(v, 1024, "G", "M", "K")
		}
		out = append(out, plot.Tick{Value: v, Label: label})
	}
	return out
}

// compact formats a number of an axis: 20k.
func compact(v float64) string { return unit(v, 1000, "G", "M", "k") }

// unit formats a number with the largest of units, which are powers of base.
func unit(v, base float64, units ...string) string {
	for i, u := range units {
		if scale := math.Pow(base, float64(len(units)-i)); v >= scale*(1-1e-9) {
			return fmt.Sprintf("%.4g%s", v/scale, u)
		}
	}
	return fmt.Sprintf("%.4g", v)
}
