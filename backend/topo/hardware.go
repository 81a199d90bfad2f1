package topo

import (
	"io/fs"
	"slices"
)

// Hardware returns the RDMA devices that the kernel knows (class/cxi and class/infiniband in sysfs), by the fabric that drives them: efa, cxi
// or verbs.
func Hardware(sys fs.FS) map[string][]string {
	const amazon = "0x1d0f"
	found := map[string][]string{}
	for _, class := range []string{"cxi", "infiniband"} {
		list, err := fs.ReadDir(sys, "class/"+class)
		if err != nil {
			continue
		}
		for _, d := range list {
			fabric := map[string]string{"cxi": "cxi", "infiniband": "verbs"}[class]
			if class == "infiniband" && Word(sys, "class/infiniband/"+d.Name()+"/device/vendor") == amazon {
				fabric = "efa"
			}
			found[fabric] = append(found[fabric], d.Name())
		}
	}
	for _, names := range found {
		slices.Sort(names)
	}
	return found
}
