#include "known_tables.h"

#include <algorithm>
#include <optional>

namespace gorail {
namespace {

#define STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"

constexpr const char *slots_1_0[] = {
    "_ZN@D1Ev",
    "_ZN@D0Ev",
    "_ZNK@14supportsRemoteEv",
    "_ZNK@13supportsLocalEv",
    "_ZNK@13supportsNotifEv",
    "_ZNK@16getSupportedMemsEv",
    "_ZN@11registerMemERK12nixlBlobDescRK10nixl_mem_tRP13nixlBackendMD",
    "_ZN@13deregisterMemEP13nixlBackendMD",
    "_ZN@7connectERK" STRING,
    "_ZN@10disconnectERK" STRING,
    "_ZN@8unloadMDEP13nixlBackendMD",
    "_ZNK@8prepXferERK14nixl_xfer_op_tRK12nixlDescListI12nixlMetaDescES7_RK" STRING "RP15nixlBackendReqHPK23nixlBackendOptionalArgs",
    "_ZNK@8postXferERK14nixl_xfer_op_tRK12nixlDescListI12nixlMetaDescES7_RK" STRING "RP15nixlBackendReqHPK23nixlBackendOptionalArgs",
    "_ZNK@9checkXferEP15nixlBackendReqH",
    "_ZNK@11releaseReqHEP15nixlBackendReqH",
    "_ZNK@11prepMemViewERK12nixlDescListI18nixlRemoteMetaDescERPvPK23nixlBackendOptionalArgs",
    "_ZNK@11prepMemViewERK12nixlDescListI12nixlMetaDescERPvPK23nixlBackendOptionalArgs",
    "_ZNK@14releaseMemViewEPv",
    "_ZNK@13getPublicDataEPK13nixlBackendMDR" STRING,
    "_ZNK@11getConnInfoER" STRING,
    "_ZN@18loadRemoteConnInfoERK" STRING "S7_",
    "_ZN@12loadRemoteMDERK12nixlBlobDescRK10nixl_mem_tRK" STRING "RP13nixlBackendMD",
    "_ZN@11loadLocalMDEP13nixlBackendMDRS1_",
    "_ZN@9getNotifsERSt6vectorISt4pairI" STRING "S7_ESaIS8_EE",
    "_ZNK@8genNotifERK" STRING "S7_",
    "_ZNK@8queryMemERK12nixlDescListI12nixlBlobDescERSt6vectorISt8optionalISt13unordered_mapI" STRING "SD_St4hashISD_ESt8equal_toISD_ESaISt4pairIKSD_SD_EEEESaISN_EE",
    "_ZNK@16estimateXferCostERK14nixl_xfer_op_tRK12nixlDescListI12nixlMetaDescES7_RK" STRING "RKP15nixlBackendReqHRNSt6chrono8durationIlSt5ratioILl1ELl1000000EEEESP_R11nixl_cost_tPK21nixlAgentOptionalArgs",
};

#undef STRING

constexpr const char *base = "nixlBackendEngine";
constexpr const char *ours = "GorailEngine";

struct Method {
    std::string owner, signature;
};

// Splits "_ZNK15nixlPosixEngine9checkXferEP..." into nixlPosixEngine and "_ZNK@9checkXferEP...". Classes in the global
// namespace number the parts of their methods' names alike. Everything after the class can thus be compared literally.
std::optional<Method> method(const std::string &mangled) {
    for (const std::string prefix : {"_ZNK", "_ZN"}) {
        if (mangled.compare(0, prefix.size(), prefix) != 0)
            continue;
        size_t at = prefix.size(), length = 0;
        for (; at < mangled.size() && at < prefix.size() + 4 && mangled[at] >= '0' && mangled[at] <= '9'; at++)
            length = length * 10 + static_cast<size_t>(mangled[at] - '0');
        if (length == 0 || mangled.size() - at <= length)
            return {};
        std::string rest = mangled.substr(at + length);
        if (rest == "D2Ev")
            rest = "D1Ev"; // the complete and the base object destructor are one function
        return Method{mangled.substr(at, length), prefix + "@" + rest};
    }
    return {};
}

// The functions of a slot that belong to the class or to the interface. Functions of other classes, folded by the
// linker, are left out.
std::vector<Method> methods(const VTable &t, size_t slot) {
    std::vector<Method> own;
    for (const auto &name : t.slots[slot])
        if (auto m = method(name); m && (m->owner == t.owner || m->owner == base))
            own.push_back(*m);
    return own;
}

// Other classes may have functions with the same names. An engine is a class derived from nixlBackendEngine.
bool is_engine(const VTable &t) {
    return t.owner == base || std::find(t.parent.begin(), t.parent.end(), std::string("_ZTI17") + base) != t.parent.end();
}

// "_ZNK@9checkXferEP..." gives checkXfer.
std::string method_name(const std::string &signature) {
    size_t at = signature.find('@') + 1, length = 0;
    const size_t start = at;
    for (; at < signature.size() && at < start + 4 && signature[at] >= '0' && signature[at] <= '9'; at++)
        length = length * 10 + static_cast<size_t>(signature[at] - '0');
    return length ? signature.substr(at, length) : "the destructor";
}

std::string differs(size_t slot, const std::string &there, const std::string &known) {
    const std::string a = method_name(there), b = method_name(known);
    return "function " + std::to_string(slot) + " is " + a + (a == b ? " with other parameters" : ", not " + b);
}

// The first difference of one engine's table. same counts the functions that are equal.
std::string compare(const VTable &t, const KnownTable &known, size_t &same) {
    const size_t n = known.slots.size();
    for (size_t i = 0; i < t.slots.size(); i++) {
        const auto there = methods(t, i);
        if (there.empty())
            continue;
        if (i >= n) {
            const auto more = std::find_if(there.begin(), there.end(), [](const Method &m) { return m.owner == base; });
            if (more != there.end())
                return method_name(more->signature) + " follows the " + std::to_string(n) + " known functions";
            continue; // a function of the derived class
        }
        if (std::none_of(there.begin(), there.end(), [&](const Method &m) { return m.signature == known.slots[i]; }))
            return differs(i, there[0].signature, known.slots[i]);
        same++;
    }
    if (t.slots.size() < n || (t.owner == base && t.slots.size() != n))
        return std::to_string(t.slots.size()) + " functions instead of " + std::to_string(n);
    return {};
}

Judgement judge_tables(const std::vector<VTable> &plugin, const KnownTable &known) {
    for (const auto &t : plugin)
        if (t.owner == ours)
            return {}; // a copy of this plugin under another name
    size_t most = 0;
    std::string difference;
    for (const auto &t : plugin) {
        if (!is_engine(t))
            continue;
        size_t same = 0;
        const auto d = compare(t, known, same);
        most = std::max(most, same);
        if (difference.empty() || (!d.empty() && t.owner != base))
            difference = d.empty() ? difference : d; // an engine's table names more functions than the interface's own table
    }
    if (!difference.empty())
        return {Verdict::different, difference};
    return {most >= known.slots.size() / 2 ? Verdict::same : Verdict::unknown, ""};
}

} // namespace

const std::array<KnownTable, known_count> known_tables = {{
    {"NIXL 1.0.0 .. 1.5.1", slots_1_0},
}};

Judgement judge(int fd, const KnownTable &known) {
    const auto j = judge_tables(read_vtables(fd, false), known);
    return j.verdict == Verdict::unknown ? judge_tables(read_vtables(fd, true), known) : j;
}

} // namespace gorail
