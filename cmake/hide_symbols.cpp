// hide_symbols IN OUT NAME... : copies a 64-bit ELF shared library and marks the named dynamic
// symbols hidden: the library goes on using its own, and nothing else in a process can bind to
// them. Why: Debian's libsentencepiece exports absl flag objects called FLAGS_minloglevel,
// FLAGS_help and FLAGS_version; LibTorch's libc10 exports an int FLAGS_minloglevel. In one process
// one of the two libraries writes over the other's memory (tests/data/case_24_test.cpp). A static
// libsentencepiece.a needs none of this.
#include <elf.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

int fail(const std::string& message) {
  std::fprintf(stderr, "hide_symbols: %s\n", message.c_str());
  return 1;
}

template <class T>
T load(const std::vector<char>& bytes, uint64_t at) {
  T value{};
  if (at <= bytes.size() && sizeof(T) <= bytes.size() - at)
    std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return fail("usage: hide_symbols IN OUT NAME...");
  std::ifstream in(argv[1], std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto header = load<Elf64_Ehdr>(bytes, 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64) {
    return fail(std::string(argv[1]) + " is no 64-bit ELF file");
  }
  int hidden = 0;
  for (int s = 0; s < header.e_shnum; ++s) {
    const auto section = load<Elf64_Shdr>(bytes, header.e_shoff + uint64_t(s) * sizeof(Elf64_Shdr));
    if (section.sh_type != SHT_DYNSYM) continue;
    const auto strings =
        load<Elf64_Shdr>(bytes, header.e_shoff + uint64_t(section.sh_link) * sizeof(Elf64_Shdr));
    for (uint64_t at = section.sh_offset;
         at + sizeof(Elf64_Sym) <= section.sh_offset + section.sh_size; at += sizeof(Elf64_Sym)) {
      auto symbol = load<Elf64_Sym>(bytes, at);
      const uint64_t name_at = strings.sh_offset + symbol.st_name;
      if (symbol.st_shndx == SHN_UNDEF || name_at >= bytes.size()) continue;
      const std::string name(bytes.data() + name_at,
                             strnlen(bytes.data() + name_at, bytes.size() - name_at));
      for (int i = 3; i < argc; ++i) {
        if (name != argv[i]) continue;
        symbol.st_other = static_cast<unsigned char>((symbol.st_other & ~3) | STV_HIDDEN);
        if (at + sizeof(symbol) > bytes.size()) return fail("the symbol table is cut short");
        std::memcpy(bytes.data() + at, &symbol, sizeof(symbol));
        ++hidden;
      }
    }
  }
  std::ofstream out(argv[2], std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) return fail(std::string("can't write ") + argv[2]);
  std::printf("%d symbols hidden\n", hidden);
  return 0;
}
