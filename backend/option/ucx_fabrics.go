package option

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gorail/backend/topo"
)

// ucxAll is UCX's word for no restriction.
const ucxAll = "all"

// fabrics are the words of option provider that auto chooses from, in its order, with UCX's transports for the same devices.
var fabrics = []struct {
	name       string
	transports []string
}{
	{"efa", []string{"srd", "ud_verbs"}},
	{"cxi", nil},
	{"verbs", []string{"rc_verbs", "rc_mlx5", "dc_mlx5", "ud_verbs", "ud_mlx5"}},
	{"tcp", []string{"tcp"}},
	{shared, []string{"posix", "sysv", "xpmem", "knem", "cma"}},
}

const shared, cudaIPC, cudaCopy = "sm", "cuda_ipc", "cuda_copy"

// transports are the words of UCX_TLS, with the transports that each stands for (ucp_tl_aliases in UCX's ucp_context.c). A word without
// transports here stands for itself.
var transports = map[string][]string{
	"mm": {"posix", "sysv", "xpmem"}, "sm": {"posix", "sysv", "xpmem", "knem", "cma"}, "shm": {"posix", "sysv", "xpmem", "knem", "cma"},
	"ib":   {"rc_verbs", "ud_verbs", "rc_mlx5", "ud_mlx5", "dc_mlx5", "gga_mlx5", "srd", "rc_gda"},
	"ud_v": {"ud_verbs"}, "ud_x": {"ud_mlx5"}, "ud": {"ud_mlx5", "ud_verbs"},
	"rc_v": {"rc_verbs"}, "rc_x": {"rc_mlx5"}, "rc": {"rc_mlx5", "rc_verbs"}, "dc": {"dc_mlx5"}, "dc_x": {"dc_mlx5"},
	"cuda": {cudaCopy, cudaIPC, "gdr_copy"},

	"tcp": nil, "self": nil, "posix": nil, "sysv": nil, "xpmem": nil, "knem": nil, "cma": nil, "rc_verbs": nil, "rc_mlx5": nil, "rc_gda": nil,
	"dc_mlx5": nil, "ud_verbs": nil, "ud_mlx5": nil, "srd": nil, "gga_mlx5": nil, "gga": nil, cudaCopy: nil, cudaIPC: nil, "gdr_copy": nil,
	"rocm": nil, "rocm_copy": nil, "rocm_ipc": nil, "rocm_gdr": nil, "ze": nil, "ze_copy": nil, "ze_ipc": nil, "ze_gdr": nil, "gaudi": nil,
	"gaudi_gdr": nil, "ugni": nil, "ugni_smsg": nil, "ugni_rdma": nil, "rdmacm": nil, "sockcm": nil,
}

// ucxList reads a list of UCX's: words between commas, or with ^ before the first all but these. UCX skips empty words. all: no restriction.
func ucxList(s setting) (words []string, deny, all bool, err error) {
	list, deny := strings.CutPrefix(s.value, "^")
	for _, w := range split(list) {
		if w != "" {
			words = append(words, w)
		}
	}
	switch {
	case s.text == "" || len(words) == 1 && words[0] == ucxAll:
		return nil, false, true, nil
	case len(words) == 0:
		err = fmt.Errorf("%w: %s: the list is empty; name some, or unset it", ErrValue, s.text)
	case words[0] == ucxAll:
		err = fmt.Errorf("%w: %s: all stands alone", ErrValue, s.text)
	}
	return words, deny, false, err
}

