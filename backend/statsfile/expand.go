package statsfile

import (
	"os"
	"strconv"
	"strings"
)

// Expand replaces %p by the process id, %h by the host's name, %a by the agent's name, and %% by %. A name's characters other
// than letters, digits, '.', '-' and '_' become '_', so that it stays one part of a path. Other words stay as they are.
func Expand(path, agent string) string {
	host, _ := os.Hostname()
	return strings.NewReplacer("%%", "%", "%p", strconv.Itoa(os.Getpid()), "%h", part(host), "%a", part(agent)).Replace(path)
}

func part(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-', r == '_':
			return r
		}
		return '_'
	}, name)
}
