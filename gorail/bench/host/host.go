// Package host describes the machine of a benchmark in words.
package host

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine describes this machine: usable cores, their model, kernel, distribution.
func Machine() string {
	model := runtime.GOARCH
	scan("/proc/cpuinfo", ":", func(key, val string) {
		if key == "model name" {
			model = val
		}
	})
	system := runtime.GOOS
	scan("/etc/os-release", "=", func(key, val string) {
		if key == "PRETTY_NAME" {
			system = strings.Trim(val, `"`)
		}
	})
	var u unix.Utsname
	_ = unix.Uname(&u)
	return fmt.Sprintf("%d cores (%s), Linux %s, %s", runtime.NumCPU(), model, unix.ByteSliceToString(u.Release[:]), system)
}

func scan(path, sep string, f func(key, val string)) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	for sc := bufio.NewScanner(file); sc.Scan(); {
		if key, val, ok := strings.Cut(sc.Text(), sep); ok {
			f(strings.TrimSpace(key), strings.TrimSpace(val))
		}
	}
}
