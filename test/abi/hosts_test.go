package abi

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/native"
	"gorail/test/testenv"
)

// A host is a NIXL with another interface: a miniature agent and a plugin of its own, compiled with our header and changes of it.
type host struct {
	changes   []change
	ask       string   // how the agent calls added functions
	early     string   // the same, before getConnInfo
	overrides string   // of its plugin
	stock     []string // flags for its plugin; nil: it has none
}

// A change puts text in front of the line of the header that begins with a word.
type change struct{ before, text string }

// The added functions of NIXL's open changes, each where its change has it.
const (
	behindNotif    = "    virtual nixl_mem_list_t getSupportedMems("
	behindPost     = "    virtual nixl_status_t checkXfer("
	behindCheck    = "    virtual nixl_status_t releaseReqH("
	behindViews    = "    virtual nixl_status_t getPublicData("
	behindParams   = "    std::vector<void *> telemetryEvents_"
	behindOptional = "class nixlBackendReqH"
	atTheEnd       = "    friend struct nixlLayout;\n};\n\n// The result of"
	lastMember     = "    unsigned char elsewhere_"
	tagXfer        = "(nixl_xfer_op_t, const nixl_meta_dlist_t &, const str &tag, const str &peer, nixlBackendReqH *&, const opt_args *) const { return NIXL_ERR_BACKEND; }"
)

func no(name string) string { return "virtual bool " + name + "() const { return false; }" }

var (
	named  = []string{}
	hidden = []string{"-fvisibility=hidden", "-s"}
	bare   = []string{"-fvisibility=hidden", "-s", "-fno-rtti"}

	callbacks = host{[]change{{behindNotif, no("supportsNotifCallback")}}, "CHECK(!e->supportsNotifCallback());", "", "", named}
	sendRecv  = host{[]change{{behindNotif, no("supportsSendRecv")}, {behindPost, "virtual nixl_status_t prepTagXfer" + tagXfer}, {behindPost, "virtual nixl_status_t postTagXfer" + tagXfer}},
		`CHECK(!e->supportsSendRecv()); CHECK(e->prepTagXfer(NIXL_READ, local, "tag", name, handle, nullptr) == NIXL_ERR_NOT_SUPPORTED);
		CHECK(e->postTagXfer(NIXL_READ, local, "tag", name, handle, nullptr) == NIXL_ERR_NOT_SUPPORTED);`, "", "", named}
	proxy = host{[]change{{behindOptional, "class nixlDeviceProxyBackendAdapter { public: virtual ~nixlDeviceProxyBackendAdapter() = default; };"}, {behindNotif, no("supportsProxy")},
		{behindViews, "virtual nixl_status_t createDeviceProxyBackendAdapter(const nixlBackendInitParams &, std::unique_ptr<nixlDeviceProxyBackendAdapter> &) { return NIXL_ERR_NOT_SUPPORTED; }"}},
		`CHECK(!e->supportsProxy()); std::unique_ptr<nixlDeviceProxyBackendAdapter> adapter;
		CHECK(e->createDeviceProxyBackendAdapter({}, adapter) == NIXL_ERR_NOT_SUPPORTED && !adapter);`, "", "bool supportsProxy() const override { return true; }", named}
	injection = host{[]change{{behindNotif, no("supportsNotifInjection")}, {lastMember, "protected: const std::unordered_map<std::string, int> notifCallbacks_; private:"}},
		"CHECK(!e->supportsNotifInjection());", "", "bool supportsNotifInjection() const override { return true; }", named}
	events = host{[]change{{behindOptional, "struct nixl_xfer_entry_event_t { size_t index; nixl_status_t status; };"},
		{behindCheck, "virtual nixl_status_t checkXferEvents(nixlBackendReqH *, std::deque<nixl_xfer_entry_event_t> &) const { return NIXL_ERR_NOT_SUPPORTED; }"}},
		"std::deque<nixl_xfer_entry_event_t> list; CHECK(e->checkXferEvents(handle, list) == NIXL_ERR_NOT_SUPPORTED && list.empty());", "", "", named}
)

// both is a NIXL with the changes of several.
func both(all ...host) host {
	sum := host{stock: named}
	for _, h := range all {
		sum.changes = append(sum.changes, h.changes...)
		sum.ask += h.ask
		sum.early += h.early
	}
	return sum
}

