package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is the module's folder.
const root = "../.."

// tree writes headers of a NIXL: ours, with the members that NIXL has behind initErr, and bodies. Then changes replace text by text.
func tree(t *testing.T, changes ...string) string {
	t.Helper()
	dir := t.TempDir()
	var all strings.Builder
	for _, name := range []string{"nixl_types_abi.h", "nixl_engine_abi.h"} {
		text, err := os.ReadFile(filepath.Join(root, "cshim", name))
		require.NoError(t, err)
		all.Write(text)
	}
	text := all.String()
	at := strings.Index(text, "    virtual nixl_status_t prepMemView")
	require.Positive(t, at)
	text = text[:at] + strings.ReplaceAll(text[at:], " = 0;", " { return later(1 < 2); }")
	for i, list := range [][]string{{"unsigned char elsewhere_[255];", "protected: const nixl_text_t localAgent; bool enableTelemetry_{false}; private:"},
		{"enum nixl_mem_t", "using nixl_text_t = std::string;\nenum nixl_mem_t"}, {"std::vector<void *> telemetryEvents_", "std::vector<nixlEvent> telemetryEvents_"}, changes} {
		for ; len(list) > 0; list = list[2:] {
			require.Equal(t, 1, strings.Count(text, list[0]), "%d: %s", i, list[0])
			text = strings.Replace(text, list[0], list[1], 1)
		}
	}
	folder := filepath.Join(dir, "src", "api", "cpp")
	require.NoError(t, os.MkdirAll(folder, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "backend_engine.h"), []byte(text), 0o600))
	return dir
}

const (
	notif   = "    virtual bool supportsNotif() const = 0;\n"
	local   = "    virtual bool supportsLocal() const = 0;\n"
	release = "    virtual nixl_status_t releaseReqH(nixlBackendReqH *) const = 0;\n"
	refuses = ": the plugin refuses this NIXL"
)

