package doctor

import (
	"io/fs"

	"gorail/backend/gpu"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/gorail/plugindir"
)

// Unlimited is the value of a limit that is none.
const Unlimited = ^uint64(0)

// Host is what the checks look at.
type Host struct {
	Sys  fs.FS // /sys
	Proc fs.FS // /proc
	Dev  fs.FS // /dev: names alone

	Env    []string          // as in environ(7)
	Params map[string]string // of createBackend
	NCCL   string            // NCCL's topology file; "": there is none

	UID             int
	NoFile, MemLock uint64 // descriptors; bytes

	Software Software
	Try      Try
}

// Try has functions that try something. A nil function leaves out its check.
type Try struct {
	Open         func(dev string) error                          // opens a file below /dev
	Write        func(dir string) error                          // writes a file of 64 KiB there and removes it
	Libfabric    func(path string) (string, error)               // loads it as the plugin does; describes it
	Verbs        func(path string) (string, error)               // likewise
	CUDA         func(path string) error                         // likewise
	NVML         func(cuda string) ([]gpu.FabricInfo, error)     // what NVML says of NVLink between hosts
	Channels     func(dir string) (all, usable []string)         // IMEX channels
	FabricMemory func(cuda string, on []gpu.FabricInfo) error    // makes memory with a fabric handle on GPUs, exports it and frees it
	Reach        func(o option.Options) (way string, err error)  // a second process of ours reaches our memory by the rail sm; "": directly
	LocalDir     func(o option.Options) (path string, err error) // makes a socket in the folder of local_dir, as the rail sm does; "": no folder
	Socket       func(folder string) error                       // makes a socket of option stats_socket there, as an engine does; an error may be a *stats.FolderError
	Rails        func(o option.Options) (Rails, error)
	Engine       func(o option.Options) ([]string, error)       // creates and closes an engine; its warnings
	NIXL         func(params map[string]string) (string, error) // an agent of the wheel creates the backend; its versions
}

// Rails is the plugin's choice of devices.
type Rails struct {
	Found []provider.Device
	Now   []provider.Device
	Late  []provider.Device
	Left  []rails.Left
}

// Software is what is installed.
type Software struct {
	Tool   string // this tool's version
	Plugin Plugin
	GLIBC  string // "2.36"; "": unknown
	Wheels plugindir.Wheels
	Folder Folder // NIXL_PLUGIN_DIR
}

// Plugin is a file that may be GORAIL's plugin.
type Plugin struct {
	Path    string
	Err     string // why it is none, or cannot be loaded here
	Version string
	GLIBC   string // the newest version that it needs
}

// Folder is a plugin folder.
type Folder struct {
	Path    string // "": not set
	Enabled bool   // the package nixl_gorail, whose enable() sets it, is installed beside NIXL
	Err     string
	Variant string // the wheel that it was made from: "cu12"; "": not known
	Files   []plugindir.Entry
}
