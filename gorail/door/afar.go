package door

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"gorail/backend/option"
)

// Backend refuses a backend of a caller on another host, unless it is one that moves memory between hosts. NIXL makes the name of a
// library from a backend's name, and plugins of storage open what their parameters say.
func Backend(name string) error {
	if may := append([]string{"GORAIL"}, option.Aliases()...); !slices.Contains(may, name) {
		return fmt.Errorf("backend %q is refused from another host: it may ask for %s", name, strings.Join(may, ", "))
	}
	return nil
}

// Params refuses parameters of a caller on another host that make this host open, write or load something of the caller's choice. The
// other plugins get parameters that GORAIL knows, and no other.
func Params(params map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(params)) {
		value := params[name]
		switch {
		case value == "":
		case option.NamesFile(name, value):
			return fmt.Errorf("parameter %s=%q is refused from another host: it names a file of this host; start --listen with GORAIL_%s in its environment",
				name, value, strings.ToUpper(name))
		case name == "engine_config": // UCX takes any of its settings here, files of logs among them
			return fmt.Errorf("parameter %s=%q is refused from another host: set UCX's variables in the environment of --listen", name, value)
		case !option.Known(name):
			return fmt.Errorf("parameter %s=%q is refused from another host: no option has this name, and another plugin may take it as a file; see docs/options.md", name, value)
		}
	}
	return nil
}

// Env refuses an environment of a caller on another host: LD_PRELOAD, NIXL_PLUGIN_DIR and others load code.
func Env(env map[string]string) error {
	if len(env) > 0 {
		return errors.New("environment variables have to be set where --listen runs, for all backends")
	}
	return nil
}

// Room refuses more memory than half of what this host has free. The size is in bytes.
func Room(size uint64) error {
	if most := available() / 2; size > most {
		return fmt.Errorf("%d MiB of memory are refused from another host: it may ask for half of what is free here, %d MiB now", size>>20, most>>20)
	}
	return nil
}

// available is the memory of this host that is free, in bytes.
func available() (n uint64) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if _, err := fmt.Sscanf(s.Text(), "MemAvailable: %d kB", &n); err == nil {
			return n << 10
		}
	}
	return 0
}

// Last lets the kernel end this process first if memory runs out: a caller on another host has chosen how much it takes.
func Last() { _ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0) } // without /proc it is one among others
