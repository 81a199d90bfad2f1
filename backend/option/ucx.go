package option

import (
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Machine is where UCX's variables are, and the hardware that its settings speak of.
type Machine struct {
	Environ []string // "NAME=value", as in environ(7)
	Sys     fs.FS    // "/sys"
}

func (m Machine) getenv(name string) (string, bool) {
	for _, v := range m.Environ {
		if key, value, _ := strings.Cut(v, "="); key == name {
			return value, true
		}
	}
	return "", false
}

// ucxPrefix begins the names of UCX's variables.
const ucxPrefix = "UCX_"

// setting is a setting of UCX's. text is what the user wrote: UCX_TLS=tcp, or engine_config TLS=tcp.
type setting struct{ text, value string }

// ucx turns the settings of UCX's users into GORAIL's options.
type ucx struct {
	*Translated
	on  Machine
	set map[string]setting // not yet looked at, by UCX's name without prefix
}

// ucx takes UCX's variables and the parameters of NIXL's UCX plugin that set the same. As there, a variable takes precedence over
// engine_config, and device_list over both.
func (t *Translated) ucx(on Machine) error {
	u := ucx{t, on, map[string]setting{}}
	u.variables()
	u.engineConfig()
	u.deviceList()
	if err := u.fabrics(); err != nil {
		return err
	}
	for _, n := range ucxNumbers {
		if err := u.number(n); err != nil {
			return err
		}
	}
	u.rest()
	return nil
}

func (u *ucx) ignore(text, why string) { u.Ignored = append(u.Ignored, text+" ("+why+")") }
func (u *ucx) wrong(text, why string)  { u.Wrong = append(u.Wrong, text+" ("+why+")") }

// take returns a setting and takes it out of the set; the zero setting: it is not given.
func (u *ucx) take(name string) setting {
	s := u.set[name]
	delete(u.set, name)
	return s
}

func (u *ucx) variables() {
	for _, v := range u.on.Environ {
		name, value, _ := strings.Cut(v, "=")
		name, is := strings.CutPrefix(name, ucxPrefix)
		_, twice := u.set[name]
		if value = strings.TrimSpace(value); is && value != "" && !twice {
			u.set[name] = setting{v, value}
		}
	}
}

// engineConfig reads NAME=value,NAME=value. NIXL cuts it at every comma, so a list of UCX's has no place in it.
func (u *ucx) engineConfig() {
	config := u.Params["engine_config"]
	delete(u.Params, "engine_config")
	for word := range strings.SplitSeq(config, ",") {
		word = strings.TrimSpace(word)
		name, value, pair := strings.Cut(word, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		text := "engine_config " + word
		before, there := u.set[name]
		switch {
		case word == "" || pair && value == "":
		case !pair:
			u.wrong(text, `no "=": NIXL cuts engine_config at each comma; lists can be given in the environment`)
		case strings.HasPrefix(name, ucxPrefix):
			u.wrong(text, "names in engine_config have no "+ucxPrefix)
		case there && strings.HasPrefix(before.text, ucxPrefix):
			u.ignore(text, before.text+" takes precedence")
		default:
			if there {
				u.ignore(before.text, "given again")
			}
			u.set[name] = setting{text, value}
		}
	}
}

// deviceList takes the plugin's own parameters as NET_DEVICES. NIXL adds the port 1 to each name.
func (u *ucx) deviceList() {
	for _, name := range []string{"ucx_devices", "device_list"} {
		given := u.Params[name]
		delete(u.Params, name)
		words := strings.FieldsFunc(given, func(r rune) bool { return r == ',' || r == ' ' })
		if len(words) == 0 || slices.Contains(words, ucxAll) {
			continue
		}
		for i, w := range words {
			if !strings.Contains(w, ":") {
				words[i] += ":1"
			}
		}
		if before, there := u.set["NET_DEVICES"]; there {
			u.ignore(before.text, name+" takes precedence")
		}
		u.set["NET_DEVICES"] = setting{name + "=" + given, strings.Join(words, ",")}
	}
}

// ucxNumber is a number of UCX's that an option of ours has, too.
type ucxNumber struct {
	name, to string
	bits     uint   // that UCX keeps of it
	allowed  string // for errors
}

var ucxNumbers = []ucxNumber{
	{maxRMARails, "max_rails", 32, "a whole number, or inf"},
	{"IB_GID_INDEX", "gid_index", 32, "a whole number from 0 to 255, or auto"},
	{"IB_TRAFFIC_CLASS", "ib_traffic_class", 8, "a whole number from 0 to 255, or auto"},
	{"IB_SL", "ib_service_level", 64, "a whole number from 0 to 15, or auto"},
}

// maxRMARails is UCX's limit of devices for one READ or WRITE. It has no value auto. Our max_rails limits the devices of all
// transfers, and takes the same ones in every process of a host. So only a greater limit means the same: by a smaller one all GPUs of a host
// would share a few of its network cards, where UCX takes the nearest for each.
const maxRMARails = "MAX_RMA_RAILS"

// UCX's numbers for its words inf and auto (UCS_ULUNITS_INF, UCS_ULUNITS_AUTO). -1 and -2 are the same.
const ucxInf, ucxAuto = math.MaxUint64, math.MaxUint64 - 1

// scan reads a number as UCX does, by sscanf with %lu: the digits in front, with or without a sign. A number that is too large becomes the largest.
func scan(v string) (uint64, error) {
	digits := strings.TrimLeft(v, "+-")
	if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		digits = digits[:end]
	}
	if digits == "" || len(v)-len(strings.TrimLeft(v, "+-")) > 1 {
		return 0, errNumber
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err == nil && v[0] == '-' {
		n = -n
	}
	return n, nil // ParseUint, too, gives the largest
}

// read returns what UCX makes of a value. auto: that it chooses itself.
func (n ucxNumber) read(v string) (value uint64, auto bool, err error) {
	switch {
	case strings.EqualFold(v, "inf"):
		value = ucxInf
	case n.name != maxRMARails && strings.EqualFold(v, "auto"):
		return 0, true, nil
	default:
		value, err = scan(v)
		auto = value == ucxAuto && n.name != maxRMARails
	}
	return value & (1<<n.bits - 1), auto, err
}

func (u *ucx) number(n ucxNumber) error {
	s := u.take(n.name)
	if s.value == "" {
		return nil
	}
	number, auto, err := n.read(s.value)
	value := strconv.FormatUint(number, 10)
	if err == nil && n.name != maxRMARails {
		err = rowOf(n.to).set(&Options{}, value)
	}
	switch {
	case auto:
		u.ignore(s.text, n.to+" has its default")
		return nil
	case err != nil && n.name != maxRMARails && !u.verbs(): // UCX reads it for a device alone
		u.wrong(s.text, "no value of "+n.to+", and no InfiniBand or RoCE device reads it")
		return nil
	case err != nil:
		return fmt.Errorf("%w: %s: %w; it sets option %s: write %s", ErrValue, s.text, err, n.to, n.allowed)
	case n.name == maxRMARails && number <= defaultRails:
		u.ignore(s.text, "it limits the devices of one transfer; option max_rails limits those of a region of memory")
		return nil
	case n.name == maxRMARails && number > mostRails: // UCX takes any number
		value = strconv.Itoa(mostRails)
	}
	return u.put(n.to, value, func(own string) bool { return own == value }, s.text)
}

// put sets an option by settings of UCX's. If the option is given itself, it must agree, and stays.
func (u *ucx) put(name, value string, agrees func(own string) bool, from ...string) error {
	r, settings := rowOf(name), strings.Join(from, " ")
	if err := r.set(&Options{}, value); err != nil {
		return fmt.Errorf("%w: %s: %w; it sets option %s: write %s", ErrValue, settings, err, name, r.allowed())
	}
	own, where := r.value(u.Params, u.on.getenv)
	switch given := own != r.Default || where != ""; {
	case !given:
		u.Params[name] = value
		u.Taken = append(u.Taken, fmt.Sprintf("%s=%s (%s)", name, value, settings))
	case agrees(own):
		u.ignore(settings, "option "+name+" is given and agrees")
	default:
		return fmt.Errorf("%w: %s=%q%s contradicts %s, which means %s=%s here; remove one of the two, or write %s=%s", ErrValue,
			name, own, where, settings, name, value, name, value)
	}
	return nil
}

// rest names all other settings.
func (u *ucx) rest() {
	if s := u.take("RCACHE_ENABLE"); s.text != "" {
		u.ignore(s.text, "GORAIL has no registration cache")
	}
	var names []string
	for _, key := range slices.Sorted(maps.Keys(u.set)) {
		name, _, _ := strings.Cut(u.set[key].text, "=")
		names = append(names, name)
	}
	if len(names) > 0 {
		u.ignore(strings.Join(names, ", "), noEquivalent)
	}
}
