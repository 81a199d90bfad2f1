// Package peer checks the way to another host: gorail doctor --listen there serves gorail doctor --peer here.
package peer

import (
	"os"
	"path/filepath"
	"strings"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/topo"
	"gorail/backend/wire"
	"gorail/gorail/doctor"
	"gorail/internal/subprocess"
)

// Facts are what one side tells the other.
type Facts struct {
	Version string               // of GORAIL
	Wire    int                  // of its protocol
	NIXL    string               // "nixl_cu12-1.5.1"; "": no wheel
	Names   subprocess.Map[bool] // plugins in NIXL_PLUGIN_DIR; true: GORAIL answers

	UID                int
	Boot, PIDNS, NetNS string
	SM                 bool // the rail sm is wanted

	Rails         []wire.RailOffer
	Addrs         []string // of the rails, by number; "" for none
	Control, Data option.PortRange
	Err           string // why there are no rails
}

// sameNet says that both sides are in one network namespace.
func (f *Facts) sameNet(o *Facts) bool { return f.Boot != "" && f.Boot == o.Boot && f.NetNS == o.NetNS }

// about tells what this side is.
func about(version string, h *doctor.Host) (*Facts, []provider.Device) {
	f := &Facts{Version: version, Wire: wire.Version, Names: subprocess.Map[bool]{}, UID: h.UID, Boot: topo.Word(h.Proc, "sys/kernel/random/boot_id")}
	f.PIDNS, _ = os.Readlink("/proc/self/ns/pid")
	f.NetNS, _ = os.Readlink("/proc/self/ns/net")
	for _, file := range h.Software.Folder.Files {
		f.Names[file.Name] = file.Ours
	}
	if found, _ := filepath.Glob(filepath.Join(h.Software.Wheels.Where, "nixl_cu*.dist-info")); len(found) > 0 && h.Software.Wheels.Where != "" {
		f.NIXL = strings.TrimSuffix(filepath.Base(found[0]), ".dist-info")
	}
	opt, _, err := option.Parse(h.Params, os.LookupEnv)
	if err != nil {
		f.Err = err.Error()
		return f, nil
	}
	f.Control, f.Data = opt.ControlPort, opt.DataPort
	found, err := h.Try.Rails(opt)
	if err != nil {
		f.Err = err.Error()
		return f, nil
	}
	f.Rails = rails.Offers(found.Now)
	for _, d := range found.Now {
		f.SM = f.SM || d.Host
		f.Addrs = append(f.Addrs, d.Addr)
	}
	return f, found.Now
}