// fabrics sets provider and devices by TLS and NET_DEVICES. As UCX does, auto then takes the best fabric of those that both permit.
func (u *ucx) fabrics() error {
	tls, net := u.take("TLS"), u.take("NET_DEVICES")
	permitted, err := u.permitted(tls)
	if err != nil {
		return err
	}
	devices, err := u.devices(net)
	if err != nil {
		return err
	}
	if net.text != "" && devices.all {
		u.ignore(net.text, "it leaves every device")
	}
	got := devices.choose(permitted)
	var from []string
	if len(permitted) < len(fabrics) {
		from = append(from, tls.text)
	}
	if !slices.Equal(got, netDevices{hardware: devices.hardware, all: true}.choose(permitted)) {
		from = append(from, net.text)
	}
	// UCX, too, makes no context without the network if that was asked for.
	if len(got) == 0 || got[0] == shared && len(permitted) > 1 {
		return fmt.Errorf("%w: %s: no network device of this machine is left%s; name transports and devices that it has (tcp, ib), or sm alone for peers of this host, or unset it",
			ErrValue, strings.Join(from, " "), u.because())
	}
	if len(from) > 0 && u.asAuto(got, devices) {
		if !slices.ContainsFunc(u.Ignored, func(said string) bool { return strings.HasPrefix(said, from[0]) }) {
			u.ignore(strings.Join(from, " "), "auto takes the same here")
		}
	} else if len(from) > 0 {
		agrees := func(own string) bool {
			return !slices.ContainsFunc(split(strings.ToLower(own)), func(f string) bool {
				f = cmp.Or(oldProviders[f], f)
				return !slices.Contains(permitted, f) || !devices.fits(f)
			})
		}
		if err := u.put("provider", strings.Join(got, ","), agrees, from...); err != nil {
			return err
		}
	}
	patterns := devices.patterns
	if len(patterns) == 0 {
		return nil
	}
	if !devices.deny && slices.Contains(got, shared) {
		patterns = append(patterns, "memory") // UCX's list is of network devices alone
	}
	return u.put("devices", strings.Join(patterns, ","), func(own string) bool { return sameDevices(split(own), devices.patterns) }, net.text)
}

// asAuto reports that auto chooses the same on this machine, and that nobody gave provider. auto is the better word for it: if the hardware
// cannot be used, auto fails, and a list goes on with what is left, which may be shared memory alone.
func (u *ucx) asAuto(got []string, d netDevices) bool {
	r := rowOf("provider")
	own, where := r.value(u.Params, u.on.getenv)
	d.all = true
	var every []string
	for _, f := range fabrics {
		every = append(every, f.name)
	}
	return own == r.Default && where == "" && slices.Equal(got, d.choose(every))
}

// because adds what is wrong to an error.
func (u *ucx) because() string {
	if len(u.Wrong) == 0 {
		return ""
	}
	return ": " + strings.Join(u.Wrong, "; ")
}