func (h host) plugins(flags []string) host { h.stock = flags; return h }
func (h host) first(early string) host     { h.early = early; return h }

// unknown is a NIXL with a function that nobody knows.
func unknown(before string) host {
	return host{[]change{{before, no("supportsSomething")}}, "CHECK(!e->supportsSomething());", "", "", named}
}

// large is a NIXL with a function at its end that returns an object in memory.
var large = host{[]change{{behindOptional, "struct nixl_something_t { uint64_t words[256]; };"}, {atTheEnd, "virtual nixl_something_t something() const { return {}; }"}},
	"CHECK(untouched<nixl_something_t>([&] { return e->something(); }));", "", "", nil}

// askCallbacks is what an agent with callbacks of notifications does with a backend that has none.
const askCallbacks = `if (!e->supportsNotifCallback()) return "no callbacks";`

// moved is a NIXL with more members of its engines, in front of those that the agent reads.
func moved(before, member string) host { return host{[]change{{before, member}}, "", "", "", named} }

var hosts = map[string]struct {
	short bool
	host
	said string   // by its agent
	logs []string // in the log of the plugin
}{
	"as released":                          {false, host{stock: named}, "served", []string{"compared_with=", "plugins/libplugin_POSIX.so"}},
	"as released, its names hidden":        {false, host{stock: hidden}, "served", []string{"compared_with=", "plugins/libplugin_POSIX.so"}},
	"as released, without plugins":         {false, host{}, "served", []string{"nothing: no stock plugin"}},
	"callbacks":                            {false, callbacks, "served", []string{"added=supportsNotifCallback"}},
	"send and recv":                        {false, sendRecv, "served", []string{`added="supportsSendRecv, prepTagXfer, postTagXfer"`}},
	"proxy":                                {false, proxy, "served", []string{`added="supportsProxy, createDeviceProxyBackendAdapter"`}},
	"injection":                            {false, injection, "served", []string{"added=supportsNotifInjection"}},
	"events":                               {false, events, "served", []string{"added=checkXferEvents"}},
	"callbacks, proxy":                     {false, both(callbacks, proxy), "served", []string{`added="supportsNotifCallback, supportsProxy, createDeviceProxyBackendAdapter"`}},
	"proxy, callbacks":                     {false, both(proxy, callbacks), "served", []string{`added="supportsProxy, supportsNotifCallback, createDeviceProxyBackendAdapter"`}},
	"all":                                  {true, both(events, sendRecv, injection, proxy, callbacks), "served", []string{"supportsSendRecv, supportsNotifInjection, supportsProxy, supportsNotifCallback, "}},
	"an unknown function":                  {true, unknown(behindNotif), "no plugin", []string{"level=ERROR", "function 5 is supportsSomething, not getSupportedMems", "NIXL 1.0.0 .. 1.5.1", "GR-1006"}},
	"an unknown function in front":         {false, unknown("    virtual ~nixlBackendEngine"), "no plugin", []string{"level=ERROR", "function 0 is supportsSomething, not the destructor", "GR-1006"}},
	"an unknown function beside callbacks": {false, both(callbacks, unknown(behindViews)), "no plugin", []string{"level=ERROR", "function 19 is supportsSomething, not getPublicData", "GR-1006"}},
	"callbacks with a parameter":           {false, host{[]change{{behindNotif, "virtual bool supportsNotifCallback(int) const { return false; }"}}, "", "", "", named}, "no plugin", []string{"level=ERROR", "function 5 is supportsNotifCallback, not getSupportedMems", "GR-1006"}},
	"callbacks, their names hidden":        {false, callbacks.plugins(hidden), "no plugin", []string{"level=ERROR", "the functions have no names, and 28 instead of 27, the first of another kind at place 5", "GR-1006"}},
	"callbacks, nothing left of names":     {false, callbacks.plugins(bare), "getConnInfo -3", []string{"level=ERROR", "before getConnInfo", "GR-1082", "nothing: no stock plugin"}},
	"events, their names hidden":           {false, events.plugins(hidden), "no plugin", []string{"level=ERROR", "28 instead of 27, the first of another kind at place 14", "GR-1006"}},
	"callbacks without plugins":            {false, callbacks.plugins(nil), "getConnInfo -3", []string{"level=ERROR", "before getConnInfo", "call=loadRemoteConnInfo", "GR-1082", "libnixl.so"}},
	"proxy without plugins":                {false, proxy.plugins(nil), "getConnInfo -3", []string{"level=ERROR", "before getConnInfo", "call=loadRemoteMD", "GR-1082"}},
	"send and recv without plugins":        {false, sendRecv.plugins(nil), "getConnInfo -3", []string{"level=ERROR", "before getConnInfo", "call=loadLocalMD", "GR-1082"}},
	"all without plugins":                  {false, both(events, sendRecv, injection, proxy, callbacks).plugins(nil), "getConnInfo -3", []string{"level=ERROR", "call=\"a function beyond the known ones\"", "GR-1082"}},
	"an unknown function at the end, without plugins":                        {false, unknown(atTheEnd).plugins(nil), "served", []string{"level=ERROR", "call=\"a function beyond the known ones\"", "GR-1082"}},
	"an unknown function at the end that returns an object, without plugins": {true, large, "served", []string{"level=ERROR", "call=\"a function beyond the known ones\"", "GR-1082"}},
	"callbacks, asked first":                                                 {false, callbacks.first(askCallbacks), "no callbacks", nil},
	"callbacks, asked first, without plugins":                                {true, callbacks.plugins(nil).first(askCallbacks), "no callbacks", []string{"level=ERROR", "such as supportsNotifCallback, at the place of getSupportedMems", "GR-1082", "libnixl.so"}},
	"callbacks and proxy, asked first, without plugins":                      {false, both(callbacks, proxy).plugins(nil).first(askCallbacks), "no callbacks", []string{"level=ERROR", "at the place of getSupportedMems", "GR-1082"}},
	"a number among the members":                                             {true, moved(behindParams, "uint64_t backendId_ = 0;"), "getInitErr", []string{"level=ERROR", "without a call", "GR-1082", "libnixl.so"}},
	"a map among the members":                                                {false, moved("    std::string backendType", "std::unordered_map<std::string, int> more_;"), "getInitErr", []string{"level=ERROR", "without a call", "GR-1082"}},
	"a string and a number among them":                                       {false, moved(behindParams, "std::string s_; uint64_t n_;"), "getInitErr", []string{"level=ERROR", "GR-1082"}},
	"a member behind":                                                        {false, moved(lastMember, "void *tracer_;"), "served", nil},
}

