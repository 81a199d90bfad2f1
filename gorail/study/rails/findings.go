package rails

import (
	"fmt"
	"math"

	"gorail/gorail/measure"
	"gorail/gorail/result"
)

// findings are the answer in words.
func (s *study) findings(run *measure.Run, memory string) (out []string) {
	for _, set := range s.sets {
		if len(set.rails) != 1 {
			continue
		}
		w, atW := top(run, set.title, "WRITE")
		r, atR := top(run, set.title, "READ")
		if w == 0 && r == 0 {
			continue
		}
		text := fmt.Sprintf("%s (%s): WRITE %s Gbit/s (%s), READ %s Gbit/s (%s)", set.title, memory, num(8*w), atW.Shape(), num(8*r), atR.Shape())
		if !math.IsNaN(set.gbps) {
			text += fmt.Sprintf(", of %s that the link should give: %s", num(8*set.gbps), s.verdict(set, math.Max(w, r)))
		} else {
			text += "; " + set.rails[0].why
		}
		out = append(out, text+".")
		if w > 0 && r > 0 && r < held*w {
			out = append(out, fmt.Sprintf("%s: READ gives %s of WRITE: more transfers in flight may help.", set.title, percent(r/w)))
		}
	}
	return append(out, s.allFindings(run, memory)...)
}

// enough is the share of an expectation that counts as reached.
const enough = 0.9

// held is the share of WRITE below which READ counts as slower.
const held = 0.8

// top is the rate of a subject at its largest size, where no burst and no delay counts, and that point.
func top(run *measure.Run, subject, op string) (rate float64, at measure.Point) {
	for _, p := range points(run, subject, op) {
		if p.Block >= at.Block {
			rate, at = gbps(run, subject, p), p
		}
	}
	return rate, at
}

// verdict says how a rate compares with what a set should give, and what limits it.
func (s *study) verdict(set set, got float64) string {
	share := got / set.gbps
	switch {
	case share >= enough:
		return fmt.Sprintf("%s, the link is the limit (%s)", percent(share), set.rails[0].why)
	case s.busy:
		return fmt.Sprintf("%s; other programs keep the cores busy, so this is no limit of the link", percent(share))
	case set.rails[0].fabric == "tcp":
		return fmt.Sprintf("%s; the kernel's TCP or the processors are the limit, look at the CPU seconds and at the checks", percent(share))
	}
	return fmt.Sprintf("%s; the link is not the limit: look at the checks of PCIe, IOMMU, ACS and congestion above", percent(share))
}

// allFindings compare all rails with the best one, and GORAIL with UCX.
func (s *study) allFindings(run *measure.Run, memory string) (out []string) {
	for _, op := range ops {
		all, at := top(run, "all", op)
		if all == 0 {
			continue
		}
		one, sum, name := s.best(run, at)
		text := fmt.Sprintf("All %d rails together (%s): %s of %s moves %s GB/s", len(s.links), memory, op, at.Shape(), num(all))
		if one > 0 {
			text += fmt.Sprintf(", %s x of the best one alone (%s)", num(all/one), name)
		}
		if !math.IsNaN(sum) { // every rail was measured alone
			text += s.whyNot(all, sum)
		}
		out = append(out, text+".")
	}
	for _, op := range ops {
		for _, title := range []string{"all", s.sets[0].title} {
			g, at := top(run, title, op)
			u := gbps(run, "UCX "+title, at)
			if g == 0 || math.IsNaN(u) || title != "all" && len(s.sets) > 1 {
				continue
			}
			ratio := measure.Ratio(run.Cell(title, at), run.Cell("UCX "+title, at), measure.Sample.PerSecond)
			out = append(out, fmt.Sprintf("UCX over the same rails (%s): %s GB/s by %s of %s; GORAIL moves %s it (%s .. %s in single repeats).", title, num(u), op, at.Shape(), result.Ratio(ratio.Median, 1), num(ratio.Low), num(ratio.High)))
		}
	}
	return out
}

// whyNot says why all rails give less than their sum.
func (s *study) whyNot(all, sum float64) string {
	share := all / sum
	switch {
	case share > 1.1:
		return fmt.Sprintf(", more than their sum (%s): a rail was disturbed while it was measured alone", percent(share))
	case share >= 0.95:
		return fmt.Sprintf(", %s of their sum", percent(share))
	case s.busy:
		return fmt.Sprintf(", %s of their sum: other programs keep the cores busy, and a rail waits for its thread; end them and run the study again", percent(share))
	case !s.Peer.Given():
		return fmt.Sprintf(", %s of their sum: both processes are on this host, and share its memory and cores", percent(share))
	default:
		return fmt.Sprintf(", %s of their sum: the links have room, so look for busy cores, and for one rail that is slower than it was alone", percent(share))
	}
}
