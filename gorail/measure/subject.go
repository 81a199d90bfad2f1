package measure

import (
	"fmt"
	"slices"
	"strings"
)

// Limits are copies that no backend can beat: one thread that copies within a process, one system call that copies
// between processes, and a plain TCP connection whose ends spin.
var Limits = []string{"memcpy", "process_vm", TCP}

// TCP is the name of the last one.
const TCP = "tcp"

// Subject is one participant of a run: a backend with its settings, or a limit.
type Subject struct {
	Title   string // as the user wrote it: UCX+UCX_TLS=tcp
	Backend string // "": a limit named Title
	Here    bool   // both processes run here, although the run has another place for targets
	Memory  string // one of Memories; "": the run's
	Params  map[string]string
	Env     map[string]string
}

// ParseSubjects parses a list of backends. +KEY=VALUE sets an environment variable (a key in capitals) or a parameter
// of the backend: "GORAIL,UCX+UCX_TLS=tcp,self,UCX+num_workers=2". After a plus a comma belongs to the value unless a
// capital follows. @here after the name sets Here, and the name of a kind of memory sets Memory: GORAIL@here@memfd.
func ParseSubjects(text string) (out []Subject, err error) {
	var words []string
	for word := range strings.SplitSeq(text, ",") {
		if n := len(words); n > 0 && strings.Contains(words[n-1], "+") && (word == "" || word[0] < 'A' || word[0] > 'Z') {
			words[n-1] += "," + word
		} else {
			words = append(words, word)
		}
	}
	for _, word := range words {
		parts := strings.Split(word, "+")
		s := Subject{Title: word, Params: map[string]string{}, Env: map[string]string{}}
		if err := s.setName(parts[0]); err != nil {
			return nil, fmt.Errorf("%q: %w", word, err)
		}
		if s.Backend == "" || strings.Trim(s.Backend, letters+"_0123456789") != "" {
			return nil, fmt.Errorf("%q: not a backend name; write GORAIL,UCX or UCX+UCX_TLS=tcp", word)
		}
		for _, set := range parts[1:] {
			key, value, ok := strings.Cut(set, "=")
			if !ok || key == "" {
				return nil, fmt.Errorf("%q: %q is not KEY=VALUE", word, set)
			}
			if key == strings.ToUpper(key) {
				s.Env[key] = value
			} else {
				s.Params[key] = value
			}
		}
		if slices.ContainsFunc(out, func(o Subject) bool { return o.Title == s.Title }) {
			return nil, fmt.Errorf("%q is named twice", word)
		}
		out = append(out, s)
	}
	return out, nil
}

// setName takes the words before the first plus: a name, then words that begin with @.
func (s *Subject) setName(text string) error {
	words := strings.Split(text, "@")
	s.Backend = words[0]
	for _, w := range words[1:] {
		switch {
		case w == "here":
			s.Here = true
		case slices.Contains(Memories, w):
			s.Memory = w
		default:
			return fmt.Errorf("after @ comes here, %s; not %q", strings.Join(Memories, ", "), w)
		}
	}
	return nil
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// LimitSubjects returns subjects for names of Limits.
func LimitSubjects(names []string) (out []Subject, err error) {
	for _, n := range names {
		if !slices.Contains(Limits, n) {
			return nil, fmt.Errorf("no limit %q; there are %s", n, strings.Join(Limits, ", "))
		}
		out = append(out, Subject{Title: n})
	}
	return out, nil
}