// permitted returns the fabrics that UCX_TLS permits.
func (u *ucx) permitted(tls setting) (out []string, err error) {
	words, deny, all, err := ucxList(tls)
	if err != nil {
		return nil, err
	}
	named := map[string]bool{}
	for _, word := range words {
		word = strings.TrimPrefix(word, `\`)
		if strings.HasSuffix(word, ":aux") { // UCX's own messages alone
			continue
		}
		stands, known := transports[word]
		if !known {
			u.wrong(tls.text, strconv.Quote(word)+" is no transport of UCX")
		}
		named[word] = true
		for _, t := range stands {
			named[t] = true
		}
	}
	on := func(transport string) bool { return all || named[transport] != deny }
	for _, f := range fabrics {
		if slices.ContainsFunc(f.transports, on) || len(f.transports) == 0 && (all || deny) || f.name == shared && !deny && on(cudaIPC) {
			out = append(out, f.name)
		}
	}
	memory := slices.Contains(out, shared) && !on(cudaIPC) && (deny || named[cudaCopy] || named["gdr_copy"])
	switch {
	case memory:
		u.ignore(tls.text, "without cuda_ipc: a mapping of a peer's GPU memory ends when its owner deregisters or unmaps it, so it stays; option gpu_mapping=off forbids mappings")
	case len(out) == len(fabrics) && tls.text != "":
		u.ignore(tls.text, "it leaves every fabric")
	}
	return out, nil
}

// verbs reports a device for which UCX reads its settings IB_*.
func (u *ucx) verbs() bool {
	there := topo.Hardware(u.on.Sys)
	return len(there["verbs"])+len(there["efa"]) > 0
}

// netDevices is a list of network devices of UCX's, for the devices of this machine.
type netDevices struct {
	hardware  map[string][]string // topo.Hardware
	all, deny bool
	names     []string // RDMA devices that the list has, or takes away with all their ports
	nets      bool     // it has network interfaces
	patterns  []string // of option devices
}

// devices reads NET_DEVICES: RDMA devices (mlx5_0, all ports; mlx5_0:1) and network interfaces. Others are wrong, and left out as by UCX.
func (u *ucx) devices(net setting) (d netDevices, err error) {
	d.hardware = topo.Hardware(u.on.Sys)
	var words, missing []string
	if words, d.deny, d.all, err = ucxList(net); err != nil {
		return d, err
	}
	rdma := slices.Concat(slices.Collect(maps.Values(d.hardware))...)
	is := func(path string) bool { _, err := fs.Stat(u.on.Sys, path); return err == nil }
	for _, word := range expand(words) {
		name, port, _ := strings.Cut(word, ":")
		patterns := []string{name}
		switch {
		case !slices.Contains(rdma, name):
			if !is("class/net/" + name) {
				missing = append(missing, name)
				continue
			}
			d.nets = true
		case !d.deny || port == "" || port == "1" && !is("class/infiniband/"+name+"/ports/2"):
			d.names = append(d.names, name)
			fallthrough
		default:
			if port == "" {
				patterns = append(patterns, name+":*")
			} else if port != "1" {
				patterns[0] = word
			}
		}
		for _, p := range patterns {
			if d.deny {
				p = "!" + p
			}
			d.patterns = append(d.patterns, p)
		}
	}
	if len(missing) > 0 {
		u.wrong(net.text, "not on this machine: "+strings.Join(missing, ", "))
	}
	return d, nil
}

// numbered is a name with a range of numbers, as UCX expands it.
var numbered = regexp.MustCompile(`^([^][]*)\[([0-9]+)-([0-9]+)\]([^][]*)$`)

// expand writes mlx5_[0-3]:1 as four names. UCX takes 128 at most.
func expand(words []string) (out []string) {
	const most = 128
	for _, w := range words {
		m := numbered.FindStringSubmatch(w)
		if m == nil {
			out = append(out, w)
			continue
		}
		first, err1 := strconv.Atoi(m[2])
		last, err2 := strconv.Atoi(m[3])
		if err1 != nil || err2 != nil || first > last {
			out = append(out, w)
			continue
		}
		for n := first; n <= last && len(out) < most; n++ {
			out = append(out, m[1]+strconv.Itoa(n)+m[4])
		}
	}
	return out
}

// fits returns true if the list leaves devices to a fabric. An interface's name means sockets, as in UCX.
func (d netDevices) fits(fabric string) bool {
	switch {
	case d.all || fabric == shared:
		return true
	case fabric == "tcp":
		return d.deny || d.nets
	}
	return slices.ContainsFunc(d.hardware[fabric], func(name string) bool { return slices.Contains(d.names, name) != d.deny })
}

// choose chooses as auto does: RDMA hardware, else sockets, and shared memory.
func (d netDevices) choose(permitted []string) (out []string) {
	may := func(f string) bool { return slices.Contains(permitted, f) && d.fits(f) }
	for _, f := range fabrics {
		there := len(d.hardware[f.name]) > 0 || f.name == shared || f.name == "tcp" && len(out) == 0
		if there && may(f.name) {
			out = append(out, f.name)
		}
	}
	return out
}

// sameDevices returns true if our own list has the devices of UCX's, or some of them.
func sameDevices(own, ucx []string) bool {
	narrower := len(own) > 0
	for _, p := range own {
		narrower = narrower && (p == "memory" || !strings.ContainsAny(p, "!^#*?[") && topo.Patterns(ucx).Judge(-1, p) != topo.Excluded)
	}
	own = slices.DeleteFunc(slices.Clone(own), func(p string) bool { return p == "memory" })
	slices.Sort(own)
	ucx = slices.Sorted(slices.Values(ucx))
	return narrower || slices.Equal(own, ucx)
}
