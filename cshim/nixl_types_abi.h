// NIXL's plugin ABI in our own declarations, part 1: values, descriptors and lists.
//
// The names are NIXL's: they are part of the mangled signatures that test/abi compares with the installed wheels. Only
// types that a plugin receives are declared. One layout serves every release from 1.0.0 on. No NIXL or absl header and
// no NIXL or absl symbol is used. nixl_layout.h asserts the layouts.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

enum nixl_mem_t { DRAM_SEG, VRAM_SEG, BLK_SEG, OBJ_SEG, FILE_SEG };

enum nixl_xfer_op_t { NIXL_READ, NIXL_WRITE };

enum nixl_status_t {
    NIXL_IN_PROG = 1,
    NIXL_SUCCESS = 0,
    NIXL_ERR_NOT_POSTED = -1,
    NIXL_ERR_INVALID_PARAM = -2,
    NIXL_ERR_BACKEND = -3,
    NIXL_ERR_NOT_FOUND = -4,
    NIXL_ERR_MISMATCH = -5,
    NIXL_ERR_NOT_ALLOWED = -6,
    NIXL_ERR_REPOST_ACTIVE = -7,
    NIXL_ERR_UNKNOWN = -8,
    NIXL_ERR_NOT_SUPPORTED = -9,
    NIXL_ERR_REMOTE_DISCONNECT = -10,
    NIXL_ERR_CANCELED = -11,
    NIXL_ERR_NO_TELEMETRY = -12,
};

enum class nixl_thread_sync_t {
    NIXL_THREAD_SYNC_NONE,
    NIXL_THREAD_SYNC_STRICT,
    NIXL_THREAD_SYNC_RW,
    NIXL_THREAD_SYNC_DEFAULT = NIXL_THREAD_SYNC_NONE
};

enum class nixl_cost_t { ANALYTICAL_BACKEND = 0 };

using nixl_b_params_t = std::unordered_map<std::string, std::string>;
using nixl_mem_list_t = std::vector<nixl_mem_t>;
using nixl_query_resp_t = std::optional<nixl_b_params_t>;
using nixlMemViewH = void *;
using notif_list_t = std::vector<std::pair<std::string, std::string>>; // (sender, message)

class nixlBackendMD;
struct nixlAgentOptionalArgs; // only passed on, never read

class nixlBasicDesc {
  public:
    uintptr_t addr;
    size_t len;
    uint64_t devId;
};

// A range to register, or a peer's range with its public blob.
class nixlBlobDesc : public nixlBasicDesc {
  public:
    std::string metaInfo;
};

// A range of a transfer, with the result of registerMem or loadRemoteMD for the region that holds the range.
class nixlMetaDesc : public nixlBasicDesc {
  public:
    nixlBackendMD *metadataP;
};

struct nixlRemoteMetaDesc : public nixlMetaDesc {
    std::string remoteAgent;
};

// The agent builds these lists and we read them. The virtual functions keep their slots in the table. Only hosts built
// from this header (the tests) use their bodies.
template <class T> class nixlDescList {
  protected:
    nixl_mem_t type;
    std::vector<T> descs;

  public:
    explicit nixlDescList(const nixl_mem_t &mem) : type(mem) {}
    nixlDescList(const nixlDescList &) = default;
    nixlDescList &operator=(const nixlDescList &) = default;
    virtual ~nixlDescList() = default;

    nixl_mem_t getType() const noexcept { return type; }
    size_t size() const noexcept { return descs.size(); }
    const T *data() const noexcept { return descs.data(); }
    auto begin() const noexcept { return descs.begin(); }
    auto end() const noexcept { return descs.end(); }

    virtual void resize(const size_t &count) { descs.resize(count); }
    virtual void addDesc(const T &desc) { descs.push_back(desc); }
    virtual int getIndex(const nixlBasicDesc &) const { return NIXL_ERR_NOT_FOUND; }

    friend struct nixlLayout;
};

using nixl_meta_dlist_t = nixlDescList<nixlMetaDesc>;
using nixl_remote_meta_dlist_t = nixlDescList<nixlRemoteMetaDesc>;
using nixl_reg_dlist_t = nixlDescList<nixlBlobDesc>;

struct nixlBackendOptionalArgs {
    std::string notifMsg;
    bool hasNotif = false;
    std::string customParam;
};