var driver = native.Part{Name: "driver", Program: true, CPlusPlus: true, Sources: []string{"test/abi/hosts/driver/main.cpp"}, Libs: []string{"-ldl"}}

// header writes our header with the changes of a host into a folder below the root, and returns the folder. The functions that a backend may
// leave out have bodies, as in NIXL.
func (h host) header(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(native.At("cshim", "nixl_engine_abi.h"))
	require.NoError(t, err)
	all := string(text)
	at := strings.Index(all, "    virtual nixl_status_t prepMemView")
	require.Positive(t, at)
	optional := strings.ReplaceAll(all[at:], "releaseMemView(nixlMemViewH) const = 0;", "releaseMemView(nixlMemViewH) const {}")
	all = all[:at] + strings.ReplaceAll(optional, " = 0;", " { return NIXL_ERR_BACKEND; }")
	for _, c := range h.changes {
		require.Equal(t, 1, strings.Count(all, "\n"+c.before), c.before)
		all = strings.Replace(all, "\n"+c.before, "\n    "+c.text+"\n"+c.before, 1)
	}
	all = strings.Replace(all, "#include <mutex>", "#include <deque>\n#include <memory>\n#include <mutex>", 1)
	types, err := os.ReadFile(native.At("cshim", "nixl_types_abi.h"))
	require.NoError(t, err)
	dir := filepath.Join("build", "native", "hosts", fmt.Sprintf("%x", sha256.Sum256(append(types, all...)))[:16])
	if os.MkdirAll(native.At(dir), 0o755) != nil { // a checkout that is read-only
		dir, err = filepath.Rel(native.At(), t.TempDir())
		require.NoError(t, err)
	}
	for name, text := range map[string]string{"nixl_engine_abi.h": all, "nixl_types_abi.h": string(types)} {
		if now, err := os.ReadFile(native.At(dir, name)); err == nil && string(now) == text {
			continue
		}
		own, err := os.CreateTemp(native.At(dir), "own")
		require.NoError(t, err)
		_, err = own.WriteString(text)
		require.NoError(t, errors.Join(err, own.Close()))
		require.NoError(t, os.Rename(own.Name(), native.At(dir, name))) // whole, since other tests may read it
	}
	return dir
}

