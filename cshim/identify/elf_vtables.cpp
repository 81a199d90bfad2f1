#include "elf_vtables.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <elf.h>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>

namespace gorail {
namespace {

constexpr uint64_t most_bytes = 64 << 20; // of one section
constexpr uint64_t most_slots = 512;
constexpr uint64_t header = 16; // in front of a table's slots: offset to top, type information

struct Symbol {
    std::string name;
    uint64_t value, size;
    bool defined;
};

// Reads with pread: a mapped file that shrinks meanwhile would raise SIGBUS.
class File {
  public:
    explicit File(int fd) : fd_(fd)
    {
        struct stat st = {};
        if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0)
            size_ = static_cast<uint64_t>(st.st_size);
        Elf64_Ehdr h = {};
        if (!read(0, &h, sizeof h) || std::memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 || h.e_ident[EI_CLASS] != ELFCLASS64 ||
            h.e_ident[EI_DATA] != ELFDATA2LSB)
            return;
        if (h.e_shentsize == sizeof(Elf64_Shdr))
            sections = array<Elf64_Shdr>(h.e_shoff, uint64_t{h.e_shnum} * sizeof(Elf64_Shdr));
        if (h.e_phentsize == sizeof(Elf64_Phdr))
            segments = array<Elf64_Phdr>(h.e_phoff, uint64_t{h.e_phnum} * sizeof(Elf64_Phdr));
    }

    std::vector<Elf64_Shdr> sections;
    std::vector<Elf64_Phdr> segments;

    template <class T> std::vector<T> content(const Elf64_Shdr &s) const
    {
        return s.sh_type == SHT_NOBITS ? std::vector<T>() : array<T>(s.sh_offset, s.sh_size);
    }

    // The word loaded at an address.
    uint64_t word(uint64_t address) const
    {
        for (const auto &p : segments) {
            if (p.p_type != PT_LOAD || address < p.p_vaddr || p.p_filesz < 8 || address - p.p_vaddr > p.p_filesz - 8)
                continue;
            uint64_t value = 0;
            const uint64_t in = address - p.p_vaddr;
            return p.p_offset <= UINT64_MAX - in && read(p.p_offset + in, &value, sizeof value) ? value : 0;
        }
        return 0;
    }

  private:
    bool read(uint64_t at, void *to, uint64_t n) const
    {
        if (n > size_ || at > size_ - n)
            return false;
        for (uint64_t done = 0; done < n;) {
            const ssize_t got = pread(fd_, static_cast<char *>(to) + done, n - done, static_cast<off_t>(at + done));
            if (got <= 0)
                return false;
            done += static_cast<uint64_t>(got);
        }
        return true;
    }

    template <class T> std::vector<T> array(uint64_t at, uint64_t bytes) const
    {
        if (bytes > most_bytes || bytes > size_ || at > size_ - bytes)
            return {};
        std::vector<T> out(bytes / sizeof(T));
        return read(at, out.data(), out.size() * sizeof(T)) ? out : std::vector<T>();
    }

    const int fd_;
    uint64_t size_ = 0;
};

std::vector<Symbol> symbols(const File &f, const Elf64_Shdr &section)
{
    std::vector<Symbol> all;
    if (section.sh_link >= f.sections.size())
        return all;
    const auto text = f.content<char>(f.sections[section.sh_link]);
    for (const auto &s : f.content<Elf64_Sym>(section)) {
        const size_t left = s.st_name < text.size() ? text.size() - s.st_name : 0;
        const char *at = text.data() + (left ? s.st_name : 0);
        const bool plain = left && std::memchr(at, 0, std::min<size_t>(left, 4096));
        all.push_back({plain ? at : "", s.st_value, s.st_size, s.st_shndx != SHN_UNDEF});
    }
    return all;
}

// "_ZTV12GorailEngine" belongs to GorailEngine. A class in a namespace has another form.
std::optional<std::string> owner_of(const std::string &name)
{
    if (name.compare(0, 4, "_ZTV") != 0)
        return {};
    size_t at = 4, length = 0;
    for (; at < name.size() && at < 8 && name[at] >= '0' && name[at] <= '9'; at++)
        length = length * 10 + static_cast<size_t>(name[at] - '0');
    if (length == 0 || name.size() - at != length)
        return {};
    return name.substr(at);
}

class Reader {
  public:
    Reader(const File &f, bool local) : file_(f)
    {
        for (size_t i = 0; i < f.sections.size(); i++) {
            const uint32_t type = f.sections[i].sh_type;
            if (type == SHT_DYNSYM && dynamic_.empty()) {
                dynamic_ = symbols(f, f.sections[i]);
                dynamic_section_ = i;
            } else if (type == SHT_SYMTAB && local && local_.empty())
                local_ = symbols(f, f.sections[i]);
        }
        for (const auto *set : {&dynamic_, &local_})
            for (const auto &s : *set)
                if (s.defined && !s.name.empty())
                    named_.push_back(&s);
        std::sort(named_.begin(), named_.end(), [](auto *a, auto *b) { return a->value < b->value; });
    }