// TestCompare: headers of a NIXL with one change each, or several.
func TestCompare(t *testing.T) {
	for name, c := range map[string]struct {
		changes []string
		says    []string // the lines, in order
	}{
		"nothing": {nil, nil},
		"other words for the same": {[]string{"virtual nixl_status_t connect(const str &peer) = 0;", "/* virtual bool no(); */ [[nodiscard]] virtual nixl_status_t\n  connect(const std::string &remote_agent = \"a,b;{\") =\n0; // one; more",
			"using notif_list_t = std::vector<std::pair<std::string, std::string>>;", "typedef std::vector<std::pair<std::string, std::string>> notif_list_t;"}, nil},
		"what is no part of it": {[]string{release, release + "    std::string describe() const { return {\"virtual bool f();\"}; }\n    static int count;\n    friend class Other;\n    bool operator<(const nixlBackendEngine &) const;\n",
			"class nixlBackendMD {", "class nixlOther { virtual int f(); int more; };\nclass nixlBackendMD {"}, nil},
		"an answered function": {[]string{notif, notif + "    virtual bool supportsProxy() const { return false; }\n"}, []string{
			"inserted: supportsProxy() const at place 5: the plugin answers it as NIXL's base class does"}},
		"an unknown function": {[]string{notif, notif + "    virtual bool supportsSomething(int n = 3, const char *) const { if (true) { return false; } return true; }\n"}, []string{
			"inserted: supportsSomething(int, const char *) const at place 5" + refuses + "; see known_additions in cshim/identify/known_tables.cpp"}},
		"a function without a body": {[]string{notif, notif + "    virtual bool supportsProxy() const = 0;\n"}, []string{
			"inserted: supportsProxy() const at place 5: it has no body, so every backend must have one, and the plugin refuses this NIXL"}},
		"a function less": {[]string{release, ""}, []string{"removed: releaseReqH(nixlBackendReqH *) const, was at place 14" + refuses}},
		"another name":    {[]string{release, strings.Replace(release, "releaseReqH", "endReqH", 1)}, []string{"renamed: endReqH(nixlBackendReqH *) const at place 14, was releaseReqH" + refuses}},
		"other parameters": {[]string{release, strings.Replace(release, "*)", "*&, unsigned)", 1)}, []string{
			"changed: releaseReqH(nixlBackendReqH * &, unsigned) const at place 14, had (nixlBackendReqH *) const" + refuses}},
		"const no more": {[]string{release, strings.Replace(release, ") const", ")", 1)}, []string{"changed: releaseReqH(nixlBackendReqH *) at place 14, had (nixlBackendReqH *) const" + refuses}},
		"another order": {[]string{local, "", notif, notif + local}, []string{"moved: supportsLocal() const, from place 3 to 4" + refuses}},
		"two at once, in another place": {[]string{release, "    virtual bool supportsNotifCallback() const { return false; }\n" + release + "    virtual bool supportsSendRecv() const { return false; }\n"}, []string{
			"inserted: supportsNotifCallback() const at place 14: the plugin answers it as NIXL's base class does",
			"inserted: supportsSendRecv() const at place 16: the plugin answers it as NIXL's base class does"}},
		"a member in front": {[]string{"    std::vector<nixlEvent> telemetryEvents_;", "    const uint64_t id_ = 0;\n    std::vector<nixlEvent> telemetryEvents_;"}, []string{
			"nixlBackendEngine: inserted: member id_ (uint64_t) at place 2, in front of initErr: this NIXL gives the plugin's engines back (GR-1082)"}},
		"a member behind": {[]string{"bool enableTelemetry_{false};", "bool enableTelemetry_{false}; std::unordered_map<std::string, std::function<void(int)>> callbacks_;"}, []string{
			"nixlBackendEngine: inserted: member callbacks_ (unordered_map<string, function<void(int)>>) at place 7, behind initErr: it moves nothing that the agent reads"}},
		"members of others": {[]string{"    bool hasNotif = false;\n", "    int flags;\n    bool hasNotif = false;\n", "    uint64_t pthrDelay;", "    uint32_t pthrDelay;",
			"    nixlBackendMD *metadataP;", "", "class nixlBasicDesc {\n  public:\n    uintptr_t addr;\n    size_t len;", "class nixlBasicDesc {\n  public:\n    size_t len;\n    uintptr_t addr;"}, []string{
			"nixlBackendInitParams: changed: member pthrDelay is uint32_t, was uint64_t",
			"nixlBackendOptionalArgs: inserted: member flags (int) at place 1: it may move the members behind it",
			"nixlBasicDesc: moved: member addr is behind len",
			"nixlMetaDesc: removed: member metadataP (nixlBackendMD *)"}},
		"pointers to functions": {[]string{"    nixl_b_params_t (*get_backend_options)();", "    void (*get_more)(int n);\n    nixl_b_params_t (*get_backend_options)(const char *);"}, []string{
			"nixlBackendPlugin: inserted: member get_more (void (*)(int)) at place 5: it may move the members behind it",
			"nixlBackendPlugin: changed: member get_backend_options is unordered_map<string, string> (*)(const char *), was unordered_map<string, string> (*)()"}},
		"a function of a list": {[]string{"    virtual void resize(", "    virtual void clear() {}\n    virtual void resize("}, []string{"nixlDescList: inserted: clear() at place 2"}},
		"values": {[]string{"NIXL_READ, NIXL_WRITE }", "NIXL_READ, NIXL_SEND, NIXL_WRITE }", "    NIXL_ERR_MISMATCH = -5,\n", ""}, []string{
			"nixl_xfer_op_t: inserted: NIXL_SEND = 1", "nixl_xfer_op_t: changed: NIXL_WRITE is 2, was 1", "nixl_status_t: removed: NIXL_ERR_MISMATCH (-5)"}},
		"a version": {[]string{"nixl_plugin_api_version = 1", "nixl_plugin_api_version = 2"}, []string{`NIXL_PLUGIN_API_VERSION: was 1, is "2"`}},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs strings.Builder
			got := run([]string{root, tree(t, c.changes...)}, &out, &errs)
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			require.Empty(t, errs.String())
			if c.says == nil {
				require.Equal(t, []string{"nothing moved: 26 functions in the same order, the same members and values"}, lines)
				require.Zero(t, got)
				return
			}
			require.Equal(t, c.says, lines)
			require.Equal(t, 1, got)
		})
	}
}

// TestUse: what is no NIXL is named.
func TestUse(t *testing.T) {
	for _, args := range [][]string{{root}, {root, "a", "b"}, {root, "/nowhere"}, {root, t.TempDir()}, {t.TempDir(), tree(t)}} {
		var out, errs strings.Builder
		require.Equal(t, 2, run(args, &out, &errs), "%v", args)
		require.Empty(t, out.String())
		require.NotEmpty(t, errs.String())
	}
	include := filepath.Join(tree(t), "src", "api", "cpp") // as an installed NIXL has it
	var out, errs strings.Builder
	require.Zero(t, run([]string{root, include}, &out, &errs), out.String()+errs.String())
}

// TestAnswered: each added function that the plugin answers is found by its name.
func TestAnswered(t *testing.T) {
	all, err := answered(root)
	require.NoError(t, err)
	require.Len(t, all, 8)
	for _, name := range []string{"supportsNotifCallback", "supportsNotifInjection", "supportsSendRecv", "prepTagXfer", "postTagXfer", "supportsProxy", "createDeviceProxyBackendAdapter", "checkXferEvents"} {
		require.True(t, all[name], name)
	}
}
