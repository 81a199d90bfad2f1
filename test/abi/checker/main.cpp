// Runs the plugin's comparison of tables on files: checker judge FILE... | kinds CLASS FILE | mutate FILE SEED N | time FILE
#include "identify/known_tables.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <elf.h>
#include <fcntl.h>
#include <random>
#include <sys/mman.h>
#include <unistd.h>

using namespace gorail;

static const char *words[] = {"unknown", "same", "added", "different"};

// "added: 5 supportsProxy" has the place of each added function.
static void show(const char *path)
{
    const int fd = open(path, O_RDONLY);
    const auto j = judge(fd);
    std::string more = j.difference;
    for (size_t i = 0; j.verdict == Verdict::added && i < j.order.size(); i++)
        if (j.order[i] >= known_functions)
            more += (more.empty() ? "" : ", ") + std::to_string(i) + " " + added_names({j.order[i]});
    std::printf("%s%s%s\n", words[int(j.verdict)], more.empty() ? "" : ": ", more.c_str());
    close(fd);
}

// Values that break sums and counts.
static uint64_t corrupt_value(std::mt19937_64 &random)
{
    const uint64_t some[] = {0, 1, 7, 0xff, 0xffff, 0xffffffff, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{7}, ~uint64_t{23}, random()};
    return some[random() % std::size(some)];
}

static void mutate(const char *path, uint64_t seed, int rounds)
{
    const int in = open(path, O_RDONLY);
    std::vector<char> good(size_t(lseek(in, 0, SEEK_END)));
    if (pread(in, good.data(), good.size(), 0) != ssize_t(good.size()))
        std::abort();
    // Mutations hit the parts that the plugin reads: the header, the section list, its symbols and relocations.
    Elf64_Ehdr h;
    std::memcpy(&h, good.data(), sizeof h);
    std::vector<std::pair<uint64_t, uint64_t>> regions(8, {h.e_shoff, h.e_shnum * sizeof(Elf64_Shdr)});
    regions.push_back({0, sizeof h + h.e_phnum * sizeof(Elf64_Phdr)});
    for (int i = 0; i < h.e_shnum; i++) {
        Elf64_Shdr s;
        std::memcpy(&s, good.data() + h.e_shoff + i * sizeof s, sizeof s);
        if (s.sh_type == SHT_DYNSYM || s.sh_type == SHT_SYMTAB || s.sh_type == SHT_RELA || s.sh_type == SHT_NOTE)
            regions.push_back({s.sh_offset, s.sh_size});
    }
    std::mt19937_64 random(seed);
    int verdicts[std::size(words)] = {};
    const int out = memfd_create("mutant", 0);
    for (int i = 0; i < rounds; i++) {
        auto bad = good;
        for (uint64_t n = 1 + random() % 16; n > 0; n--) {
            const auto [start, size] = regions[random() % regions.size()];
            const uint64_t at = std::min((start + random() % size) & ~uint64_t{3}, bad.size() - 8);
            const uint64_t value = corrupt_value(random);
            std::memcpy(bad.data() + at, &value, random() % 2 ? 8 : 4);
        }
        if (random() % 8 == 0)
            bad.resize(random() % bad.size());
        if (ftruncate(out, 0) != 0 || pwrite(out, bad.data(), bad.size(), 0) != ssize_t(bad.size()))
            std::abort();
        verdicts[int(judge(out).verdict)]++;
        read_kinds(out, "nixlBackendEngine");
        read_build_id(out);
    }
    std::printf("unknown %d same %d added %d different %d\n", verdicts[0], verdicts[1], verdicts[2], verdicts[3]);
}

int main(int argc, char **argv)
{
    const std::string what = argc > 2 ? argv[1] : "";
    if (what == "judge")
        for (int i = 2; i < argc; i++)
            show(argv[i]);
    else if (what == "kinds" && argc == 4)
        std::printf("%s\n", read_kinds(open(argv[3], O_RDONLY), argv[2]).c_str());
    else if (what == "mutate" && argc == 5)
        mutate(argv[2], std::strtoull(argv[3], nullptr, 10), std::atoi(argv[4]));
    else if (what == "time") {
        const auto began = std::chrono::steady_clock::now();
        show(argv[2]);
        std::printf("%ld us\n", long(std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - began).count()));
    } else
        return 2;
    return 0;
}