// make compiles the host, and returns its library in a folder of its own.
func (h host) make(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	build := func(to, source, macro string, flags ...string) {
		part := native.Part{Name: filepath.Base(to), CPlusPlus: true, Include: []string{h.header(t), "cshim/test"}, Sources: []string{source},
			Flags: append([]string{"-O2", "-Wno-unused-parameter", "-D" + macro}, flags...)}
		made, err := part.Make()
		require.NoError(t, err)
		require.NoError(t, native.Copy(made, filepath.Join(dir, to)))
	}
	build("libnixl.so", "test/abi/hosts/library/nixl.cpp", "ASK="+h.ask, "-DEARLY="+h.early)
	if h.stock != nil {
		require.NoError(t, os.Mkdir(filepath.Join(dir, "plugins"), 0o700))
		build("plugins/"+testenv.PluginFile("POSIX"), "test/abi/hosts/stock/posix.cpp", "OVERRIDES="+h.overrides, h.stock...)
	}
	return filepath.Join(dir, "libnixl.so")
}

// drive lets NIXLs in one process use the plugin, and returns what each said, twice, and the log.
func drive(t *testing.T, libraries ...string) ([]string, string) {
	program, err := driver.Make()
	require.NoError(t, err)
	env := testenv.Load()
	cmd := exec.Command(program, append([]string{filepath.Join(env.PluginDir, testenv.PluginFile("GORAIL"))}, libraries...)...)
	cmd.Env = append(os.Environ(), "GORAIL_LOG=debug", "NIXL_PLUGIN_DIR=")
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.Output()
	require.NoError(t, err, "%s\n%s", out, log.String())
	return strings.Split(strings.TrimSpace(string(out)), "\n"), log.String()
}

// TestHosts: NIXLs with another interface and no other version. Each is served by a table in its own order, or refused by one line. An agent
// calls each function of its interface.
func TestHosts(t *testing.T) {
	plugin(t)
	for name, h := range hosts {
		if testing.Short() && !h.short { // to compile takes four seconds of processor time for each
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said, log := drive(t, h.make(t))
			require.Len(t, said, 2, log)
			for _, s := range said {
				require.Contains(t, s, h.said, log)
			}
			for _, text := range h.logs {
				require.Contains(t, log, text)
			}
			if slices.Contains(h.logs, "level=ERROR") {
				require.Equal(t, 1, strings.Count(log, "level=ERROR"), "one line: %s", log)
			} else {
				require.NotContains(t, log, "level=ERROR")
			}
		})
	}
}

// TestTwoHosts: several NIXLs in one process, each with its own interface. What is beside one of them says nothing about another.
func TestTwoHosts(t *testing.T) {
	plugin(t)
	released, other, third := host{stock: named}.make(t), callbacks.make(t), proxy.make(t)
	for _, order := range [][]string{{released, other, third}, {third, released, other}} {
		said, log := drive(t, order...)
		require.Equal(t, strings.Repeat("served ", 6), strings.Join(said, " ")+" ", log)
		require.NotContains(t, log, "level=ERROR")
	}
	said, log := drive(t, released, callbacks.plugins(nil).make(t))
	require.Equal(t, []string{"served", "getConnInfo -3", "served", "getConnInfo -3"}, said, log)
	said, log = drive(t, released, host{}.make(t))
	require.Equal(t, []string{"served", "served", "served", "served"}, said, log)

	all := []string{released}
	for i := range 5 { // one more than there are tables
		all = append(all, both([]host{callbacks, proxy, injection, events, sendRecv}[:i+1]...).make(t))
	}
	said, log = drive(t, all...)
	require.Equal(t, strings.Repeat("served ", 5)+"no plugin ", strings.Join(said[:6], " ")+" ", log)
	require.Contains(t, log, fmt.Sprintf("this process has %d NIXLs with other tables already", 4))
}
