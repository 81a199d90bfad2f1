package report

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"gorail/gorail/measure"
)

// File is a written plot.
type File struct{ Title, Path string }

// kind is one way to draw the points of a run.
type kind struct {
	name, title, x, y string
	in                func(measure.Point) bool
	at                func(measure.Point) float64
	of                func(measure.Cell, measure.Point) float64
	top, left         bool // a corner without curves, for the legend
}

var kinds = []kind{
	{"throughput", "Throughput over size", "bytes of a transfer", "GB/s",
		func(p measure.Point) bool { return p.Batch == 1 }, func(p measure.Point) float64 { return float64(p.Block) },
		func(c measure.Cell, _ measure.Point) float64 { return c.Median(measure.Sample.GBps) }, false, false},
	{"latency", "Latency (p50) over size", "bytes of a transfer", "us",
		func(p measure.Point) bool { return p.Batch == 1 }, func(p measure.Point) float64 { return float64(p.Block) },
		func(c measure.Cell, _ measure.Point) float64 { return c.Lat.Quantile(0.5) / 1e3 }, true, true},
	{"descriptors", "Cost of a descriptor over their number", "descriptors of a transfer", "ns each, until done",
		func(p measure.Point) bool { return p.Batch > 1 }, func(p measure.Point) float64 { return float64(p.Batch) },
		func(c measure.Cell, p measure.Point) float64 { return c.Lat.Quantile(0.5) / float64(p.Batch) }, true, false},
}

// Plots draws a run: for each op, with one thread and one transfer in flight, the kinds with three points or more.
func Plots(dir, name string, r *measure.Run) (out []File, err error) {
	for _, op := range []string{"WRITE", "READ"} {
		for _, k := range kinds {
			p, any, err := draws(k, op, r)
			if err != nil || !any {
				if err != nil {
					return nil, err
				}
				continue
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return nil, err
			}
			f := File{op + ": " + k.title, filepath.Join(dir, fmt.Sprintf("%s-%s-%s.svg", name, k.name, slug(op)))}
			if err := p.Save(18*vg.Centimeter, 10*vg.Centimeter, f.Path); err != nil {
				return nil, err
			}
			out = append(out, f)
		}
	}
	return out, nil
}

// palette is readable without colours, too: limits are dashed.
var palette = []color.RGBA{{0x1b, 0x6c, 0xa8, 0xff}, {0xd1, 0x49, 0x2c, 0xff}, {0x6a, 0x8d, 0x3a, 0xff}, {0x7d, 0x5b, 0xa6, 0xff},
	{0x55, 0x55, 0x55, 0xff}, {0xc0, 0x8a, 0x1e, 0xff}}

func draws(k kind, op string, r *measure.Run) (p *plot.Plot, any bool, err error) {
	p = plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = op+": "+k.title, k.x, k.y
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = sizes{}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = k.top, k.left
	p.Add(plotter.NewGrid())
	low, high := math.Inf(1), 0.0
	for i, s := range append(append([]string{}, r.Subjects...), r.Limits...) {
		var xy plotter.XYs
		for _, q := range r.Points() {
			if q.Op != op || q.Threads != 1 || q.Depth != 1 || q.IDs != "" || q.Busy || !k.in(q) {
				continue
			}
			if c := r.Cell(s, q); len(c.Samples) > 0 {
				if y := k.of(c, q); y > 0 && !math.IsInf(y, 0) {
					xy = append(xy, plotter.XY{X: k.at(q), Y: y})
				}
			}
		}
		if len(xy) < 3 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(xy)
		if err != nil {
			return nil, false, err
		}
		line.Color, dots.Color, dots.Shape = palette[i%len(palette)], palette[i%len(palette)], draw.CircleGlyph{}
		if contains(r.Limits, s) {
			line.Dashes = []vg.Length{vg.Points(4), vg.Points(float64(2 + i))}
		}
		for _, v := range xy {
			low, high = math.Min(low, v.Y), math.Max(high, v.Y)
		}
		p.Add(line, dots)
		p.Legend.Add(s, line, dots)
		any = true
	}
	p.Y.Min, p.Y.Max = low/1.5, high*1.5
	return p, any, nil
}

// sizes places ticks at powers of two, four or sixteen, so that their labels fit.
type sizes struct{}

func (sizes) Ticks(low, high float64) (out []plot.Tick) {
	step := 2.0
	for math.Log2(high/low)/step > 12 {
		step *= 2
	}
	for e := math.Ceil(math.Log2(low)); e <= math.Log2(high)+1e-9; e += step {
		out = append(out, plot.Tick{Value: math.Exp2(e), Label: Short(math.Exp2(e))})
	}
	return out
}

// Short formats 64, 4K, 16M.
func Short(v float64) string {
	for i, unit := range []string{"G", "M", "K"} {
		if scale := math.Exp2(float64(30 - 10*i)); v >= scale {
			return fmt.Sprintf("%.4g%s", v/scale, unit)
		}
	}
	return fmt.Sprintf("%.4g", v)
}
