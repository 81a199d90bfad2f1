package actor

import (
	"syscall"
	"time"

	"gorail/internal/subprocess"
	"gorail/test/history"
	"gorail/test/testenv"
)

// TakeBack names a life of an initiator whose region a target takes back.
type TakeBack struct {
	Engine history.Engine
	Hold   time.Duration // how long the memory is watched before it is registered again
}

// Start starts a process for an actor. attr: its namespaces; nil: ours. The caller ends it.
func Start(env testenv.Env, attr *syscall.SysProcAttr, setenv ...string) (*subprocess.Client, error) {
	return subprocess.Start(subprocess.Options{Attr: attr, Setenv: append([]string{envRun + "=1", "NIXL_PLUGIN_DIR=" + env.PluginDir, "UCX_HANDLE_ERRORS=none"}, setenv...)}, service)
}
