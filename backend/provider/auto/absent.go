package auto

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"gorail/backend/provider"
)

// absent lists fabrics, or hardware of a fabric, without a usable device. Each has a reason.
type absent []struct {
	name   string
	reason error
}

func (a *absent) add(name string, reason error) {
	*a = append(*a, struct {
		name   string
		reason error
	}{name, reason})
}

// err joins the reasons in one line.
func (a absent) err() (joined error) {
	for _, one := range a {
		if joined == nil {
			joined = fmt.Errorf("%s: %w", one.name, one.reason)
		} else {
			joined = fmt.Errorf("%w; %s: %w", joined, one.name, one.reason)
		}
	}
	return joined
}

// warn logs each fabric that is named in the option or present in the machine but not used. The fabric used instead may
// be a tenth as fast.
func (a absent) warn(log *slog.Logger, names []string, found []provider.Device) {
	if log == nil {
		return
	}
	var used []string
	for _, d := range found {
		if !slices.Contains(used, d.Fabric) {
			used = append(used, d.Fabric)
		}
	}
	for _, one := range a {
		advice := "fix the device, or name the devices to use in option devices"
		if slices.Contains(names, one.name) {
			advice = "fix the device, or take " + one.name + " out of option provider"
		}
		log.Warn("fabric not used", "fabric", one.name, "reason", one.reason, "used", strings.Join(used, ","),
			"option", "provider="+strings.Join(names, ","), "advice", advice)
	}
}
