package host

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Use is processor time since the start of the machine, in seconds.
type Use struct {
	all, used float64 // of all cores
	ours      float64 // of this process and its children that have ended
}

// perSecond are the ticks of /proc/stat.
const perSecond = 100

// Look reads the processor time until now. It is zero where /proc/stat does not tell.
func Look() (u Use) {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 6 || fields[0] != "cpu" {
		return u
	}
	for i, f := range fields[1:min(len(fields), 9)] { // user nice system idle iowait irq softirq steal; guests count as users
		n, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return Use{}
		}
		if u.all += n / perSecond; i != 3 && i != 4 {
			u.used += n / perSecond
		}
	}
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var r unix.Rusage
		if unix.Getrusage(who, &r) == nil {
			u.ours += float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
		}
	}
	return u
}

// least is the processor time of all cores below which ticks say nothing about shares.
const least = 0.4

// Others is the share of the cores that other programs have used since then; 0 if that is not known.
func (u Use) Others() float64 { return u.until(Look()) }

func (u Use) until(now Use) float64 {
	if u.all == 0 || now.all-u.all < least {
		return 0
	}
	return max(0, (now.used-u.used-(now.ours-u.ours))/(now.all-u.all))
}

// Busy is the share of the cores that other programs use: it looks for a third of a second, while nothing is measured.
func Busy() float64 {
	u := Look()
	time.Sleep(time.Second / 3)
	return u.Others()
}

// Limit is the share of the cores above which other programs disturb a measurement.
const Limit = 0.1

// Disturbs says what a share above Limit means.
func Disturbs(share float64) string {
	return fmt.Sprintf("other programs use %.0f %% of the cores: the numbers are lower than they could be, and vary", 100*share)
}
