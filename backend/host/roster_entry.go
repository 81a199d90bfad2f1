package host

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"

	"golang.org/x/sys/unix"
)

// Entry is what an engine says of itself.
type Entry struct {
	Weights map[string]float64 `json:"weights"` // how much the engine uses each device
	Text    string             `json:"text"`    // for the log
}

// encode is the content of an entry's file: the checksum and the length of what follows, in a line, and the entry as JSON. What a longer entry has
// left behind it does not count.
func (e Entry) encode() ([]byte, error) {
	b, err := json.Marshal(e)
	b = append(fmt.Appendf(nil, "%08x %d\n", crc32.ChecksumIEEE(b), len(b)), b...)
	if err == nil && len(b) > rosterBytes {
		err = unix.E2BIG
	}
	return b, err
}

func parseEntry(b []byte) (e Entry, ok bool) {
	head, body, _ := bytes.Cut(b, []byte("\n"))
	var sum, n uint32
	_, err := fmt.Sscanf(string(head), "%x %d", &sum, &n)
	ok = err == nil && int(n) <= len(body) && crc32.ChecksumIEEE(body[:n]) == sum && json.Unmarshal(body[:n], &e) == nil
	maps.DeleteFunc(e.Weights, func(_ string, w float64) bool { return w < 0 })
	e.Text = e.Text[:min(len(e.Text), mostText)]
	return e, ok && len(e.Weights) <= mostWeights
}

// Bounds of an entry: an engine has 62 devices.
const (
	mostText    = 256
	mostWeights = 64
)
