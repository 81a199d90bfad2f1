#include "elf_vtables.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <elf.h>
#include <optional>
#include <string_view>
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

// The tables of a file whose functions have no names. Type information is found by the class's name, which is data, and a table by its type
// information.
class Nameless {
  public:
    explicit Nameless(const File &f) : file_(f)
    {
        std::vector<Symbol> dynamic;
        size_t section = 0;
        for (size_t i = 0; i < f.sections.size(); i++)
            if (f.sections[i].sh_type == SHT_DYNSYM && dynamic.empty()) {
                dynamic = symbols(f, f.sections[i]);
                section = i;
            }
        for (const auto &s : f.sections) {
            if (s.sh_type != SHT_RELA || s.sh_link != section)
                continue;
            for (const auto &r : f.content<Elf64_Rela>(s)) {
                const uint64_t symbol = ELF64_R_SYM(r.r_info);
                const Symbol none = {"", 0, 0, false};
                const Symbol &to = symbol < dynamic.size() ? dynamic[symbol] : none;
                words_.push_back({r.r_offset, symbol ? to.value : static_cast<uint64_t>(r.r_addend), to.name == "__cxa_pure_virtual"});
            }
        }
        std::sort(words_.begin(), words_.end(), [](auto &a, auto &b) { return a.at < b.at; });
    }

    std::string kinds(const std::string &owner) const
    {
        std::string found;
        for (const uint64_t name : names(std::to_string(owner.size()) + owner))
            for (const uint64_t at : pointers(name)) // the second word of type information
                for (const uint64_t table : pointers(at - 8)) {
                    if (at_word(table - 8) != 0)
                        continue; // a base class in other type information
                    const std::string here = slots(table + 8);
                    if (here.empty())
                        continue;
                    if (!found.empty() && found != here)
                        return {};
                    found = here;
                }
        return found;
    }

  private:
    struct Word {
        uint64_t at, value;
        bool pure;
    };

    // Addresses of a name as a whole string.
    std::vector<uint64_t> names(const std::string &name) const
    {
        std::vector<uint64_t> out;
        for (const auto &s : file_.sections) {
            if (s.sh_type != SHT_PROGBITS || !(s.sh_flags & SHF_ALLOC) || s.sh_flags & SHF_EXECINSTR)
                continue;
            const auto bytes = file_.content<char>(s);
            const std::string_view text(bytes.data(), bytes.size()), whole(name.c_str(), name.size() + 1);
            for (size_t i = text.find(whole); i != std::string_view::npos && out.size() < 64; i = text.find(whole, i + 1))
                if (i == 0 || text[i - 1] == 0)
                    out.push_back(s.sh_addr + i);
        }
        return out;
    }

    // Addresses of words that hold an address. Packed relative relocations keep it in place.
    std::vector<uint64_t> pointers(uint64_t to) const
    {
        std::vector<uint64_t> out;
        for (const auto &w : words_)
            if (w.value == to && !w.pure && out.size() < 64)
                out.push_back(w.at);
        for (const auto &s : file_.sections) {
            if (s.sh_type != SHT_PROGBITS || !(s.sh_flags & SHF_WRITE))
                continue;
            const auto all = file_.content<uint64_t>(s);
            for (size_t i = 0; i < all.size() && out.size() < 64; i++)
                if (all[i] == to && !relocated(s.sh_addr + 8 * i))
                    out.push_back(s.sh_addr + 8 * i);
        }
        return out;
    }

    const Word *relocated(uint64_t at) const
    {
        const auto w = std::lower_bound(words_.begin(), words_.end(), at, [](auto &a, uint64_t v) { return a.at < v; });
        return w != words_.end() && w->at == at ? &*w : nullptr;
    }

    uint64_t at_word(uint64_t at) const
    {
        const auto *w = relocated(at);
        return w ? w->value : file_.word(at);
    }

    bool code(uint64_t address) const
    {
        return std::any_of(file_.sections.begin(), file_.sections.end(),
                           [&](auto &s) { return s.sh_flags & SHF_EXECINSTR && address >= s.sh_addr && address - s.sh_addr < s.sh_size; });
    }

    // Up to the first word that is not a function: the next table begins with its offset to the top. The destructors of an abstract class may
    // be null.
    std::string slots(uint64_t first) const
    {
        std::string out;
        for (uint64_t at = first; out.size() < most_slots; at += 8) {
            const auto *w = relocated(at);
            if (w && w->pure)
                out += 'p';
            else if (const uint64_t value = at_word(at); code(value) || (out.size() < 2 && value == 0))
                out += 'c';
            else
                break;
        }
        return out;
    }

    const File &file_;
    std::vector<Word> words_;
};

} // namespace

std::vector<VTable> read_vtables(int fd, bool local)
{
    const File file(fd);
    return Reader(file, local).tables();
}

std::string read_kinds(int fd, const std::string &owner)
{
    const File file(fd);
    return Nameless(file).kinds(owner);
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
