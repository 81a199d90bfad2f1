#include "known_tables.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace gorail {
namespace {

#define STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"

constexpr const char *slots_1_0[known_functions] = {
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

#define TAG_XFER "E14nixl_xfer_op_tRK12nixlDescListI12nixlMetaDescERK" STRING "SD_RP15nixlBackendReqHPK23nixlBackendOptionalArgs"

constexpr Addition known_additions[] = {
    {"_ZNK@21supportsNotifCallbackEv", Answer::no},  // callbacks of notifications
    {"_ZNK@22supportsNotifInjectionEv", Answer::no}, // injection of notifications
    {"_ZNK@16supportsSendRecvEv", Answer::no},       // send and recv
    {"_ZNK@11prepTagXfer" TAG_XFER, Answer::not_supported},
    {"_ZNK@11postTagXfer" TAG_XFER, Answer::not_supported},
    {"_ZNK@13supportsProxyEv", Answer::no}, // device proxy
    {"_ZN@31createDeviceProxyBackendAdapterERK21nixlBackendInitParamsRSt10unique_ptrI29nixlDeviceProxyBackendAdapterSt14default_deleteIS4_EE",
     Answer::not_supported},
    {"_ZNK@15checkXferEventsEP15nixlBackendReqHRSt5dequeI23nixl_xfer_entry_event_tSaIS3_EE", Answer::not_supported}, // events of a transfer
};

#undef TAG_XFER
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

// The first difference of one engine's table from the known one. same counts the functions that are equal.
std::string compare(const VTable &t, size_t &same) {
    const size_t n = known_functions;
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
        if (std::none_of(there.begin(), there.end(), [&](const Method &m) { return m.signature == known_table[i]; }))
            return differs(i, there[0].signature, known_table[i]);
        same++;
    }
    if (t.slots.size() < n || (t.owner == base && t.slots.size() != n))
        return std::to_string(t.slots.size()) + " functions instead of " + std::to_string(n);
    return {};
}

bool pure(const VTable &t, size_t slot) { return t.slots[slot] == std::vector<std::string>{"__cxa_pure_virtual"}; }

bool has(const std::vector<Method> &all, const char *signature) {
    return std::any_of(all.begin(), all.end(), [&](const Method &m) { return m.signature == signature; });
}

// What one slot of an engine holds. interface is the table of nixlBackendEngine itself in the same file: it tells which of several folded
// functions the slot has. Additions are never pure.
struct Holds {
    bool named = false, next = false;
    std::vector<uint8_t> added;
};

Holds holds(const VTable &t, const VTable *interface, size_t slot, size_t next, const Order &before) {
    Holds h;
    auto there = methods(t, slot);
    h.named = !there.empty();
    const bool in = interface && slot < interface->slots.size();
    if (const auto own = in ? methods(*interface, slot) : std::vector<Method>(); !own.empty())
        std::erase_if(there, [&](const Method &m) { return !has(own, m.signature.c_str()); });
    h.next = next < known_functions && has(there, known_table[next]);
    for (size_t i = 0; i < additions.size() && !(in && pure(*interface, slot)); i++)
        if (const auto id = static_cast<uint8_t>(known_functions + i);
            has(there, additions[i].name) && std::find(before.begin(), before.end(), id) == before.end())
            h.added.push_back(id);
    return h;
}

enum class Read { clear, unclear, wrong };

// Reads the order of one engine's table. unclear: names are missing, or one name too many stands for a slot. wrong: a function that is not
// known, or known functions that are missing or elsewhere; why has the first.
Read read_order(const VTable &t, const VTable *interface, Order &order, std::string &why) {
    size_t next = 0;
    for (size_t i = 0; i < t.slots.size() && order.size() < most_functions; i++) {
        if (next == known_functions && (interface ? i >= interface->slots.size() : holds(t, nullptr, i, next, order).added.empty()))
            break; // functions of the derived class
        const auto h = holds(t, interface, i, next, order);
        const bool alike = std::all_of(h.added.begin(), h.added.end(), [&](uint8_t id) {
            return additions[id - known_functions].answer == additions[h.added[0] - known_functions].answer;
        });
        if (!h.named || !alike || (h.next && !h.added.empty()))
            return Read::unclear;
        if (!h.next && h.added.empty()) {
            const std::string there = methods(t, i)[0].signature;
            why = next < known_functions ? differs(i, there, known_table[next]) : method_name(there) + " follows the known functions";
            return Read::wrong;
        }
        order.push_back(h.next ? static_cast<uint8_t>(next) : h.added[0]);
        next += h.next;
    }
    return next == known_functions && (!interface || interface->slots.size() == order.size()) ? Read::clear : Read::wrong;
}

// The order that all engines of a file agree on; empty if there is none, and difference then has the reason if there is one.
Order common_order(const std::vector<VTable> &plugin, std::string &difference) {
    const auto interface = std::find_if(plugin.begin(), plugin.end(), [](const VTable &t) { return t.owner == base; });
    Order common;
    for (const auto &t : plugin) {
        if (!is_engine(t) || t.owner == base)
            continue;
        Order order;
        std::string why;
        const Read read = read_order(t, interface == plugin.end() ? nullptr : &*interface, order, why);
        if (!why.empty())
            difference = why;
        if (read == Read::wrong || (read == Read::clear && !common.empty() && common != order))
            return {};
        if (read == Read::clear)
            common = order;
    }
    return common;
}

Order known_order() {
    Order order(known_functions);
    std::iota(order.begin(), order.end(), uint8_t{0});
    return order;
}

Judgement judge_tables(const std::vector<VTable> &plugin) {
    size_t most = 0;
    std::string difference;
    for (const auto &t : plugin) {
        if (!is_engine(t))
            continue;
        size_t same = 0;
        const auto d = compare(t, same);
        most = std::max(most, same);
        if (difference.empty() || (!d.empty() && t.owner != base))
            difference = d.empty() ? difference : d; // an engine's table names more functions than the interface's own table
    }
    if (difference.empty())
        return most >= known_functions / 2 ? Judgement{Verdict::same, known_order(), ""} : Judgement{};
    if (const auto order = common_order(plugin, difference); !order.empty())
        return {Verdict::added, order, ""};
    return {Verdict::different, {}, difference};
}

// Two destructors, 13 functions that each backend must have, and 12 with a body.
constexpr const char *known_kinds = "ccpppppppppppppcccccccccccc";

// Judges a file whose functions have no names by the kinds of the interface's functions alone.
Judgement judge_kinds(const std::string &kinds) {
    if (kinds.find('p') == std::string::npos)
        return {};
    if (kinds == known_kinds)
        return {Verdict::same, known_order(), ""};
    size_t i = 0;
    while (i < kinds.size() && i < known_functions && kinds[i] == known_kinds[i])
        i++;
    return {Verdict::different, {},
            "the functions have no names, and " + std::to_string(kinds.size()) + " instead of " + std::to_string(known_functions) +
                ", the first of another kind at place " + std::to_string(i)};
}

} // namespace

const std::span<const char *const> known_table = slots_1_0;
const std::span<const Addition> additions = known_additions;

Judgement judge(int fd) {
    if (!read_kinds(fd, ours).empty())
        return {}; // a copy of this plugin under another name
    for (const bool local : {false, true})
        if (const auto j = judge_tables(read_vtables(fd, local)); j.verdict != Verdict::unknown)
            return j;
    return judge_kinds(read_kinds(fd, base));
}

std::string added_names(const Order &order) {
    std::string names;
    for (const auto id : order)
        if (id >= known_functions)
            names += (names.empty() ? "" : ", ") + method_name(additions[id - known_functions].name);
    return names;
}

} // namespace gorail
