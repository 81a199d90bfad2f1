package option

import (
	"errors"
	"log/slog"
	"math/bits"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Errors of a value. Parse adds the allowed values.
var (
	errRange    = errors.New("out of range")
	errNumber   = errors.New("not a whole number")
	errDuration = errors.New("not a duration")
	errSize     = errors.New("not a size")
	errWord     = errors.New("unknown word")
	errList     = errors.New("a list element is empty or has an invalid character")
	errAuto     = errors.New("auto stands alone")
	errGlob     = errors.New("a glob is malformed")
	errPorts    = errors.New("not a port or a range of ports")
	errKey      = errors.New("not a service id and a VNI from 1 to 65535")
	errTwice    = errors.New("a device has two keys")
	errLibrary  = errors.New("not a regular file")
)

// env returns the environment variable of an option.
func env(name string) string { return "GORAIL_" + strings.ToUpper(name) }

// ParseDuration reads Go's form ("500ms"), or a whole number of milliseconds.
func ParseDuration(v string) (time.Duration, error) {
	if n, err := strconv.ParseInt(v, 10, 64); err == nil {
		d := time.Duration(n) * time.Millisecond
		if d/time.Millisecond != time.Duration(n) {
			return 0, errRange
		}
		return d, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		return 0, errDuration
	}
	return d, nil
}

var units = []struct {
	suffix string
	shift  uint
}{{"GiB", 30}, {"MiB", 20}, {"KiB", 10}}

// ParseSize reads a whole number of bytes, or of KiB, MiB or GiB.
func ParseSize(v string) (uint64, error) {
	shift := uint(0)
	for _, u := range units {
		if n := len(v) - len(u.suffix); n > 0 && strings.EqualFold(v[n:], u.suffix) {
			v, shift = strings.TrimSpace(v[:n]), u.shift
			break
		}
	}
	n, err := strconv.ParseUint(v, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && uint(bits.LeadingZeros64(n)) < shift:
		return 0, errRange
	case err != nil:
		return 0, errSize
	}
	return n << shift, nil
}

// FormatSize formats a size for ParseSize, with the largest unit that divides it.
func FormatSize(n uint64) string {
	for _, u := range units {
		if n != 0 && n&(1<<u.shift-1) == 0 {
			return strconv.FormatUint(n>>u.shift, 10) + u.suffix
		}
	}
	return strconv.FormatUint(n, 10)
}

// shortDuration removes the zeros of "1h0m0s".
func shortDuration(d time.Duration) string {
	s := strings.ReplaceAll(d.String(), "µ", "u")
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func parseInt(v string) (int, error) {
	n, err := strconv.Atoi(v)
	if errors.Is(err, strconv.ErrRange) {
		return 0, errRange
	}
	if err != nil {
		return 0, errNumber
	}
	return n, nil
}

// split cuts a comma list and drops spaces around the elements. An empty value has no elements.
func split(v string) []string {
	if strings.TrimSpace(v) == "" {
		return nil
	}
	list := strings.Split(v, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list
}

// setProviders accepts old names, too. Renamed reports them.
func setProviders(field *[]string, v string) error {
	list := split(strings.ToLower(v))
	if len(list) == 0 {
		return errList
	}
	for i, name := range list {
		if now := oldProviders[name]; now != "" {
			list[i] = now
		}
		bare := strings.TrimPrefix(name, "libfabric:")
		if bare == "" || strings.Trim(bare, "abcdefghijklmnopqrstuvwxyz0123456789_;-") != "" {
			return errList
		}
		if name == "auto" && len(list) > 1 {
			return errAuto
		}
	}
	*field = list
	return nil
}

func setGlobs(field *[]string, v string) error {
	list := split(v)
	for _, glob := range list {
		glob = strings.TrimPrefix(glob, "!")
		if glob == "" {
			return errList
		}
		if _, err := path.Match(glob, ""); err != nil {
			return errGlob
		}
	}
	*field = list
	return nil
}

// setNames reads patterns of certificates' names.
func setNames(field *[]string, v string) error {
	list := split(v)
	for _, pattern := range list {
		if pattern == "" || pattern[0] == '!' {
			return errList
		}
		if _, err := path.Match(pattern, ""); err != nil || strings.Contains(pattern, "**") { // no pattern crosses a '/'
			return errGlob
		}
	}
	*field = list
	return nil
}

func setPorts(field *PortRange, v string) error {
	first, last, isRange := strings.Cut(v, "-")
	if !isRange {
		last = first
	}
	a, err := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	if err != nil {
		return errPorts
	}
	b, err := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	if err != nil || b < a || isRange && a == 0 {
		return errPorts
	}
	*field = PortRange{First: uint16(a), Last: uint16(b)}
	return nil
}

// setLimit accepts a size, or 0 for no limit.
func setLimit(field *uint64, v string, least, most uint64) error {
	n, err := ParseSize(v)
	if err == nil && n != 0 && (n < least || n > most) {
		err = errRange
	}
	*field = n
	return err
}

func setTrafficClass(field *string, v string) error {
	v = strings.ToLower(strings.TrimSpace(v))
	if v != "" && !slices.Contains([]string{"best_effort", "low_latency", "dedicated_access", "bulk_data"}, v) {
		return errWord
	}
	*field = v
	return nil
}

// setSwitch accepts on or off.
func setSwitch(field *bool, v string) error {
	v = strings.ToLower(strings.TrimSpace(v))
	if v != "on" && v != "off" {
		return errWord
	}
	*field = v == "on"
	return nil
}

func setRights(field *Rights, v string) error {
	r, err := ParseRights(v)
	if err != nil {
		return errWord
	}
	*field = r
	return nil
}

// setLibrary sets an argument of dlopen. That waits for ever for a pipe without a writer.
func setLibrary(field *string, v string) error {
	if info, err := os.Stat(v); strings.Contains(v, "/") && err == nil && !info.Mode().IsRegular() {
		return errLibrary
	}
	*field = v
	return nil
}

func setWord(field *string, v string, words ...string) error {
	v = strings.ToLower(strings.TrimSpace(v))
	if !slices.Contains(words, v) {
		return errWord
	}
	*field = v
	return nil
}

func setCongestion(field *string, v string) error {
	const most = 15 // TCP_CA_NAME_MAX: the kernel would cut a longer name
	*field = strings.TrimSpace(v)
	if len(*field) > most || strings.ContainsAny(*field, " ,;/") {
		return errWord
	}
	return nil
}

func setCXIKeys(field *[]CXIKey, v string) error {
	var keys []CXIKey
	for _, word := range split(v) {
		device, key, named := strings.Cut(word, "=")
		if !named {
			device, key = "", word
		}
		service, vni, both := strings.Cut(key, ":")
		id, err := strconv.ParseUint(service, 10, 32)
		net, err2 := strconv.ParseUint(vni, 10, 16)
		if !both || err != nil || err2 != nil || net == 0 || named && device == "" {
			return errKey
		}
		if slices.ContainsFunc(keys, func(k CXIKey) bool { return k.Device == device }) {
			return errTwice
		}
		keys = append(keys, CXIKey{device, uint32(id), uint16(net)})
	}
	*field = keys
	return nil
}

func setLevel(field *slog.Level, v string) error {
	level, ok := levels[strings.ToLower(strings.TrimSpace(v))]
	if !ok {
		return errWord
	}
	*field = level
	return nil
}
