package engine

import (
	"bytes"
	"strings"
)

// traces are names that a binary with failpoints has, one of C and one of Go. They are made here, so that a test's binary has none by itself.
func traces() (names []string) {
	for _, words := range [][]string{{"core", "notif", "detached"}, {"shm", "memfd", "size"}} {
		names = append(names, strings.Join(words, "_"))
	}
	return names
}

func foundIn(binary []byte) (found []string) {
	for _, name := range traces() {
		if bytes.Contains(binary, []byte(name)) {
			found = append(found, name)
		}
	}
	return found
}