    std::vector<VTable> tables()
    {
        std::vector<VTable> out;
        std::vector<uint64_t> starts;
        for (const auto *s : named_) {
            const auto owner = owner_of(s->name);
            if (!owner || s->size <= header || s->size % 8 != 0 || s->size > header + 8 * most_slots || s->value > UINT64_MAX - s->size)
                continue;
            if (std::find(starts.begin(), starts.end(), s->value + header) != starts.end())
                continue; // in both symbol tables
            out.push_back({*owner, {}, {}});
            out.back().slots.resize((s->size - header) / 8);
            starts.push_back(s->value + header);
        }
        std::vector<Word> words;
        for (size_t t = 0; t < out.size(); t++) {
            for (size_t i = 0; i < out[t].slots.size(); i++)
                words.push_back({starts[t] + 8 * i, &out[t].slots[i]});
            const std::string info = "_ZTI" + std::to_string(out[t].owner.size()) + out[t].owner;
            for (const auto *s : named_)
                if (s->name == info)
                    words.push_back({s->value + header, &out[t].parent});
        }
        fill(words);
        return out;
    }

  private:
    // A word of the file that holds an address, and the list for the names of the symbols at that address.
    struct Word {
        uint64_t address;
        std::vector<std::string> *names;
    };

    void fill(std::vector<Word> &words)
    {
        std::sort(words.begin(), words.end(), [](auto &a, auto &b) { return a.address < b.address; });
        for (const auto &section : file_.sections) {
            if (section.sh_type != SHT_RELA || section.sh_link != dynamic_section_ || words.empty())
                continue;
            for (const auto &r : file_.content<Elf64_Rela>(section)) {
                auto w = std::lower_bound(words.begin(), words.end(), r.r_offset, [](auto &a, uint64_t v) { return a.address < v; });
                for (; w != words.end() && w->address == r.r_offset; w++)
                    *w->names = target(r);
            }
        }
        // Packed relative relocations keep the address in place.
        for (const auto &w : words)
            if (w.names->empty())
                *w.names = at(file_.word(w.address));
    }

    std::vector<std::string> target(const Elf64_Rela &r) const
    {
        const uint64_t symbol = ELF64_R_SYM(r.r_info);
        if (symbol == 0)
            return at(static_cast<uint64_t>(r.r_addend));
        if (symbol >= dynamic_.size() || dynamic_[symbol].name.empty())
            return {};
        return {dynamic_[symbol].name};
    }

    std::vector<std::string> at(uint64_t address) const
    {
        std::vector<std::string> names;
        auto s = std::lower_bound(named_.begin(), named_.end(), address, [](auto *a, uint64_t v) { return a->value < v; });
        for (; address != 0 && s != named_.end() && (*s)->value == address && names.size() < 64; s++)
            names.push_back((*s)->name);
        return names;
    }

    const File &file_;
    size_t dynamic_section_ = 0;
    std::vector<Symbol> dynamic_, local_;
    std::vector<const Symbol *> named_; // defined, by address
};

} // namespace

std::vector<VTable> read_vtables(int fd, bool local)
{
    const File file(fd);
    return Reader(file, local).tables();
}

std::string read_build_id(int fd)
{
    const File file(fd);
    std::string hex;
    for (const auto &s : file.sections) {
        const auto note = s.sh_type == SHT_NOTE ? file.content<unsigned char>(s) : std::vector<unsigned char>();
        Elf64_Nhdr n = {};
        if (note.size() < sizeof n + 4)
            continue;
        std::memcpy(&n, note.data(), sizeof n);
        if (n.n_type != NT_GNU_BUILD_ID || n.n_namesz != 4 || n.n_descsz > note.size() - sizeof n - 4)
            continue;
        for (size_t i = 0; i < n.n_descsz && i < 20; i++)
            for (int shift : {4, 0})
                hex += "0123456789abcdef"[note[sizeof n + 4 + i] >> shift & 15];
        break;
    }
    return hex;
}

} // namespace gorail
