package lab

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Spec says what a lab's rails are like.
type Spec struct {
	Rails int
	Rates []uint64      // bits a second; the last one is that of all further rails
	Delay time.Duration // of each direction
}

// Most rails, and the least and the largest rate.
const (
	mostRails = 8
	leastRate = 1e6
	mostRate  = 400e9
)

// Parse reads rails=2,rate=1gbit,delay=1ms. rate=1gbit/500mbit gives the rails different rates.
func Parse(text string) (s Spec, err error) {
	s = Spec{Rails: 2, Rates: []uint64{1e9}}
	for word := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "rails":
			if s.Rails, err = strconv.Atoi(value); err != nil || s.Rails < 1 || s.Rails > mostRails {
				return s, fmt.Errorf("lab: rails=%s: want a number from 1 to %d", value, mostRails)
			}
		case "rate":
			s.Rates = nil
			for one := range strings.SplitSeq(value, "/") {
				r, err := parseRate(one)
				if err != nil {
					return s, err
				}
				s.Rates = append(s.Rates, r)
			}
		case "delay":
			if s.Delay, err = time.ParseDuration(value); err != nil || s.Delay < 0 || s.Delay > time.Second {
				return s, fmt.Errorf("lab: delay=%s: want a time up to 1s, such as 500us", value)
			}
		default:
			return s, fmt.Errorf("lab: %q: want rails=N, rate=R or delay=T, such as rails=2,rate=1gbit,delay=500us", word)
		}
	}
	if len(s.Rates) > s.Rails {
		return s, fmt.Errorf("lab: %d rates for %d rails", len(s.Rates), s.Rails)
	}
	return s, nil
}

// parseRate reads 1gbit, 500mbit: bits a second, as tc does.
func parseRate(text string) (uint64, error) {
	for unit, scale := range map[string]float64{"gbit": 1e9, "mbit": 1e6} {
		number, ok := strings.CutSuffix(strings.ToLower(text), unit)
		if v, err := strconv.ParseFloat(number, 64); ok && err == nil && v*scale >= leastRate && v*scale <= mostRate {
			return uint64(v * scale), nil
		}
	}
	return 0, fmt.Errorf("lab: rate=%s: want 1mbit to 400gbit", text)
}

// Rate returns the i-th rail's bits a second.
func (s Spec) Rate(i int) uint64 { return s.Rates[min(i, len(s.Rates)-1)] }

// payload is the share of TCP's bytes in Ethernet frames of 1,500 bytes, as the shaper counts them.
const payload = 1448. / 1514

// GBps returns what the i-th rail can carry, in 10^9 bytes a second.
func (s Spec) GBps(i int) float64 { return float64(s.Rate(i)) / 8e9 * payload }

// String describes the rails: "2 rails of 1 Gbit/s".
func (s Spec) String() string {
	var rates []string
	for _, r := range s.Rates {
		rates = append(rates, strconv.FormatFloat(float64(r)/1e9, 'g', 4, 64))
	}
	text := fmt.Sprintf("%d shaped rails of %s Gbit/s", s.Rails, strings.Join(rates, " and "))
	if s.Delay > 0 {
		text += fmt.Sprintf(" with %v each way", s.Delay)
	}
	return text
}
