package life

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"gorail/gorail/measure"
	"gorail/nixlapi"
)

// WantArgs say how many notifications have been sent to this process's agents.
type WantArgs struct{ Notifs uint64 }

// Held is what the process holds, as it sees it.
type Held struct {
	Resident        uint64 // bytes without those of files
	C               uint64 // bytes that malloc has given out
	Tool            uint64 // bytes of this program's own Go heap
	FDs, Threads    int
	Maps            int // mappings
	Notifs          uint64
	NotifsMissingOf uint64 // 0: all have come
}

// Hold waits until the notifications that were sent have come, and says what the process holds.
func (s *Server) Hold(in WantArgs, out *Held) error {
	end := measure.Now() + patience
	for {
		out.Notifs = s.notifs
		for _, a := range s.agents {
			if err := a.drain(); err != nil {
				return err
			}
			out.Notifs += a.notifs
		}
		if out.Notifs >= in.Notifs || measure.Now() > end {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if out.Notifs != in.Notifs {
		out.NotifsMissingOf = in.Notifs
	}
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	var err error
	out.Tool = m.HeapAlloc
	if out.C, err = nixlapi.Malloced(); err != nil {
		return err
	}
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	out.FDs, out.Maps = len(list)-1, bytes.Count(maps, []byte{'\n'})
	text, err := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		switch key, value, _ := strings.Cut(line, ":"); key {
		case "Threads":
			_, _ = fmt.Sscan(value, &out.Threads)
		case "RssAnon":
			_, _ = fmt.Sscan(value, &out.Resident)
			out.Resident <<= 10
		}
	}
	return err
}

// drain counts the notifications that have come.
func (a *agent) drain() error {
	list, err := a.Notifs()
	a.notifs += uint64(len(list))
	return err
}

// fill writes bytes that depend on a number in all words.
func fill(b []byte, number uint64) {
	v := number*0x9e3779b97f4a7c15 + 1
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, v)
		v += 0x9e3779b97f4a7c15
	}
}

// differs is the first byte that is not as it should be; -1: none.
func differs(b, want []byte) int {
	if bytes.Equal(b, want) {
		return -1
	}
	for i := range b {
		if b[i] != want[i] {
			return i
		}
	}
	return -1
}
