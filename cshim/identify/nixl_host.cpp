#include "nixl_host.h"

#include <cstring>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <numeric>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gorail {
namespace {

// NIXL's own plugins, the smallest first. Other plugins may be built with any header.
constexpr const char *stock[] = {"POSIX", "UCX", "OBJ", "LIBFABRIC", "GDS", "GDS_MT", "GUSLI", "AZURE_BLOB"};
constexpr const char *prefix = "libplugin_";

class Descriptor {
  public:
    explicit Descriptor(const std::string &path) : fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
    Descriptor(const Descriptor &) = delete;
    void operator=(const Descriptor &) = delete;
    ~Descriptor()
    {
        if (fd >= 0)
            close(fd);
    }
    const int fd;
};

std::string folder_of(const std::string &path)
{
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::string name_of(const std::string &path) { return path.substr(path.rfind('/') + 1); }

std::string real(const std::string &path)
{
    char *at = realpath(path.c_str(), nullptr);
    const std::string out = at ? at : "";
    free(at);
    return out;
}

std::string file_at(const void *address)
{
    Dl_info at = {};
    return dladdr(address, &at) && at.dli_fname ? at.dli_fname : "";
}

bool cut_end(std::string &s, const std::string &end)
{
    if (s.size() <= end.size() || s.compare(s.size() - end.size(), end.size(), end) != 0)
        return false;
    s.resize(s.size() - end.size());
    return true;
}

// The package of a library folder in a wheel: nixl_cu12 for .nixl_cu12.mesonpy.libs and nixl_cu12.libs.
std::string package_of(const std::string &folder)
{
    std::string name = name_of(folder);
    if (name.size() > 1 && name[0] == '.' && cut_end(name, ".mesonpy.libs"))
        return name.substr(1);
    return cut_end(name, ".libs") ? name : "";
}

// Folders that may hold a library's plugins: beside the library, in its wheel, or in its build folder.
void add_folders(std::vector<std::string> &out, const std::string &library)
{
    if (library.empty())
        return;
    const std::string d = folder_of(library), package = package_of(d);
    out.push_back(d + "/plugins");
    if (!package.empty())
        out.push_back(d + "/../" + package + ".libs/nixl");
    for (const char *sub : {"/nixl", "/nixl/plugins", "/../plugins/posix", "/../plugins/ucx"})
        out.push_back(d + sub);
}

// What the process has loaded: folders of stock plugins, and the number of NIXLs.
struct Loaded {
    std::vector<std::string> folders;
    int nixls = 0;
};

int loaded(dl_phdr_info *info, size_t, void *out)
{
    auto &all = *static_cast<Loaded *>(out);
    const std::string path = info->dlpi_name ? info->dlpi_name : "", name = name_of(path);
    all.nixls += name.compare(0, 10, "libnixl.so") == 0 || name.compare(0, 8, "libnixl-") == 0;
    for (const char *s : stock)
        if (name == prefix + std::string(s) + ".so")
            all.folders.push_back(folder_of(path));
    return 0;
}

// Plugins that are not beside the library are its own only if the process has no other NIXL.
std::vector<std::string> stock_folders(const std::string &library, const std::string &own)
{
    std::vector<std::string> out;
    add_folders(out, library);
    if (const std::string there = real(library); there != library)
        add_folders(out, there);
    Loaded all;
    dl_iterate_phdr(loaded, &all);
    if (all.nixls > 1)
        return out;
    out.insert(out.end(), all.folders.begin(), all.folders.end());
    out.push_back(folder_of(own)); // NIXL_PLUGIN_DIR may have stock plugins beside us
    return out;
}

// "1.5.1" from the wheel's nixl_cu12-1.5.1.dist-info, or the build id.
std::string version_of(const std::string &library)
{
    for (const std::string &path : {library, real(library)}) {
        const std::string d = folder_of(path), package = package_of(d) + "-";
        DIR *dir = package.size() > 1 ? opendir((d + "/..").c_str()) : nullptr;
        std::string found;
        for (const dirent *e = nullptr; dir && found.empty() && (e = readdir(dir));)
            if (std::string name = e->d_name; name.compare(0, package.size(), package) == 0 && cut_end(name, ".dist-info"))
                found = name.substr(package.size());
        if (dir)
            closedir(dir);
        if (!found.empty())
            return found;
    }
    const std::string id = read_build_id(Descriptor(library).fd);
    return id.empty() ? "of unknown version" : "of build " + id;
}

// Compares a file with the known table. Returns true if the file decides; host then has the result.
bool compare_with(const std::string &path, const struct stat &own, Host &host)
{
    const Descriptor file(path);
    struct stat st = {};
    if (file.fd < 0 || fstat(file.fd, &st) != 0 || (st.st_dev == own.st_dev && st.st_ino == own.st_ino))
        return false; // the last condition: the file is an alias of this plugin
    auto j = judge(file.fd);
    if (j.verdict == Verdict::unknown)
        return false;
    host.compared = path;
    host.order = std::move(j.order);
    host.difference = std::move(j.difference);
    return true;
}

// A NIXL may have its plugins inside the library.
bool compare_with_any(const std::string &library, const std::string &own, Host &host)
{
    struct stat st = {};
    stat(own.c_str(), &st);
    for (const auto &folder : stock_folders(library, own))
        for (const char *name : stock)
            if (compare_with(folder + "/" + prefix + name + ".so", st, host))
                return true;
    return compare_with(library, st, host);
}

} // namespace

Host identify_host(const void *caller)
{
    Host host;
    const std::string library = file_at(caller);
    host.sure = compare_with_any(library, file_at(reinterpret_cast<const void *>(identify_host)), host);
    if (!host.sure) {
        host.order.resize(known_functions);
        std::iota(host.order.begin(), host.order.end(), uint8_t{0});
        host.compared = "nothing: no stock plugin of NIXL found for this library";
    }
    host.nixl = "NIXL " + version_of(library) + " (" + library + ")";
    return host;
}

} // namespace gorail
