package structure

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

// copies matches calls that load or store memory by a pointer, in C. ourMark matches their mark: both sides are memory that the plugin itself
// keeps mapped.
var (
	copies  = regexp.MustCompile(`\b(memcpy|memmove|mempcpy|bcopy|__builtin_mem(?:cpy|move)|tcp_crypto_update)\(`)
	ourMark = regexp.MustCompile(`/\* ours(: [^*]*)? \*/`)
)

// guard is the file whose copies are not looked at.
const guard = "backend/provider/internal/clib/guard.c"

// Unguarded returns the lines of C below backend that copy memory without the mark that it is ours. The application's memory may be gone
// at any time: backend/include/gr_guard.h copies it.
func Unguarded(root fs.FS) (out []string, err error) {
	err = fs.WalkDir(root, "backend", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !product(p) || !strings.HasSuffix(p, ".c") && !strings.HasSuffix(p, ".h") || p == guard {
			return nil
		}
		text, err := fs.ReadFile(root, p)
		for i, line := range strings.Split(string(text), "\n") {
			declared := strings.HasPrefix(line, "int ") || strings.HasPrefix(strings.TrimSpace(line), "*") || strings.HasPrefix(strings.TrimSpace(line), "/*")
			if copies.MatchString(line) && !ourMark.MatchString(line) && !declared {
				out = append(out, fmt.Sprintf("%s:%d: %s", p, i+1, strings.TrimSpace(line)))
			}
		}
		return err
	})
	return out, err
}
